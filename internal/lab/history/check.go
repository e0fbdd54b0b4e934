package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Finding is one place where the record contradicts an invariant.
type Finding struct {
	Event   uuid.UUID
	Key     outbox.Key
	Version int64
	At      time.Time // zero when it is the end of the run
	What    string
}

// String returns the finding as one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s version %d (event %s): %s", f.Key, f.Version, f.Event, f.What)
}

func finding(c *Change, format string, args ...any) Finding {
	return Finding{Event: c.Event, Key: c.Key, Version: c.Version, At: c.At, What: fmt.Sprintf(format, args...)}
}

// TwoActive returns the claims and settles that show two active instances: under an
// epoch older than one already committed, under one that another owner has used, or
// under none.
func TwoActive(log *Log) []Finding {
	var (
		found  []Finding
		newest int64
		terms  = log.Terms
		owners = map[int64]string{}
	)
	for i := range log.Changes {
		c := &log.Changes[i]
		for len(terms) > 0 && cmp.Or(terms[0].At.Compare(c.At), cmp.Compare(terms[0].Seq, c.Seq)) < 0 {
			newest = max(newest, terms[0].Epoch)
			terms = terms[1:]
		}
		if !c.claim() && !c.Settles() {
			continue
		}
		what := "settle"
		if c.claim() {
			what = "claim"
		}
		owner, known := owners[c.Epoch]
		switch {
		case c.Epoch == 0:
			found = append(found, finding(c, "%s by %q under no epoch", what, c.Owner))
		case c.Epoch < newest:
			found = append(found, finding(c, "%s by %q under epoch %d after epoch %d was committed", what, c.Owner, c.Epoch, newest))
		case known && owner != c.Owner:
			found = append(found, finding(c, "%s by %q under epoch %d of %q", what, c.Owner, c.Epoch, owner))
		}
		newest = max(newest, c.Epoch)
		if !known {
			owners[c.Epoch] = c.Owner
		}
	}
	return found
}

// event is the state of one event at some point of the record.
type event struct {
	id       uuid.UUID
	version  int64
	enqueued int // position of its transaction among the entity's changes; -1 before the record
	status   Status
}

func (e *event) settled() bool { return e.status == Done || e.status == Failed }

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

// overtakers replays the changes of one entity, a transaction at a time.
func overtakers(changes []*Change) []Finding {
	var (
		found  []Finding
		events = map[uuid.UUID]*event{}
	)
	for start := 0; start < len(changes); {
		end := start
		var newest *Change
		for ; end < len(changes) && changes[end].Tx == changes[start].Tx; end++ {
			c := changes[end]
			if events[c.Event] == nil {
				e := &event{id: c.Event, version: c.Version, enqueued: start}
				if c.From != "" {
					e.enqueued = -1
				}
				events[c.Event] = e
			}
			events[c.Event].status = c.To
			if c.To == Done && (newest == nil || c.Version > newest.Version) {
				newest = c
			}
		}
		start = end
		if newest == nil {
			continue
		}
		var passed []*event
		for _, e := range events {
			if e.version < newest.Version && e.enqueued <= events[newest.Event].enqueued && !e.settled() {
				passed = append(passed, e)
			}
		}
		if len(passed) > 0 {
			oldest := slices.MinFunc(passed, func(a, b *event) int { return cmp.Compare(a.version, b.version) })
			found = append(found, finding(newest, "done while earlier events were unsettled: %d, the oldest version %d (event %s, %s)",
				len(passed), oldest.version, oldest.id, oldest.status))
		}
	}
	return found
}

// Enqueued names an event that the producer saw committed.
type Enqueued struct {
	Event   uuid.UUID
	Key     outbox.Key
	Version int64
}

// LostEvents returns the events that did not reach done, and those of acknowledged
// that are not in the record. An event whose commit was answered by an error does not
// belong in acknowledged: nobody knows whether it exists, and when it does, the
// record has it.
func LostEvents(log *Log, acknowledged []Enqueued) []Finding {
	var (
		found []Finding
		last  = map[uuid.UUID]*Change{}
		order []uuid.UUID
		rows  = map[uuid.UUID]Status{}
	)
	for i := range log.Changes {
		c := &log.Changes[i]
		if last[c.Event] == nil {
			order = append(order, c.Event)
		}
		last[c.Event] = c
	}
	for _, r := range log.Rows {
		rows[r.Event] = r.Status
	}
	for _, id := range order {
		c := last[id]
		status, there := rows[id]
		switch {
		case !there:
			found = append(found, finding(c, "its row is gone, last %s", c.To))
		case c.To != Done && status == Done:
			found = append(found, finding(c, "done was never recorded, last %s", c.To))
		case c.To != Done:
			found = append(found, finding(c, "ended %s after %d attempts", c.To, c.Attempts))
		case status != Done:
			found = append(found, finding(c, "recorded as done, and the table says %s", status))
		}
	}
	for _, a := range acknowledged {
		if last[a.Event] == nil {
			found = append(found, Finding{Event: a.Event, Key: a.Key, Version: a.Version, What: "committed by the producer and never recorded"})
		}
	}
	return found
}

// FirstDone returns the first event that became done under epoch or a later one.
func (l *Log) FirstDone(epoch int64) (Change, bool) {
	for _, c := range l.Changes {
		if c.To == Done && c.Settles() && c.Epoch >= epoch {
			return c, true
		}
	}
	return Change{}, false
}
