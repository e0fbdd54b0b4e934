package history

import (
	"slices"
	"sort"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// FaultMark says which fault the system met, and when by the database's clock.
type FaultMark struct {
	Name  string
	At    time.Time // when it began
	Epoch int64     // the newest epoch before it; 0 when nobody had led yet
	Until time.Time // when it was healed; zero when it is not: only a takeover ends it
}

// delayedAfter is how long an event is open before it counts as delayed.
const delayedAfter = time.Second

// Takeover is what followed a fault. Of what a term settled, only events that became done count.
type Takeover struct {
	Fault FaultMark
	// The first term with a newer epoch than the fault's that began before the next fault and
	// brought an event to done; zero when there is none, and so are Began, Last and First.
	Epoch    int64
	Instance string
	Began    time.Time // when its epoch committed
	Last     time.Time // when the last event before First was done under the old epochs; zero without one
	First    time.Time // when its first event was done
	// Delayed is how many events were open at some time between the fault and the first event
	// that was done after its end, and were open for more than a second in all, or never ended. It
	// is counted without a takeover, too.
	Delayed int
}

// Happened reports whether a newer term followed and brought an event to done. Lead, Settle and Gap mean
// something only then.
func (t *Takeover) Happened() bool { return t.Epoch > 0 }

// Lead returns the time from the fault to the commit of the next epoch.
func (t *Takeover) Lead() time.Duration { return t.Began.Sub(t.Fault.At) }

// Settle returns the time from the fault to the first event done under the next epoch.
func (t *Takeover) Settle() time.Duration { return t.First.Sub(t.Fault.At) }

// Gap returns the time from the last event done under the old epoch to the first one under the next. It
// means nothing when Last is zero.
func (t *Takeover) Gap() time.Duration { return t.First.Sub(t.Last) }

// Takeovers returns what followed each fault, in their order. The faults must be in the order of time,
// and log be the whole record, as [Read] returns it.
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

// find fills in the term that followed, if it began no later than next; zero is no limit.
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

// until returns the end of the time in which the fault may have held something up: the first event done
// under the next epoch, or after the fault was healed if that is later.
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

// FirstDone returns the change of the first event that became done under epoch or a later one, in the
// order of commit, and false when there is none.
func (l *Log) FirstDone(epoch int64) (Change, bool) {
	return l.firstDone(func(c *Change) bool { return c.Epoch >= epoch })
}

// FirstDoneAfter returns the change of the first event that became done after at, under any epoch, and
// false when there is none.
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

// settles returns, in the order of commit, the changes by which the holders of events have ended them as
// done; neither failed events nor retries are among them.
func (l *Log) settles() (done []*Change) {
	for i := range l.Changes {
		if c := &l.Changes[i]; c.Done() && c.Settles() {
			done = append(done, c)
		}
	}
	return done
}

// life is the time in which an event was open: from its commit to its first end, done or failed; ended
// is zero when it has none.
type life struct{ enqueued, ended time.Time }

// livesOf returns the lives of the events that were open for longer than delayedAfter, or never ended, in
// the order of their beginning.
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

// delayed counts the lives that have a part between from and until.
func delayed(lives []life, from, until time.Time) (n int) {
	for _, l := range lives {
		if l.enqueued.Before(until) && (l.ended.IsZero() || l.ended.After(from)) {
			n++
		}
	}
	return n
}

// LongestPause returns the longest time in which no event was settled as done, from the commit of
// the first event to the last settle, and when it began.
func (l *Log) LongestPause() (longest time.Duration, began time.Time) {
	return l.LongestPauseWithin(time.Time{}, time.Time{})
}

// LongestPauseWithin is [Log.LongestPause] of those that have a part between from and to; a zero time is
// no bound.
func (l *Log) LongestPauseWithin(from, to time.Time) (longest time.Duration, began time.Time) {
	settles := l.settles()
	slices.SortFunc(settles, func(a, b *Change) int { return a.At.Compare(b.At) })
	last := l.firstEvent()
	for _, s := range settles {
		within := s.At.After(from) && (to.IsZero() || last.Before(to))
		if pause := s.At.Sub(last); within && !last.IsZero() && pause > longest {
			longest, began = pause, last
		}
		last = s.At
	}
	return longest, began
}

// firstEvent returns when the first event was committed; zero where the record has none.
func (l *Log) firstEvent() (first time.Time) {
	for _, c := range l.Changes {
		if c.From == "" && (first.IsZero() || c.At.Before(first)) {
			first = c.At
		}
	}
	return first
}
