package schedule_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A destination refuses each item of its requests, of several batches: that is an outage. It is
// the fault of no entity, so that after it none goes alone.
func TestOutageOfAllItemsSetsNoEntityApart(t *testing.T) {
	t.Parallel()
	s := schedule.New(schedule.Config{
		BatchSize: 500, Concurrency: 8, Page: 5000, Poll: time.Second, BreakerThreshold: 20,
		Retry:  schedule.RetryPolicy{MaxAttempts: 5, BaseBackoff: time.Second, MaxBackoff: time.Minute},
		Jitter: func(d time.Duration) time.Duration { return d },
		NewID:  uuid.New,
	})
	now := time.Unix(1_000_000, 0)
	list := &outbox.List{}
	for n := range 500 {
		list.Ready = append(list.Ready, outbox.Row{ID: outbox.Number(int64(n + 1)), Version: int64(n + 1), Key: entity(n + 1)})
	}
	listed := false
	var sends []*schedule.Part
	carryOut := func() {
		for {
			a, _, ok := s.Next(now)
			if !ok {
				return
			}
			switch a.Kind {
			case schedule.DoList:
				if !listed {
					listed = true
					s.Listed(now, a.List, list, nil)
				}
			case schedule.DoLease:
				l := &outbox.Lease{Events: make([][]outbox.Event, len(a.Groups)), Obstacles: make([]*outbox.Obstacle, len(a.Groups))}
				for i, g := range a.Groups {
					l.Events[i] = []outbox.Event{{Row: g.Rows[0], Op: outbox.Upsert}}
				}
				s.Leased(now, a.Batch, l, nil)
			case schedule.DoSend:
				sends = append(sends, a.Part)
			default: // of no interest here
			}
		}
	}
	carryOut()
	if len(sends) < 2 {
		t.Fatalf("%d requests are sent, want several", len(sends))
	}
	for _, p := range sends {
		outcomes := make([]outbox.Outcome, len(p.Groups))
		for i := range outcomes {
			outcomes[i] = outbox.Reject(outbox.ReasonES5xx, "unavailable")
		}
		s.Sent(now, p, outcomes, nil, time.Millisecond)
	}
	if phase := s.State().Phase; phase != schedule.Outage {
		t.Errorf("the phase is %s, want an outage", phase)
	}
	if n := s.Apart(); n != 0 {
		t.Errorf("%d entities go apart after an outage, want none", n)
	}
}
