package demo

import (
	"context"
	"errors"
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
func (r *run) kill() (t takeover) {
	victim, leads, err := r.LeadingMember(r.Ctx)
	r.Must(err)
	t.From = leads
	r.Must(r.AllReady(r.Ctx))
	before, err := history.Position(r.Ctx, r.Pool)
	r.Must(err)
	// A quiet moment is no error.
	_ = rig.Await(r.Ctx, claimedTimeout, time.Millisecond, "claim", func(ctx context.Context) error {
		return r.Holds(ctx, `select exists (select from weft_lease)`)
	})
	fault := faults.New(faults.SIGKILL, &faults.Target{Group: r.Group}, victim, faults.Params{})
	r.Must(fault.Inject(r.Ctx))
	r.MustDo("count claimed events", r.Pool.QueryRow(r.Ctx,
		`select count(*) from `+rig.Outbox+`_live where status = 'processing' and epoch = $1`, t.From.Epoch).Scan(&t.Claimed))
	r.followed(before, fault.At, &t)
	r.Must(fault.Heal(r.Ctx))
	r.Must(victim.Instance().Ready(r.Ctx))
	return t
}

// followed waits until an event was settled under a newer epoch than t.From's, and fills t from
// the record behind position.
func (r *run) followed(position int64, killed time.Time, t *takeover) {
	r.await(takeoverTimeout, watchPoll, "takeover from "+t.From.Instance, func(ctx context.Context) error {
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
}
