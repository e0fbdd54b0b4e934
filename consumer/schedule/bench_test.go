package schedule_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// BenchmarkBacklog carries a backlog through a scheduler, with no trouble: of entities with one event
// each, and of a few entities with many. Its unit is an event.
func BenchmarkBacklog(b *testing.B) {
	for name, entities := range map[string]int{"Distinct": 1 << 30, "Hot": 1000} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			s := schedule.New(schedule.Config{
				BatchSize: 1000, Concurrency: 4, Page: 5000, Poll: time.Second, BreakerThreshold: 20,
				Retry:  schedule.RetryPolicy{MaxAttempts: 5, BaseBackoff: time.Second, MaxBackoff: time.Minute},
				Jitter: func(d time.Duration) time.Duration { return d }, NewID: uuid.New,
			})
			o := &backlog{s: s, now: time.Unix(1_000_000, 0), entities: entities, total: b.N, settled: map[int]bool{}}
			for o.done < b.N {
				o.step()
			}
		})
	}
}

// backlog answers each action at once.
type backlog struct {
	s           *schedule.Scheduler
	now         time.Time
	entities    int
	total, done int
	first       int // of the events that are not settled yet, in their order
	settled     map[int]bool
}

func (o *backlog) step() {
	a, until, ok := o.s.Next(o.now)
	if !ok {
		o.now = until
		return
	}
	o.now = o.now.Add(time.Microsecond)
	switch a.Kind {
	case schedule.DoNamePutOff:
		o.s.PutOffNamed(o.now, nil, nil, outbox.ID{}, nil)
	case schedule.DoList:
		o.s.Listed(o.now, a.List, o.list(a.List.Ready), nil)
	case schedule.DoLease:
		l := &outbox.Lease{Events: make([][]outbox.Event, len(a.Groups)), Obstacles: make([]*outbox.Obstacle, len(a.Groups))}
		for i, g := range a.Groups {
			l.Events[i] = make([]outbox.Event, len(g.Rows))
			for j, r := range g.Rows {
				l.Events[i][j] = outbox.Event{Row: r, Op: outbox.Upsert}
			}
		}
		o.s.Leased(o.now, a.Batch, l, nil)
	case schedule.DoSend:
		o.s.Sent(o.now, a.Part, slices.Repeat([]outbox.Outcome{outbox.OK()}, len(a.Part.Groups)), nil, time.Millisecond)
	case schedule.DoSettle:
		for _, s := range a.Batch.Settlements {
			o.settled[int(s.Event.Version)] = true
		}
		for o.settled[o.first] {
			delete(o.settled, o.first)
			o.first++
		}
		o.done += len(a.Batch.Settlements)
		o.s.Settled(o.now, a.Batch, outbox.Settled{})
	default: // of a healthy outbox there are no others
	}
}

func (o *backlog) list(limit int) *outbox.List {
	l := &outbox.List{}
	for n := o.first; n < o.total && len(l.Ready) < limit; n++ {
		if !o.settled[n] {
			l.Ready = append(l.Ready, outbox.Row{
				ID: outbox.Number(int64(n)), Version: int64(n), Key: outbox.Key{Type: "block", ID: outbox.Number(int64(n % o.entities))},
			})
		}
	}
	return l
}
