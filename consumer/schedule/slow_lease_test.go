package schedule_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// slowStart is an outbox with ready and due events of many entities, whose first lease takes too long.
type slowStart struct {
	t      *testing.T
	s      *schedule.Scheduler
	now    time.Time
	ready  []outbox.Row
	due    []outbox.Row
	open   map[outbox.ID]bool
	leases int
}

// After one slow lease of a few entities, a backlog goes on in large batches, and these entities with it.
func TestOneSlowLeaseShrinksFewBatches(t *testing.T) {
	t.Parallel()
	o := &slowStart{t: t, now: time.Unix(1_000_000, 0), open: map[outbox.ID]bool{}}
	o.s = schedule.New(schedule.Config{
		BatchSize: 500, Concurrency: 1, Page: 1000, Poll: 100 * time.Millisecond, BreakerThreshold: 20,
		Retry:  schedule.RetryPolicy{MaxAttempts: 5, BaseBackoff: time.Second, MaxBackoff: time.Minute},
		Jitter: func(d time.Duration) time.Duration { return d }, NewID: uuid.New,
	})
	o.ready = o.events(1, 12)
	for o.leases < 200 && (o.leases == 0 || len(o.open) > 0) {
		a, until, ok := o.s.Next(o.now)
		if !ok {
			o.now = until
			continue
		}
		o.now = o.now.Add(time.Millisecond)
		o.answer(a)
	}
	if len(o.open) > 0 || o.leases > 60 {
		t.Errorf("%d events are left after %d leases, want none after 60 at most", len(o.open), o.leases)
	}
}

// events opens the events of entities with the ids first to last.
func (o *slowStart) events(first, last int64) (out []outbox.Row) {
	for n := first; n <= last; n++ {
		out = append(out, outbox.Row{ID: outbox.Number(n), Version: n, Key: outbox.Key{Type: "block", ID: outbox.Number(n)}})
		o.open[outbox.Number(n)] = true
	}
	return out
}

// first returns up to most rows that are open.
func (o *slowStart) first(rows []outbox.Row, most int) (out []outbox.Row) {
	for _, r := range rows {
		if o.open[r.ID] && len(out) < most {
			out = append(out, r)
		}
	}
	return out
}

func (o *slowStart) answer(a schedule.Action) {
	switch a.Kind {
	case schedule.DoNamePutOff:
		o.s.PutOffNamed(o.now, nil, nil, outbox.ID{}, nil)
	case schedule.DoList:
		o.s.Listed(o.now, a.List, &outbox.List{Ready: o.first(o.ready, a.List.Ready), Due: o.first(o.due, a.List.Due)}, nil)
	case schedule.DoLease:
		if o.leases++; o.leases == 1 {
			o.s.Leased(o.now, a.Batch, nil, context.DeadlineExceeded)
			o.ready, o.due = append(o.ready, o.events(13, 4000)...), o.events(10_001, 14_000)
			return
		}
		l := &outbox.Lease{Events: make([][]outbox.Event, len(a.Groups)), Obstacles: make([]*outbox.Obstacle, len(a.Groups))}
		for i, g := range a.Groups {
			for _, r := range g.Rows {
				l.Events[i] = append(l.Events[i], outbox.Event{Row: r, Op: outbox.Upsert})
			}
		}
		o.s.Leased(o.now, a.Batch, l, nil)
	case schedule.DoSend:
		o.s.Sent(o.now, a.Part, slices.Repeat([]outbox.Outcome{outbox.OK()}, len(a.Part.Groups)), nil, time.Millisecond)
	case schedule.DoSettle:
		for _, s := range a.Batch.Settlements {
			delete(o.open, s.Event.ID)
		}
		o.s.Settled(o.now, a.Batch, outbox.Settled{})
	default:
		o.t.Fatalf("action %d, want none but those of a healthy outbox", a.Kind)
	}
}
