package schedule_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Thousands of due rows stay in lists, because somebody else holds their locks: the last one is listed all the same.
func TestDueEventGoesBehindThousandsThatCannotBeSettled(t *testing.T) {
	t.Parallel()
	testLastDue(t, func(*schedule.Part) bool { return false }, true)
}

// The same where they are in large requests that hang.
func TestDueEventGoesBehindThousandsThatHang(t *testing.T) {
	t.Parallel()
	testLastDue(t, func(p *schedule.Part) bool { return len(p.Groups) > 1000 }, false)
}

// testLastDue plays 10,000 due rows of as many entities, and wants the last one to be leased. Requests may hang, and the
// settles leave all entities or none.
func testLastDue(t *testing.T, hangs func(*schedule.Part) bool, left bool) {
	s := schedule.New(schedule.Config{
		BatchSize: 2000, Concurrency: 6, Page: 5000, Poll: 100 * time.Millisecond, BreakerThreshold: 20,
		Retry:  schedule.RetryPolicy{MaxAttempts: 5, BaseBackoff: time.Second, MaxBackoff: time.Minute},
		Jitter: func(d time.Duration) time.Duration { return d }, NewID: uuid.New,
	})
	var due []outbox.Row
	for n := range 10_000 {
		key := entity(n + 1)
		due = append(due, outbox.Row{ID: key.ID, Version: 1, Key: key})
	}
	last := due[len(due)-1].Key
	now := time.Unix(1_000_000, 0)
	for end := now.Add(time.Minute); now.Before(end); {
		a, until, ok := s.Next(now)
		if !ok {
			now = until
			continue
		}
		now = now.Add(time.Millisecond)
		switch a.Kind {
		case schedule.DoList:
			s.Listed(now, a.List, &outbox.List{Due: slices.Clone(due[:min(a.List.Due, len(due))])}, nil)
		case schedule.DoLease:
			l := &outbox.Lease{Events: make([][]outbox.Event, len(a.Groups)), Obstacles: make([]*outbox.Obstacle, len(a.Groups))}
			for i, g := range a.Groups {
				if g.Key == last {
					return
				}
				l.Events[i] = []outbox.Event{{Row: g.Rows[0], Op: outbox.Upsert}}
			}
			s.Leased(now, a.Batch, l, nil)
		case schedule.DoSend:
			if !hangs(a.Part) {
				s.Sent(now, a.Part, slices.Repeat([]outbox.Outcome{outbox.OK()}, len(a.Part.Groups)), nil, time.Millisecond)
			}
		case schedule.DoSettle:
			var got outbox.Settled
			settled := map[outbox.Key]bool{}
			for i := range a.Batch.Groups {
				key := a.Batch.Groups[i].Key
				if settled[key] = !left; left {
					got.Left = append(got.Left, outbox.Left{Key: key, Err: outbox.ErrLocked})
				}
			}
			due = slices.DeleteFunc(due, func(r outbox.Row) bool { return settled[r.Key] })
			s.Settled(now, a.Batch, got)
		case schedule.DoNamePutOff:
			s.PutOffNamed(now, nil, nil, outbox.ID{}, nil)
		default:
			t.Fatalf("action %d, want none but those of a healthy outbox", a.Kind)
		}
	}
	t.Error("the last due event has not been leased within a minute")
}
