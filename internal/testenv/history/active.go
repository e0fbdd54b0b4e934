package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

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
