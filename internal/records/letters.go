package records

import (
	"context"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// DeadLetter is the JSON form of one row in failed. Names and units stay; fields may be
// added.
type DeadLetter struct {
	Projection   string     `json:"projection"`
	ID           string     `json:"id"`
	EntityType   string     `json:"entity_type"`
	EntityID     string     `json:"entity_id"`
	Op           string     `json:"op"`
	EventVersion int64      `json:"event_version"`
	Attempts     int        `json:"attempts"`
	Reason       string     `json:"error_reason"`
	Error        string     `json:"error"`
	CreatedAt    *time.Time `json:"created_at"`
	FailedAt     *time.Time `json:"failed_at"`
	Traceparent  string     `json:"traceparent"`
	Tracestate   string     `json:"tracestate"`
	Replays      int        `json:"replay_count"`
	ReplayedAt   *time.Time `json:"last_replayed_at"`
	ReplayedBy   string     `json:"last_replayed_by"`
	ReplayReason string     `json:"last_replayed_reason"`

	DiscardedAt   *time.Time `json:"discarded_at"` // null unless it was discarded
	DiscardedBy   string     `json:"discarded_by"`
	DiscardReason string     `json:"discarded_reason"`
}

// DeadLetters is the JSON form of weft failed list.
type DeadLetters struct {
	Total  int64        `json:"total"` // that fit, listed or not
	Listed []DeadLetter `json:"listed"`
}

// DeadLetterGroup is one row of the JSON form of weft failed summary.
type DeadLetterGroup struct {
	Projection string     `json:"projection"`
	Reason     string     `json:"error_reason"`
	EntityType string     `json:"entity_type"`
	Rows       int64      `json:"rows"`
	Replayed   int64      `json:"replayed_before"`
	Oldest     *time.Time `json:"oldest_failed_at"`
	Newest     *time.Time `json:"newest_failed_at"`
	Sample     string     `json:"sample_error"`
}

// Summarize counts the dead letters that s selects, by projection, reason and entity type.
func Summarize(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) ([]DeadLetterGroup, error) {
	groups := []DeadLetterGroup{}
	for _, d := range all {
		found, err := d.Summary(ctx, s)
		if err != nil {
			return nil, err
		}
		for _, g := range found {
			groups = append(groups, DeadLetterGroup{Projection: d.Projection(), Reason: g.Reason, EntityType: g.EntityType, Rows: g.Rows,
				Replayed: g.Replayed, Oldest: UTC(g.Oldest), Newest: UTC(g.Newest), Sample: g.Sample})
		}
	}
	return groups, nil
}

// ListLetters returns up to limit of the dead letters that s selects, the newest failure first,
// and how many there are.
func ListLetters(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector, limit int) (DeadLetters, error) {
	out := DeadLetters{Listed: []DeadLetter{}}
	for _, d := range all {
		n, err := d.Count(ctx, s, 0)
		if err != nil {
			return out, err
		}
		out.Total += n
		found, err := d.List(ctx, s, limit)
		if err != nil {
			return out, err
		}
		out.Listed = append(out.Listed, describeLetters(d.Projection(), found)...)
	}
	slices.SortStableFunc(out.Listed, func(x, y DeadLetter) int { return orZero(y.FailedAt).Compare(orZero(x.FailedAt)) })
	out.Listed = out.Listed[:min(limit, len(out.Listed))]
	return out, nil
}

// LetterPage is one page of the dead letters of a projection.
type LetterPage struct {
	Projection string       `json:"projection"`
	Total      int64        `json:"total"`          // that fit, on this page or not
	AtLeast    bool         `json:"total_at_least"` // there may be more than Total
	Listed     []DeadLetter `json:"listed"`
	Next       string       `json:"next"` // cursor of the next page; empty on the last

	After *outbox.Mark `json:"-"` // Next
}

// ReadLetterPage returns up to limit dead letters that s selects, the newest failure first.
// It counts at most most of them.
func ReadLetterPage(ctx context.Context, d *outbox.DeadLetters, s outbox.Selector, limit, most int) (LetterPage, error) {
	out := LetterPage{Projection: d.Projection(), Listed: []DeadLetter{}}
	found, err := d.List(ctx, s, limit+1)
	if err != nil {
		return out, err
	}
	if len(found) > limit {
		last := found[limit-1]
		out.After = &outbox.Mark{FailedAt: last.UpdatedAt, ID: last.ID}
		found = found[:limit]
	}
	out.Listed = append(out.Listed, describeLetters(d.Projection(), found)...)
	s.After = nil
	out.Total, err = d.Count(ctx, s, most)
	out.AtLeast = out.Total >= int64(most)
	return out, err
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func describeLetters(projection string, found []outbox.Record) (out []DeadLetter) {
	for _, l := range found {
		out = append(out, DeadLetter{
			Projection: projection, ID: l.ID.String(), EntityType: l.EntityType, EntityID: l.EntityID.String(), Op: string(l.Op),
			EventVersion: l.Version, Attempts: l.Attempts, Reason: l.Reason, Error: l.Error, CreatedAt: UTC(l.CreatedAt), FailedAt: UTC(l.UpdatedAt),
			Traceparent: l.Traceparent, Tracestate: l.Tracestate, Replays: l.Replays, ReplayedAt: UTC(l.ReplayedAt),
			ReplayedBy: l.ReplayedBy, ReplayReason: l.ReplayReason,
			DiscardedAt: UTC(l.DiscardedAt), DiscardedBy: l.DiscardedBy, DiscardReason: l.DiscardReason,
		})
	}
	return out
}
