package history

import (
	"cmp"
	"fmt"
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
// the first event to the last settle, and when it began: of those that have a part between from and to. A
// zero time is no bound.
func (l *Log) LongestPause(from, to time.Time) (longest time.Duration, began time.Time) {
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

// TwoActive returns what shows two active instances: terms that share an epoch or do not
// follow each other; a lease or settle under an epoch older than one already committed,
// under one of another instance, under one that no term has begun, or under none; an
// event leased while another instance or term held it; and a session that ended a lease
// that was not its own to settle or to reclaim. An older build leases by claims in rows,
// and leaves the leases of a term before to the next leader of this build.
//
// It proves that in the order of commits there was one instance at a time that leased and
// settled: the one of the newest term.
func TwoActive(log *Log) []Finding {
	a := active{log: log, owners: map[int64]string{}, held: map[outbox.ID]*Lease{}}
	for _, e := range a.events() {
		switch {
		case e.term != nil:
			a.begin(e.term)
		case e.ends:
			a.end(e.lease)
		default:
			a.lease(e.lease)
		}
	}
	return a.found
}

// active replays terms and leases.
type active struct {
	log    *Log
	found  []Finding
	newest int64            // epoch
	owners map[int64]string // instances of the epochs
	held   map[outbox.ID]*Lease
	keys   map[outbox.ID]entry // nil until something is found
}

// moment is the begin of a term, or the begin or end of a lease.
type moment struct {
	at    time.Time
	seq   int64
	term  *Term
	lease *Lease
	ends  bool
}

func (a *active) events() []moment {
	out := make([]moment, 0, len(a.log.Terms)+2*len(a.log.Leases))
	for i := range a.log.Terms {
		t := &a.log.Terms[i]
		out = append(out, moment{at: t.At, seq: t.Seq, term: t})
	}
	for _, l := range a.log.Leases {
		out = append(out, moment{at: l.At, seq: l.Seq, lease: l})
		if !l.Ended.IsZero() {
			out = append(out, moment{at: l.Ended, seq: l.EndedSeq, lease: l, ends: true})
		}
	}
	slices.SortFunc(out, func(x, y moment) int { return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.seq, y.seq)) })
	return out
}

// find adds a finding about the first event of a lease.
func (a *active) find(l *Lease, format string, args ...any) {
	f := Finding{What: fmt.Sprintf(format, args...)}
	if a.keys == nil {
		a.keys = keysOf(a.log)
	}
	if len(l.Events) > 0 {
		f.Event = l.Events[0]
		f.Key, f.Version = a.keys[f.Event].key, a.keys[f.Event].version
	}
	if len(l.Events) > 1 {
		f.What += fmt.Sprintf(" (%d events)", len(l.Events))
	}
	a.found = append(a.found, f)
}

// begin enters a term and adds a finding when its epoch is wrong.
func (a *active) begin(t *Term) {
	owner, known := a.owners[t.Epoch]
	switch {
	case known:
		a.found = append(a.found, Finding{Version: t.Epoch, What: fmt.Sprintf("term of %q began with epoch %d, which %q has had", t.Instance, t.Epoch, owner)})
	case t.Epoch <= a.newest:
		a.found = append(a.found, Finding{Version: t.Epoch, What: fmt.Sprintf("term of %q began with epoch %d after epoch %d was committed", t.Instance, t.Epoch, a.newest)})
	}
	a.owners[t.Epoch] = t.Instance
	a.newest = max(a.newest, t.Epoch)
}

// usurped returns why a session may not act on l, or nothing.
func (a *active) usurped(l *Lease, by string) string {
	owner, known := a.owners[l.Epoch]
	switch {
	case l.Epoch == 0:
		return "under no epoch"
	case l.Epoch < a.newest:
		return fmt.Sprintf("under epoch %d after epoch %d was committed", l.Epoch, a.newest)
	case known && owner != l.Owner:
		return fmt.Sprintf("under epoch %d of %q", l.Epoch, owner)
	case len(a.log.Terms) > 0 && l.Epoch > a.newest && a.newest > 0:
		return fmt.Sprintf("under epoch %d, which no term has begun", l.Epoch)
	case by != "" && by != l.Owner:
		return fmt.Sprintf("by a session of %q under epoch %d", by, l.Epoch)
	}
	return ""
}

func (a *active) lease(l *Lease) {
	if what := a.usurped(l, l.By); what != "" {
		a.find(l, "lease by %q %s", l.Owner, what)
	}
	a.newest = max(a.newest, l.Epoch)
	if _, known := a.owners[l.Epoch]; !known && l.Epoch > 0 {
		a.owners[l.Epoch] = l.Owner
	}
	told := false
	for _, e := range l.Events {
		h := a.held[e]
		// A lease whose answer was lost is there until its holder, who leases the events
		// again, has removed it.
		same := h != nil && h.Epoch == l.Epoch && h.Owner == l.Owner && h.inRow() == l.inRow() && !l.inRow()
		older := h != nil && l.inRow() && !h.inRow() && h.Epoch < l.Epoch
		if h != nil && !same && !older && !told {
			told = true
			a.find(l, "lease by %q under epoch %d of an event that %q held under epoch %d", l.Owner, l.Epoch, h.Owner, h.Epoch)
		}
		a.held[e] = l
	}
}

func (a *active) end(l *Lease) {
	for _, e := range l.Events {
		if a.held[e] == l {
			delete(a.held, e)
		}
	}
	leader := a.owners[a.newest]
	switch what := a.usurped(l, l.EndedBy); {
	case l.Settled > 0 && what != "":
		a.find(l, "settle of what %q leased %s", l.Owner, what)
	case l.Settled > 0, l.EndedBy == "", leader == "", l.EndedBy == leader:
	case l.EndedBy == l.Owner:
		a.find(l, "release by %q %s", l.Owner, what)
	default:
		a.find(l, "reclaim by %q under epoch %d of %q", l.EndedBy, a.newest, leader)
	}
}

// entry is what an event was enqueued as.
type entry struct {
	key     outbox.Key
	version int64
}

// keysOf returns the entities and versions of all events.
func keysOf(log *Log) map[outbox.ID]entry {
	keys := make(map[outbox.ID]entry, max(len(log.Rows), len(log.Changes)/3))
	for i := range log.Changes {
		if c := &log.Changes[i]; c.From == "" || keys[c.Event] == (entry{}) {
			keys[c.Event] = entry{c.Key, c.Version}
		}
	}
	return keys
}
