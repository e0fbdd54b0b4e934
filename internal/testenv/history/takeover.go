package history

import (
	"slices"
	"sort"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// FaultMark says what was done to the system, and when by the database's clock.
type FaultMark struct {
	Name  string
	At    time.Time
	Epoch int64     // the newest before it
	Until time.Time // when it was healed; zero when only a takeover ends it
}

// delayedAfter is from when on an event counts as delayed.
const delayedAfter = time.Second

// Takeover is what followed a fault.
type Takeover struct {
	Fault FaultMark
	// The term that followed; zero when none began before the next fault, or when it
	// settled nothing.
	Epoch    int64
	Instance string
	Began    time.Time // when its epoch committed
	Last     time.Time // last event that the terms up to the fault's settled; zero when there was none
	First    time.Time // first event that it settled
	// Delayed is how many events were under way while the fault lasted, to the first
	// event settled afterwards, and took longer than delayedAfter.
	Delayed int
}

// Happened reports whether another term followed and settled an event.
func (t *Takeover) Happened() bool { return t.Epoch > 0 }

// Lead is from the fault to the commit of the next epoch.
func (t *Takeover) Lead() time.Duration { return t.Began.Sub(t.Fault.At) }

// Settle is from the fault to the first event settled by the next term.
func (t *Takeover) Settle() time.Duration { return t.First.Sub(t.Fault.At) }

// Gap is from the last event settled by the old term to the first one by the next.
func (t *Takeover) Gap() time.Duration { return t.First.Sub(t.Last) }

// Takeovers returns what followed each fault, which must be in the order of time.
func Takeovers(log *Log, faults []FaultMark) []Takeover {
	settles, lives := log.settles(), livesOf(log)
	out := make([]Takeover, len(faults))
	for i, fault := range faults {
		t := &out[i]
		t.Fault = fault
		var next time.Time
		if i+1 < len(faults) {
			next = faults[i+1].At
		}
		t.find(log, settles, next)
		t.Delayed = delayed(lives, fault.At, t.until(settles))
	}
	return out
}

// find fills in the term that followed before next, unless that is zero.
func (t *Takeover) find(log *Log, settles []*Change, next time.Time) {
	for _, term := range log.Terms {
		if term.Epoch <= t.Fault.Epoch || (!next.IsZero() && term.At.After(next)) {
			continue
		}
		first := slices.IndexFunc(settles, func(c *Change) bool { return c.Epoch == term.Epoch })
		if first < 0 {
			continue // it was over before it settled anything
		}
		t.Epoch, t.Instance, t.Began, t.First = term.Epoch, term.Instance, term.At, settles[first].At
		for _, c := range slices.Backward(settles[:first]) {
			if c.Epoch <= t.Fault.Epoch {
				t.Last = c.At
				break
			}
		}
		return
	}
}

// until returns the end of the time in which the fault may have held something up.
func (t *Takeover) until(settles []*Change) time.Time {
	healed := t.Fault.Until
	if t.First.After(healed) {
		return t.First
	}
	if healed.IsZero() {
		healed = t.Fault.At
	}
	i := sort.Search(len(settles), func(i int) bool { return settles[i].At.After(healed) })
	if i == len(settles) {
		return healed
	}
	return settles[i].At
}

// FirstDone returns the first event that became done under epoch or a later one.
func (l *Log) FirstDone(epoch int64) (Change, bool) {
	return l.firstDone(func(c *Change) bool { return c.Epoch >= epoch })
}

// FirstDoneAfter returns the first event that became done after a time.
func (l *Log) FirstDoneAfter(at time.Time) (Change, bool) {
	return l.firstDone(func(c *Change) bool { return c.At.After(at) })
}

func (l *Log) firstDone(want func(*Change) bool) (Change, bool) {
	settles := l.settles()
	if first := slices.IndexFunc(settles, want); first >= 0 {
		return *settles[first], true
	}
	return Change{}, false
}

// settles returns the changes by which the holders of events have ended them as done.
func (l *Log) settles() (done []*Change) {
	for i := range l.Changes {
		if c := &l.Changes[i]; c.Done() && c.Settles() {
			done = append(done, c)
		}
	}
	return done
}

// life is from the commit of an event to its end; ended is zero when it has none.
type life struct{ enqueued, ended time.Time }

// livesOf returns the lives of the events that were long under way, in the order of
// their beginning.
func livesOf(log *Log) []life {
	var order []outbox.ID
	lives := map[outbox.ID]*life{}
	for i := range log.Changes {
		c := &log.Changes[i]
		if c.From == "" {
			lives[c.Event] = &life{enqueued: c.At}
			order = append(order, c.Event)
		} else if l := lives[c.Event]; l != nil && c.settled() && l.ended.IsZero() {
			l.ended = c.At
		}
	}
	var out []life
	for _, id := range order {
		if l := lives[id]; l.ended.IsZero() || l.ended.Sub(l.enqueued) > delayedAfter {
			out = append(out, *l)
		}
	}
	return out
}

func delayed(lives []life, from, until time.Time) (n int) {
	for _, l := range lives {
		if l.enqueued.Before(until) && (l.ended.IsZero() || l.ended.After(from)) {
			n++
		}
	}
	return n
}
