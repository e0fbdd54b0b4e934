package history

import (
	"cmp"
	"slices"
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
