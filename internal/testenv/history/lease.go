package history

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Lease is what holds events in flight, from the commit of the lease to the commit of its
// end. A claim in a row is the lease of one event.
type Lease struct {
	Seq    int64
	Tx     uint64
	Batch  uuid.UUID // zero for a claim in a row: by an older build of weft or another worker
	Owner  string
	Epoch  int64 // 0 when it was claimed under none: by another worker
	Events []outbox.ID
	At     time.Time // when it committed; see [Log.Exact]
	By     string    // instance whose session wrote it; empty when the session is none of weft's

	Ended    time.Time // when its end committed; zero when it was there at the end of the record
	EndedBy  string    // as By
	EndedTx  uint64
	EndedSeq int64
	// What the transaction that ended it did with its events.
	Settled   int // done, failed or to be tried again; a claim in a row that was released counts, too
	Reclaimed int
}

// inRow reports whether l is a claim in a row.
func (l *Lease) inRow() bool { return l.Batch == uuid.Nil }

// mark is the begin or the end of a lease as it was recorded.
type mark struct {
	seq       int64
	tx        uint64
	at        time.Time
	batch     uuid.UUID
	owner, by string
	epoch     int64
	end       bool
	events    []outbox.ID
}

// moves makes the two records of an event that was archived one change.
func moves(changes []Change) []Change {
	left := map[outbox.ID]int{} // by event, the place of the change by which it has left the table
	out := changes[:0]
	for i := range changes {
		c := changes[i]
		if len(out) > 0 && c.Tx != out[len(out)-1].Tx {
			clear(left)
		}
		at, known := left[c.Event]
		switch {
		case known && c.To == Archived && out[at].To == Deleted:
			out[at].To = Archived
			delete(left, c.Event)
			continue
		case known && c.To == Deleted && out[at].To == Archived: // the history was written first
			c.To = Archived
			out[at] = c
			delete(left, c.Event)
			continue
		case c.To == Deleted, c.To == Archived:
			left[c.Event] = len(out)
		}
		out = append(out, c)
	}
	return out
}

// attribute makes leases of marks and of claims in rows, and enters into each change whose
// lease its transaction has ended.
func (l *Log) attribute(marks []mark) {
	var (
		byBatch = map[uuid.UUID]*Lease{}
		ended   = map[uint64][]*Lease{} // by transaction
	)
	for i := range marks {
		m := &marks[i]
		if !m.end {
			lease := &Lease{Seq: m.seq, Tx: m.tx, Batch: m.batch, Owner: m.owner, Epoch: m.epoch, Events: m.events, At: m.at, By: m.by}
			byBatch[m.batch] = lease
			l.Leases = append(l.Leases, lease)
			continue
		}
		if lease := byBatch[m.batch]; lease != nil && lease.Ended.IsZero() {
			lease.Ended, lease.EndedBy, lease.EndedSeq, lease.EndedTx = m.at, m.by, m.seq, m.tx
			ended[m.tx] = append(ended[m.tx], lease)
		}
	}
	claims := map[outbox.ID]*Lease{}
	held := map[outbox.ID]*Lease{} // of the transaction that is looked at
	for i := range l.Changes {
		c := &l.Changes[i]
		if i == 0 || c.Tx != l.Changes[i-1].Tx {
			clear(held)
			for _, lease := range ended[c.Tx] {
				for _, e := range lease.Events {
					held[e] = lease
				}
			}
		}
		lease := held[c.Event]
		switch {
		case c.From == Processing && c.To == Processing:
			lease = nil // taken: the one before never ended
		case c.From == Processing:
			if lease = claims[c.Event]; lease != nil {
				lease.Ended, lease.EndedBy, lease.EndedSeq, lease.EndedTx = c.At, c.By, c.Seq, c.Tx
				delete(claims, c.Event)
			}
		case c.From != Pending || c.To == Processing:
			lease = nil
		}
		if lease != nil {
			lease.count(c)
		}
		if c.To == Processing {
			claims[c.Event] = &Lease{Seq: c.Seq, Tx: c.Tx, Owner: c.Owner, Epoch: c.Epoch, Events: []outbox.ID{c.Event}, At: c.At, By: c.By}
			l.Leases = append(l.Leases, claims[c.Event])
		}
	}
	slices.SortStableFunc(l.Leases, func(a, b *Lease) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Seq, b.Seq)) })
}

// count enters a change of one of l's events by the transaction that ended l.
func (l *Lease) count(c *Change) {
	c.Owner, c.Epoch = l.Owner, l.Epoch
	if c.Reclaim {
		l.Reclaimed++
	} else {
		l.Settled++
	}
}

// settling is what one transaction settles of one entity.
type settling struct {
	tx  uint64
	key outbox.Key
}

// Unleased returns the verdicts without a lease: an event that became done or failed or
// left the table, or on which an attempt was counted, by a transaction that did not end a
// lease that names it; and an event that was taken back without one. These need none: a
// replay, the removal of an event that is done, and what another worker does with the rows
// that it has claimed. An older build of weft settles ready events together with a later
// one of their entity that it has claimed.
//
// It proves that every verdict of weft belongs to a batch that was in flight until then,
// and to one only.
func Unleased(log *Log) []Finding {
	// Newest versions that transactions of an older build have settled.
	supersedes := map[settling]int64{}
	for i := range log.Changes {
		if c := &log.Changes[i]; c.From == Processing && c.Done() && c.Epoch > 0 {
			k := settling{c.Tx, c.Key}
			supersedes[k] = max(supersedes[k], c.Version)
		}
	}
	var found []Finding
	attempts := map[outbox.ID]int{}
	for i := range log.Changes {
		c := &log.Changes[i]
		before := attempts[c.Event]
		attempts[c.Event] = c.Attempts
		switch {
		case c.From != Pending, c.To == Processing, c.Owner != "":
		case c.Reclaim:
			found = append(found, finding(c, "reclaimed without a lease"))
		case c.To == Pending && c.Attempts > before:
			found = append(found, finding(c, "attempt %d counted without a lease", c.Attempts))
		case c.To == Pending, c.To == Done && supersedes[settling{c.Tx, c.Key}] > c.Version:
		default:
			found = append(found, finding(c, "became %s without a lease", c.To))
		}
	}
	return found
}

// crashLoss is how long before a crash of PostgreSQL a commit may be that the crash takes
// back: weft does not wait for the disk. crashEcho is until when afterwards something may
// be sent under such a lease.
const (
	crashLoss = time.Second
	crashEcho = 10 * time.Second
)

// sentEarly returns the items of bulk requests for an entity of which the sender held no
// lease: none that had committed when the item was sent, and was not ended yet. A request
// may arrive late, when the lease that it belonged to is over: it may have been one of
// those if its version was known before the lease ended, and its holder had not released
// the lease without a verdict on any event, as it does with what it has not sent. crashes
// are the times in which PostgreSQL lost what had not reached the disk, until it was back:
// there, a lease may be missing from the record. more are instances of which their own leases count
// although they have held none of this shard.
//
// It proves that nothing new is sent before the lease is committed. It takes the
// database's clock and that of the recording process for the same.
func sentEarly(log *Log, applied []Applied, crashes []FaultMark, more map[string]bool) []Finding {
	if len(applied) == 0 {
		return nil
	}
	flights, holders := flightsOf(log)
	maps.Copy(holders, more)
	var found []Finding
	for _, a := range byTime(applied) {
		key := a.key()
		lost := slices.ContainsFunc(crashes, func(m FaultMark) bool {
			return a.Sent.After(m.At.Add(-crashLoss)) && a.Sent.Before(m.Until.Add(crashEcho))
		})
		if flights[key].explain(a, holders[a.Instance]) || lost {
			continue
		}
		found = append(found, Finding{Key: key, Version: a.Version, What: "sent without a lease on an event of its entity: " + a.line()})
	}
	return found
}

// flight is the time in which an event of an entity was leased.
type flight struct {
	owner    string
	from, to time.Time // to is zero when it was leased at the end
	released bool      // its holder has ended it, and nothing was sent
}

// flights are those of one entity, in the order of their begin, with the versions that
// became known of it.
type flights struct {
	all   []flight
	known growth // by what was committed
}

// explain reports whether a was sent during a flight, or could have been and is late. Of
// an instance that has held leases its own count.
func (f *flights) explain(a *Applied, holder bool) bool {
	if f == nil {
		return false
	}
	n := sort.Search(len(f.all), func(i int) bool { return f.all[i].from.After(a.Sent) })
	for _, l := range slices.Backward(f.all[:n]) {
		if holder && l.owner != a.Instance {
			continue
		}
		if l.to.IsZero() || !a.Sent.After(l.to) || !l.released && a.Version <= max(f.known.until(l.to), 0) {
			return true
		}
	}
	return false
}

// flightsOf returns the flights by entity, and who has held leases.
func flightsOf(log *Log) (byKey map[outbox.Key]*flights, holders map[string]bool) {
	byKey, holders = map[outbox.Key]*flights{}, map[string]bool{}
	of := func(k outbox.Key) *flights {
		f := byKey[k]
		if f == nil {
			f = &flights{}
			byKey[k] = f
		}
		return f
	}
	// Versions become known by rows of the source or by events, whichever is first.
	source := log.Source
	for i := range log.Changes {
		c := &log.Changes[i]
		for len(source) > 0 && !source[0].At.After(c.At) {
			of(source[0].Key).known.add(source[0].At, source[0].Version)
			source = source[1:]
		}
		if c.From == "" {
			of(c.Key).known.add(c.At, c.Version)
		}
	}
	keys := keysOf(log)
	for _, l := range log.Leases {
		holders[l.Owner] = true
		released := l.EndedBy == l.Owner && l.Settled+l.Reclaimed == 0
		for _, e := range l.Events {
			of(keys[e].key).add(flight{l.Owner, l.At, l.Ended, released})
		}
	}
	return byKey, holders
}

// add adds a flight; several events of one lease are one.
func (f *flights) add(l flight) {
	if n := len(f.all); n == 0 || f.all[n-1] != l {
		f.all = append(f.all, l)
	}
}
