package consumer

import (
	"bytes"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// locked remembers the rows that a claim found and could not take, because somebody
// else holds their locks, until one takes them or a look at everything no longer
// finds them. It belongs to one goroutine.
type locked map[outbox.Key][]outbox.Blocked

func (l locked) add(b outbox.Blocked) {
	if !slices.ContainsFunc(l[b.Key], func(x outbox.Blocked) bool { return x.ID == b.ID }) {
		l[b.Key] = append(l[b.Key], b)
	}
}

func (l locked) claimed(e *outbox.Event) {
	if list, ok := l[e.Key]; ok {
		list = slices.DeleteFunc(list, func(x outbox.Blocked) bool { return x.ID == e.ID })
		if l[e.Key] = list; len(list) == 0 {
			delete(l, e.Key)
		}
	}
}

// forget drops the rows of one kind: a look has seen all of that kind, and what is
// still locked is in its answer.
func (l locked) forget(due bool) {
	for key, list := range l {
		list = slices.DeleteFunc(list, func(x outbox.Blocked) bool { return x.Due == due })
		if l[key] = list; len(list) == 0 {
			delete(l, key)
		}
	}
}

// keep forgets the ready rows that are not on a list of what is ready.
func (l locked) keep(list []outbox.Listed) {
	if len(l) == 0 {
		return
	}
	ready := make(map[uuid.UUID]bool, len(list))
	for i := range list {
		ready[list[i].ID] = true
	}
	for key, rows := range l {
		rows = slices.DeleteFunc(rows, func(x outbox.Blocked) bool { return !x.Due && !ready[x.ID] })
		if l[key] = rows; len(rows) == 0 {
			delete(l, key)
		}
	}
}

// before reports whether a row is locked that comes before e.
func (l locked) before(e *outbox.Event) bool {
	return slices.ContainsFunc(l[e.Key], func(x outbox.Blocked) bool { return earlier(x.Version, x.ID, e) })
}

// earlier is the order of an entity's events as far as version and id tell it.
func earlier(version int64, id uuid.UUID, e *outbox.Event) bool {
	return version < e.Version || version == e.Version && bytes.Compare(id[:], e.ID[:]) < 0
}

// waits remembers which entities have an event that waits for its retry time, so
// that a later event of such an entity does not pass. It is filled when a term
// begins and kept up by claims and settles; it never asks the database about the
// backlog. It belongs to one goroutine.
type waits struct {
	byKey   map[outbox.Key][]waitingEvent
	scanned time.Time // database clock
}

type waitingEvent struct {
	id      uuid.UUID
	version int64
	at      time.Time // database clock
}

func newWaits() *waits { return &waits{byKey: map[outbox.Key][]waitingEvent{}} }

// entities returns how many entities have a waiting event.
func (w *waits) entities() int { return len(w.byKey) }

func (w *waits) add(x outbox.Wait) {
	w.byKey[x.Key] = append(w.byKey[x.Key], waitingEvent{x.ID, x.Version, x.At})
}

// any reports whether an event of an entity waits.
func (w *waits) any(key outbox.Key) bool { return len(w.byKey[key]) > 0 }

// claimed forgets an event that has been claimed.
func (w *waits) claimed(e *outbox.Event) {
	list, ok := w.byKey[e.Key]
	if !ok {
		return
	}
	list = slices.DeleteFunc(list, func(x waitingEvent) bool { return x.id == e.ID })
	if len(list) == 0 {
		delete(w.byKey, e.Key)
		return
	}
	w.byKey[e.Key] = list
}

// seen forgets the events that should have turned up by now: complete is the
// database's time of a look that reached the end of the due rows. What was due
// then and was not claimed has been changed by hand. The scan is worth one a second.
func (w *waits) seen(complete time.Time) {
	if complete.Sub(w.scanned) < time.Second {
		return
	}
	w.scanned = complete
	for key, list := range w.byKey {
		list = slices.DeleteFunc(list, func(x waitingEvent) bool { return !x.at.After(complete) })
		if len(list) == 0 {
			delete(w.byKey, key)
			continue
		}
		w.byKey[key] = list
	}
}

// behind returns the retry time that e must wait for, because an earlier event of its
// entity does; ok is false when it may go.
func (w *waits) behind(e *outbox.Event) (at time.Time, ok bool) {
	for _, x := range w.byKey[e.Key] {
		if earlier(x.version, x.id, e) && (!ok || x.at.After(at)) {
			at, ok = x.at, true
		}
	}
	return at, ok
}
