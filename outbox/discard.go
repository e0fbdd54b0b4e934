package outbox

import (
	"cmp"
	"context"
	"slices"
)

// ActionDiscard is the audit's action of a discard.
const ActionDiscard = "discard"

const (
	discardPage  = 10_000 // ids of one list
	discardBatch = 500    // rows of one statement
)

// DiscardOutcome is how a discard has ended. It is kept in the audit.
type DiscardOutcome struct {
	Outcome   string `json:"outcome"` // finished, or why not
	Matched   int64  `json:"matched"`
	Discarded int64  `json:"discarded"`
	Skipped   int64  `json:"skipped"` // no longer in failed, or locked by somebody else, when their turn came

	AuditID int64 `json:"-"` // 0 when nothing matched
}

// The outcomes of a discard.
const (
	DiscardFinished    = "finished"
	DiscardInterrupted = "interrupted"
	DiscardBroken      = "broken off by an error"
)

// Discard marks the dead letters that o selects as given up. They stay in failed, count no more
// as dead letters, hold up no later event under strict order, and can still be replayed. What
// fails after the discard began is left out. The outcome is right with an error, too.
func (d *DeadLetters) Discard(ctx context.Context, o LetterOrder) (DiscardOutcome, error) {
	out := DiscardOutcome{Outcome: DiscardFinished}
	err := o.Validate()
	if err == nil {
		out.Matched, err = d.Count(ctx, o.Selector, 0)
	}
	if err != nil || out.Matched == 0 {
		return out, err
	}
	r, err := d.begin(ctx, ActionDiscard, o, out.Matched)
	if err != nil {
		return out, err
	}
	out.AuditID = r.id
	if err = r.discard(ctx, &out); err != nil {
		out.Outcome = DiscardBroken
		if ctx.Err() != nil {
			out.Outcome = DiscardInterrupted
		}
	}
	return out, cmp.Or(err, d.endAction(context.WithoutCancel(ctx), r.id, nil, out))
}

func (r *Replay) discard(ctx context.Context, out *DiscardOutcome) error {
	for {
		ids, err := r.Next(ctx, discardPage)
		if err != nil || len(ids) == 0 {
			return err
		}
		for part := range slices.Chunk(ids, discardBatch) {
			done, err := r.change(ctx, ActionDiscard, "discard_send", part)
			if err != nil {
				return err
			}
			out.Discarded += int64(len(done))
			out.Skipped += int64(len(part) - len(done))
		}
	}
}
