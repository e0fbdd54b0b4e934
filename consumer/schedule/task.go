package schedule

import (
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// size is how many rows, ids or entities the next call is for: half as many after one that took
// longer than it may. What lists, look-ups and searches may miss doubles again; put-offs and wakes
// go on as small as they are until the term ends, as a call in vain costs more than many small ones.
type size struct{ n, least, most int }

func (z *size) halve() { z.n = max(z.least, z.n/2) }
func (z *size) grow()  { z.n = min(2*z.n, z.most) }

// task is a call that is made again and again, one at a time.
type task struct {
	size
	going bool      // it is not answered yet
	begun time.Time // the last one
	next  time.Time // not before
}

func (t *task) due(now time.Time) bool { return !t.going && !now.Before(t.next) }

func (t *task) begin(now time.Time) { t.going, t.begun = true, now }

// keyCalls are entities for each of which a call is to be made, one after the other.
type keyCalls struct {
	size
	keys  []outbox.Key // each once; a call that is under way is for the first
	in    map[outbox.Key]bool
	going bool
}

func newKeyCalls(z size) keyCalls { return keyCalls{size: z, in: map[outbox.Key]bool{}} }

func (e *keyCalls) add(key outbox.Key) {
	if !e.in[key] {
		e.in[key] = true
		e.keys = append(e.keys, key)
	}
}

// begin begins the call for the first entity that may have it now, unless one is under way.
func (e *keyCalls) begin(may func(outbox.Key) bool) (key outbox.Key, ok bool) {
	if e.going {
		return key, false
	}
	i := slices.IndexFunc(e.keys, may)
	if i < 0 {
		return key, false
	}
	e.keys[0], e.keys[i] = e.keys[i], e.keys[0]
	e.going = true
	return e.keys[0], true
}

// under reports whether the call for an entity is under way.
func (e *keyCalls) under(key outbox.Key) bool { return e.going && e.keys[0] == key }

// end ends the call that is under way. When it is to be made again, that is after the others.
func (e *keyCalls) end(again bool) (key outbox.Key) {
	key, e.keys, e.going = e.keys[0], e.keys[1:], false
	delete(e.in, key)
	if again {
		e.add(key)
	}
	return key
}

// sort brings the entities in an order whose call is not under way, and drops the last ones
// beyond most.
func (e *keyCalls) sort(most int, order func(a, b outbox.Key) int) {
	from := e.keys
	if e.going {
		from = from[1:]
	}
	slices.SortFunc(from, order)
	for n := len(e.keys) - 1; n >= most; n-- {
		delete(e.in, e.keys[n])
		e.keys = e.keys[:n]
	}
}
