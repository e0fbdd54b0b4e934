package history

import (
	"cmp"
	"slices"

	"github.com/samuelhu324-dev/weft/outbox"
)

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
