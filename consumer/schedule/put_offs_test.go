package schedule_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A list may show that tens of thousands of entities are blocked. To compare each with each would
// stop the loop for seconds.
func TestManyBlockedEntitiesAreQueuedAtOnce(t *testing.T) {
	t.Parallel()
	took := time.Hour
	for range 3 { // the machine may stand still during one of them
		began := time.Now()
		if n := schedule.QueuePutOffs(40_000); n != 1000 {
			t.Errorf("%d entities are queued, want 1,000", n)
		}
		took = min(took, time.Since(began))
	}
	if took > 5*time.Second {
		t.Errorf("to queue 40,000 entities took %v, want 5 s at most", took)
	}
}

// While put-offs are queued, lists begin where nothing is ready but the newest rows: an entity whose
// barrier is gone must not stay there for as long as it is busy.
func TestPutOffGoesWithItsBarrier(t *testing.T) {
	t.Parallel()
	if n := schedule.PutOffsInVain(3); n != 0 {
		t.Errorf("%d put-offs are queued without a barrier, want none", n)
	}
}

// A term begins with thousands of entities of which rows are put off, and nothing is in their way any more.
func TestNewTermComesSoonToAllThatIsPutOff(t *testing.T) {
	t.Parallel()
	o := newPutOffs(t, 3000)
	if o.run(20 * time.Second); len(o.keys) > 0 {
		t.Errorf("%d of 3,000 entities are left after 20 s, want none", len(o.keys))
	}
}

// What is in the way of thousands of entities may stay for ever: they are looked for seldom.
func TestEntitiesThatMayNotGoAreLookedForSeldom(t *testing.T) {
	t.Parallel()
	o := newPutOffs(t, 3000)
	o.blocked = true
	if o.run(time.Minute); o.searches > 13 {
		t.Errorf("%d searches within a minute, want 13 at most", o.searches)
	}
}

// What is in the way of all entities but the last is known: no look-up delays it.
func TestFreeEntityBehindThousandsThatWaitGoesSoon(t *testing.T) {
	t.Parallel()
	o := newPutOffs(t, 3000)
	o.waiting = true
	if o.run(5 * time.Second); len(o.keys) != 2999 {
		t.Errorf("%d entities are left after 5 s, want the 2,999 that wait", len(o.keys))
	}
}

// An operator lets thousands of entities wait: to search for what may go passes over them at once.
func TestFreeEntityBehindAThousandInQuarantineGoesSoon(t *testing.T) {
	t.Parallel()
	o := newPutOffs(t, 1000)
	o.s.Quarantine(o.now, o.keys[:999])
	if o.run(3 * time.Second); len(o.keys) != 999 {
		t.Errorf("%d entities are left after 3 s, want the 999 in quarantine", len(o.keys))
	}
}

// What is put off fills the pages of the searches: after the last one the first comes again, not a minute later.
func TestSearchBeginsAnewBehindALastFullPage(t *testing.T) {
	t.Parallel()
	o := newPutOffs(t, 100)
	o.waiting = true
	if o.run(5 * time.Second); o.searches < 3 {
		t.Errorf("%d searches, want another one of the first page", o.searches)
	}
}

// putOffs is an outbox in which rows of many entities are put off.
type putOffs struct {
	t        *testing.T
	s        *schedule.Scheduler
	now      time.Time
	keys     []outbox.Key // with rows put off
	searches int
	blocked  bool // by earlier rows of the entities
	waiting  bool // all but the last entity, as the searches tell
	last     outbox.Key
}

func newPutOffs(t *testing.T, entities int) *putOffs {
	o := &putOffs{t: t, now: time.Unix(1_000_000, 0), last: entity(entities)}
	for n := range entities {
		o.keys = append(o.keys, entity(n+1))
	}
	o.s = schedule.New(schedule.Config{
		BatchSize: 500, Concurrency: 3, Page: 5000, Poll: 100 * time.Millisecond, BreakerThreshold: 20,
		Retry:  schedule.RetryPolicy{MaxAttempts: 5, BaseBackoff: time.Second, MaxBackoff: time.Minute},
		Jitter: func(d time.Duration) time.Duration { return d }, NewID: uuid.New,
	})
	return o
}

// run carries out what the scheduler decides until nothing is put off, or for a time.
func (o *putOffs) run(d time.Duration) {
	for end := o.now.Add(d); len(o.keys) > 0 && o.now.Before(end); {
		a, until, ok := o.s.Next(o.now)
		if !ok {
			o.now = until
			continue
		}
		o.now = o.now.Add(time.Millisecond)
		o.answer(a)
	}
}

func (o *putOffs) answer(a schedule.Action) {
	switch a.Kind {
	case schedule.DoNamePutOff:
		o.searches++
		page := slices.DeleteFunc(slices.Clone(o.keys), func(k outbox.Key) bool { return !a.After.IsZero() && k.ID.Compare(a.After) <= 0 })
		last := outbox.ID{}
		if len(page) >= a.Limit {
			page, last = page[:a.Limit], page[a.Limit-1].ID
		}
		free, waiting := page, []outbox.Key(nil)
		if o.waiting {
			free, waiting = nil, page
			if n := len(page) - 1; n >= 0 && page[n] == o.last {
				free, waiting = page[n:], page[:n]
			}
		}
		o.s.PutOffNamed(o.now, free, waiting, last, nil)
	case schedule.DoList:
		l := &outbox.List{}
		if key := a.List.Entity; key != nil && slices.Contains(o.keys, *key) {
			l.Due = []outbox.Row{{ID: key.ID, Version: 1, Key: *key}}
		}
		o.s.Listed(o.now, a.List, l, nil)
	case schedule.DoLease:
		l := &outbox.Lease{Events: make([][]outbox.Event, len(a.Groups)), Obstacles: make([]*outbox.Obstacle, len(a.Groups))}
		for i, g := range a.Groups {
			if o.blocked {
				l.Obstacles[i] = &outbox.Obstacle{Wait: 24 * time.Hour}
			} else {
				l.Events[i] = []outbox.Event{{Row: g.Rows[0], Op: outbox.Upsert}}
			}
		}
		o.s.Leased(o.now, a.Batch, l, nil)
	case schedule.DoSend:
		o.s.Sent(o.now, a.Part, slices.Repeat([]outbox.Outcome{outbox.OK()}, len(a.Part.Groups)), nil, time.Millisecond)
	case schedule.DoSettle:
		for i := range a.Batch.Groups {
			at := slices.Index(o.keys, a.Batch.Groups[i].Key)
			o.keys = slices.Delete(o.keys, at, at+1)
		}
		o.s.Settled(o.now, a.Batch, outbox.Settled{})
	default:
		o.t.Fatalf("action %d, want none but those of a healthy outbox", a.Kind)
	}
}
