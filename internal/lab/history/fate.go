package history

import (
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Enqueued names an event that the producer saw committed.
type Enqueued struct {
	Event   uuid.UUID
	Key     outbox.Key
	Version int64
}

// settling is what one transaction settles of one entity.
type settling struct {
	tx  uint64
	key outbox.Key
}

// Lost returns the events without a fate: that are neither done nor failed at the end,
// that became so without a claim, of them or of a later event of their entity that was settled with
// them, whose record has a gap or whose row is gone or says
// otherwise; and those of acknowledged that are not in the record. An event whose
// commit was answered by an error does not belong in acknowledged: nobody knows whether
// it exists, and when it does, the record has it.
func Lost(log *Log, acknowledged []Enqueued) []Finding {
	var (
		found       []Finding
		last, order = lasts(log)
		rows        = make(map[uuid.UUID]Status, len(log.Rows))
		before      = make(map[uuid.UUID]Status, len(last))
	)
	for _, r := range log.Rows {
		rows[r.Event] = r.Status
	}
	// Newest versions that a transaction has settled: with them, ready earlier events of
	// the entity may become done.
	supersedes := map[settling]int64{}
	for i := range log.Changes {
		if c := &log.Changes[i]; c.Settles() && c.To == Done {
			k := settling{c.Tx, c.Key}
			supersedes[k] = max(supersedes[k], c.Version)
		}
	}
	for i := range log.Changes {
		c := &log.Changes[i]
		was, seen := before[c.Event]
		switch {
		case seen && was != c.From && c.From == "":
			found = append(found, finding(c, "enqueued once more after it was %s", was))
		case seen && was != c.From:
			found = append(found, finding(c, "its change from %s to %s was never recorded", was, c.From))
		case c.From == Pending && c.settled() && (c.To != Done || supersedes[settling{c.Tx, c.Key}] <= c.Version):
			found = append(found, finding(c, "became %s without a claim", c.To))
		}
		before[c.Event] = c.To
	}
	for _, id := range order {
		c := last[id]
		status, there := rows[id]
		switch {
		case !there:
			found = append(found, finding(c, "its row is gone, last %s", c.To))
		case !c.settled() && (status == Done || status == Failed):
			found = append(found, finding(c, "%s was never recorded, last %s", status, c.To))
		case !c.settled():
			found = append(found, finding(c, "ended %s after %d attempts", c.To, c.Attempts))
		case status != c.To:
			found = append(found, finding(c, "recorded as %s, and the table says %s", c.To, status))
		}
	}
	for _, a := range acknowledged {
		if last[a.Event] == nil {
			found = append(found, Finding{Event: a.Event, Key: a.Key, Version: a.Version, What: "committed by the producer and never recorded"})
		}
	}
	return found
}

// DeadLetters returns the events that ended failed.
func DeadLetters(log *Log) []Finding {
	var found []Finding
	last, order := lasts(log)
	for _, id := range order {
		if c := last[id]; c.To == Failed {
			found = append(found, finding(c, "ended failed after %d attempts", c.Attempts))
		}
	}
	return found
}

// lasts returns the last change of each event, and the events in the order of their first.
func lasts(log *Log) (last map[uuid.UUID]*Change, order []uuid.UUID) {
	last = make(map[uuid.UUID]*Change, len(log.Rows))
	for i := range log.Changes {
		c := &log.Changes[i]
		if last[c.Event] == nil {
			order = append(order, c.Event)
		}
		last[c.Event] = c
	}
	return last, order
}

// Unprojected returns the events that became done although Elasticsearch had not been
// asked before for a version of their document as new as theirs, or has not confirmed
// it. Being superseded is no exception: the newer event's version is newer. It takes the
// database's clock and that of the recording process for the same.
func Unprojected(log *Log, applied []Applied) []Finding {
	confirmed := map[string]*confirmations{}
	for _, a := range byTime(applied) {
		if a.wrote() || a.refused() {
			d := confirmed[a.ID]
			if d == nil {
				d = &confirmations{}
				confirmed[a.ID] = d
			}
			d.add(a.Sent, max(a.Version, a.ResultVersion))
		}
	}
	var found []Finding
	for i := range log.Changes {
		c := &log.Changes[i]
		if c.To != Done || c.From == Done {
			continue
		}
		switch v := confirmed[c.Key.String()].before(c.At); {
		case v < 0:
			found = append(found, finding(c, "done before Elasticsearch had confirmed a version of its document"))
		case v < c.Version:
			found = append(found, finding(c, "done when Elasticsearch had confirmed no newer version of its document than %d", v))
		}
	}
	return found
}

// confirmations are the versions of one document that grew, in the order of time.
type confirmations struct {
	at      []time.Time
	version []int64
}

func (d *confirmations) add(at time.Time, version int64) {
	if n := len(d.version); n == 0 || version > d.version[n-1] {
		d.at, d.version = append(d.at, at), append(d.version, version)
	}
}

// before returns the newest version asked for before t and confirmed, -1 when there was none.
func (d *confirmations) before(t time.Time) int64 {
	if d == nil {
		return -1
	}
	i := sort.Search(len(d.at), func(i int) bool { return !d.at[i].Before(t) })
	if i == 0 {
		return -1
	}
	return d.version[i-1]
}

// byTime returns applied in the order of sending.
func byTime(applied []Applied) []*Applied {
	out := make([]*Applied, len(applied))
	for i := range applied {
		out[i] = &applied[i]
	}
	slices.SortStableFunc(out, func(a, b *Applied) int { return a.Sent.Compare(b.Sent) })
	return out
}

// Fates counts what became of claims: Claimed is the sum of the others.
type Fates struct {
	Claimed   int
	Done      int // superseded ones among them
	Retried   int
	GivenBack int // not sent, or behind another that waits
	Failed    int
	Reclaimed int // the ones that ended in failed among them
	Held      int // at the end of the record

	Unclaimed int // became done with a later event of their entity
}

// CountFates counts the claims of the record and what became of them.
func CountFates(log *Log) Fates {
	var f Fates
	attempts := map[uuid.UUID]int{}
	for i := range log.Changes {
		c := &log.Changes[i]
		switch {
		case c.claim():
			if c.From != Processing {
				f.Claimed++
				f.Held++
			}
			attempts[c.Event] = c.Attempts
			continue
		case c.From != Processing:
			if c.From == Pending && c.To == Done {
				f.Unclaimed++
			}
			continue
		case c.Reclaim:
			f.Reclaimed++
		case c.To == Done:
			f.Done++
		case c.To == Failed:
			f.Failed++
		case c.Attempts > attempts[c.Event]:
			f.Retried++
		default:
			f.GivenBack++
		}
		f.Held--
	}
	return f
}
