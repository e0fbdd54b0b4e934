package history

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Enqueued names an event that the producer saw committed.
type Enqueued struct {
	Event   outbox.ID
	Key     outbox.Key
	Version int64
}

// Lost returns the events without a fate: that are neither done nor failed at the end,
// whose record has a gap, or whose row is gone, was removed before it was done or says
// otherwise; those that were removed when they had failed, or when they were done and should
// have been moved to the history; those that were archived and are not in the history; and
// those of acknowledged that are not in the record. An event whose commit was answered by an
// error does not belong in acknowledged: nobody knows whether it exists, and when it does,
// the record has it.
//
// It proves that what the producer saw committed has come to an end that somebody can
// point to: a row that is done or failed, a row of the history, or, where finished events
// are deleted, the settle that deleted it.
func Lost(log *Log, acknowledged []Enqueued) []Finding {
	var (
		found         []Finding
		last, order   = lasts(log)
		rows, history = log.left()
		before        = make(map[outbox.ID]Status, len(last))
	)
	for i := range log.Changes {
		c := &log.Changes[i]
		was, seen := before[c.Event]
		switch {
		case c.From == Archived:
			continue // for Twice
		case seen && was != c.From && c.From == "":
			found = append(found, finding(c, "enqueued once more after it was %s", was))
		case seen && was != c.From:
			found = append(found, finding(c, "its change from %s to %s was never recorded", was, c.From))
		case c.From.open() && c.To == Deleted && log.Finished != outbox.Discard:
			found = append(found, finding(c, "removed from the table, and not moved to its history, when it was %s", c.From))
		case c.To == Deleted && (c.From == Failed || c.From == Done && log.Finished == outbox.Archive):
			found = append(found, finding(c, "removed from the table when it was %s", c.From))
		}
		before[c.Event] = c.To
	}
	for _, id := range order {
		c := last[id]
		status, there := rows[id]
		gone := c.To == Archived || c.To == Deleted
		switch {
		case there && gone:
			found = append(found, finding(c, "recorded as %s, and the table says %s", c.To, status))
		case gone && c.To == Archived && history[id] == 0:
			found = append(found, finding(c, "archived, and not in the history"))
		case gone:
		case !there:
			found = append(found, finding(c, "its row is gone, last %s", c.To))
		case c.To.open() && !status.open():
			found = append(found, finding(c, "%s was never recorded, last %s", status, c.To))
		case c.To.open():
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

// Twice returns the events that were done more than once without a replay, or archived
// more than once, or are both in the table and in its history.
//
// It proves that a settle whose answer was lost was not carried out again, and that no
// event is counted twice by whoever reads the history.
func Twice(log *Log) []Finding {
	var (
		found         []Finding
		last, order   = lasts(log)
		rows, history = log.left()
		done          = make(map[outbox.ID]uint64, len(last)) // by transaction
	)
	for i := range log.Changes {
		c := &log.Changes[i]
		tx, was := done[c.Event]
		again := c.From == c.To && (c.To == Done || c.To == Archived)
		switch {
		case was && (again || c.Done()):
			found = append(found, finding(c, "%s once more, after transaction %d", c.To, tx))
		case again && c.To == Archived:
			found = append(found, finding(c, "archived, and not removed from the table"))
		case again:
			found = append(found, finding(c, "done once more"))
		}
		if c.Done() {
			done[c.Event] = c.Tx
		}
	}
	for _, id := range order {
		switch n := history[id]; {
		case n > 1:
			found = append(found, finding(last[id], "%d times in the history", n))
		case n == 1 && rows[id] != "":
			found = append(found, finding(last[id], "in the history, and in the table"))
		}
	}
	return found
}

// Kept returns the events that are done and still in the table, where weft was told to
// archive or to delete them.
func Kept(log *Log) []Finding {
	if log.Finished != outbox.Archive && log.Finished != outbox.Discard {
		return nil
	}
	return ended(log, Done, func(c *Change) Finding { return finding(c, "done, and kept in the table") })
}

// DeadLetters returns the events that ended failed.
func DeadLetters(log *Log) []Finding {
	return ended(log, Failed, func(c *Change) Finding { return finding(c, "ended failed after %d attempts", c.Attempts) })
}

// ended returns what say says of each event that ended as status.
func ended(log *Log, status Status, say func(*Change) Finding) (found []Finding) {
	last, order := lasts(log)
	for _, id := range order {
		if c := last[id]; c.To == status {
			found = append(found, say(c))
		}
	}
	return found
}

// left returns what is left of each event at the end: the status of its row in the table,
// and how many rows it has in the history.
func (l *Log) left() (rows map[outbox.ID]Status, history map[outbox.ID]int) {
	rows, history = make(map[outbox.ID]Status, len(l.Rows)), make(map[outbox.ID]int, len(l.History))
	for _, r := range l.Rows {
		rows[r.Event] = r.Status
	}
	for _, e := range l.History {
		history[e]++
	}
	return rows, history
}

// lasts returns the last change of each event, and the events in the order of their first.
func lasts(log *Log) (last map[outbox.ID]*Change, order []outbox.ID) {
	last = make(map[outbox.ID]*Change, len(log.Rows))
	for i := range log.Changes {
		c := &log.Changes[i]
		if last[c.Event] == nil {
			order = append(order, c.Event)
		}
		last[c.Event] = c
	}
	return last, order
}

// Unprojected returns the events that became done although Elasticsearch had not confirmed
// before a version of their document as new as theirs. Being superseded is no exception: the
// newer event's version is newer. It takes the database's clock and that of the recording
// process for the same: between the answer and the commit it is several ways from process to
// process, which is more than the clocks of one machine are apart.
func Unprojected(log *Log, applied []Applied) []Finding {
	confirmed := map[string]*growth{}
	for _, a := range sorted(applied, func(a *Applied) time.Time { return a.Answered }) {
		if a.wrote() || a.refused() {
			if confirmed[a.ID] == nil {
				confirmed[a.ID] = &growth{}
			}
			confirmed[a.ID].add(a.Answered, max(a.Version, a.ResultVersion))
		}
	}
	var found []Finding
	for i := range log.Changes {
		c := &log.Changes[i]
		if !c.Done() {
			continue
		}
		switch v := confirmed[c.Key.String()].until(c.At.Add(-1)); {
		case v < 0:
			found = append(found, finding(c, "done before Elasticsearch had confirmed a version of its document"))
		case v < c.Version:
			found = append(found, finding(c, "done when Elasticsearch had confirmed no newer version of its document than %d", v))
		}
	}
	return found
}

// growth is how the newest version of one entity or document grew, in the order of time.
type growth struct {
	at      []time.Time
	version []int64
}

func (g *growth) add(at time.Time, version int64) {
	if n := len(g.version); n == 0 || version > g.version[n-1] {
		g.at, g.version = append(g.at, at), append(g.version, version)
	}
}

// until returns the newest version up to a time, -1 when there was none.
func (g *growth) until(t time.Time) int64 {
	if g == nil {
		return -1
	}
	i := sort.Search(len(g.at), func(i int) bool { return g.at[i].After(t) })
	if i == 0 {
		return -1
	}
	return g.version[i-1]
}

// byTime returns applied in the order of sending.
func byTime(applied []Applied) []*Applied {
	return sorted(applied, func(a *Applied) time.Time { return a.Sent })
}

// sorted returns applied in the order of one of its times.
func sorted(applied []Applied, at func(*Applied) time.Time) []*Applied {
	out := make([]*Applied, len(applied))
	for i := range applied {
		out[i] = &applied[i]
	}
	slices.SortStableFunc(out, func(a, b *Applied) int { return at(a).Compare(at(b)) })
	return out
}

// OutOfOrder returns the events that became done while an earlier event of their
// entity was unsettled, at most one for each entity and transaction.
func OutOfOrder(log *Log) []Finding {
	byKey := map[outbox.Key][]*Change{}
	var keys []outbox.Key
	for i := range log.Changes {
		c := &log.Changes[i]
		if byKey[c.Key] == nil {
			keys = append(keys, c.Key)
		}
		byKey[c.Key] = append(byKey[c.Key], c)
	}
	var found []Finding
	for _, k := range keys {
		found = append(found, overtakers(byKey[k])...)
	}
	return found
}

// queued is an event that is neither done nor failed.
type queued struct {
	id      outbox.ID
	version int64
	since   int // position of the transaction that queued it among the entity's changes; -1 before the record
	status  Status
}

// overtakers replays the changes of one entity, a transaction at a time.
func overtakers(changes []*Change) []Finding {
	var (
		found []Finding
		queue = map[outbox.ID]*queued{}
	)
	for start := 0; start < len(changes); {
		end := start
		var newest *Change
		since := -1 // of newest
		for ; end < len(changes) && changes[end].Tx == changes[start].Tx; end++ {
			c := changes[end]
			e := queue[c.Event]
			if e == nil {
				e = &queued{id: c.Event, version: c.Version, since: start}
				// An event that a replay brings back queues up again.
				if c.From != "" && c.From != Failed {
					e.since = -1
				}
				queue[c.Event] = e
			}
			e.status = c.To
			if c.Done() && (newest == nil || c.Version > newest.Version) {
				newest, since = c, e.since
			}
			if !c.To.open() {
				delete(queue, c.Event)
			}
		}
		start = end
		if newest == nil {
			continue
		}
		var passed []*queued
		for _, e := range queue {
			if e.version < newest.Version && e.since <= since {
				passed = append(passed, e)
			}
		}
		if len(passed) > 0 {
			oldest := slices.MinFunc(passed, func(a, b *queued) int { return cmp.Compare(a.version, b.version) })
			found = append(found, finding(newest, "done while earlier events were unsettled: %d, the oldest version %d (event %s, %s)",
				len(passed), oldest.version, oldest.id, oldest.status))
		}
	}
	return found
}
