package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

const (
	kills = 3
	// streamBetween is how long the stream runs undisturbed before each kill.
	streamBetween   = 1500 * time.Millisecond
	takeoverTimeout = 15 * time.Second
	watchPoll       = 20 * time.Millisecond
	// claimedTimeout bounds the wait for a moment at which events are in flight.
	claimedTimeout = 300 * time.Millisecond
)

// takeover is one kill of the leader and what followed.
type takeover struct {
	From, To rig.Leadership
	Claimed  int           // events that the killed leader held
	Lead     time.Duration // SIGKILL to the commit of the new epoch
	Settle   time.Duration // SIGKILL to the commit of the first settled event
}

// kill ends the leader in mid-stream, waits for the other one's first settled event, and starts
// the killed one again as the standby.
func (r *run) kill(ctx context.Context) (t takeover, err error) {
	victim, leads, err := r.LeadingMember(ctx)
	if err != nil {
		return t, err
	}
	t.From = leads
	if err := r.AllReady(ctx); err != nil {
		return t, err
	}
	before, err := history.Position(ctx, r.Pool)
	if err != nil {
		return t, err
	}
	// A quiet moment is no error.
	_ = rig.Await(ctx, claimedTimeout, time.Millisecond, "claim", func(ctx context.Context) error {
		return r.Holds(ctx, `select exists (select from weft_lease)`)
	})
	fault := faults.New(faults.SIGKILL, &faults.Target{Group: r.Group}, victim, faults.Params{})
	if err := fault.Inject(ctx); err != nil {
		return t, err
	}
	err = r.Pool.QueryRow(ctx, `select count(*) from `+rig.Outbox+`_live where status = 'processing' and epoch = $1`, t.From.Epoch).Scan(&t.Claimed)
	if err != nil {
		return t, fmt.Errorf("count claimed events: %w", err)
	}
	if err := r.followed(ctx, before, fault.At, &t); err != nil {
		return t, err
	}
	if err := fault.Heal(ctx); err != nil {
		return t, err
	}
	return t, victim.Instance().Ready(ctx)
}

// followed waits until an event was settled under a newer epoch than t.From's, and fills t from
// the record behind position.
func (r *run) followed(ctx context.Context, position int64, killed time.Time, t *takeover) error {
	err := rig.Await(ctx, takeoverTimeout, watchPoll, "takeover", func(ctx context.Context) error {
		if err := r.Fleet.Died(); err != nil {
			return rig.Stop(err)
		}
		log, err := history.Since(ctx, r.Pool, rig.Outbox, r.Place.Group, position)
		if err != nil {
			return err
		}
		next := history.Takeovers(log, []history.FaultMark{{At: killed, Epoch: t.From.Epoch}})[0]
		if !next.Happened() {
			return errors.New("no event is settled under a newer epoch")
		}
		t.To = rig.Leadership{Epoch: next.Epoch, Instance: next.Instance}
		t.Lead, t.Settle = next.Lead(), next.Settle()
		return nil
	})
	if err != nil {
		return fmt.Errorf("after the kill of %s: %w", t.From.Instance, err)
	}
	return nil
}
