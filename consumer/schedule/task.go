package schedule

import (
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// repeatAfter is until a call is repeated at the earliest that has met a fault which a smaller one would, too.
	repeatAfter = time.Second
	// A call is quick that takes 1/quickShare of the time that was too long.
	quickShare = 8
)

// size is how many rows, ids or entities the next call is for: half as many after one that took
// longer than it may. What lists, look-ups and searches may miss doubles again; put-offs and wakes do
// so after a quick call, as one in vain costs more than many small ones.
type size struct{ n, least, most int }

func (z *size) halve() { z.n = max(z.least, z.n/2) }
func (z *size) grow()  { z.n = min(2*z.n, z.most) }

// task is a call that is made again and again, one at a time.
type task struct {
	size
	going bool          // it is not answered yet
	begun time.Time     // the last one
	next  time.Time     // not before
	slow  time.Duration // that the last one took which took too long
}

func (t *task) due(now time.Time) bool { return !t.going && !now.Before(t.next) }

func (t *task) begin(now time.Time) { t.going, t.begun = true, now }

// growQuick lets the next call be larger after one that was so quick that this is safe.
func (t *task) growQuick(now time.Time) {
	if now.Sub(t.begun) < t.slow/quickShare {
		t.grow()
	}
}

// end ends the call. One that has met err may be made again at once where a smaller one may help, and seldom where
// the database refuses it.
func (t *task) end(now time.Time, err error) {
	t.going, t.next = false, now
	took, was := now.Sub(t.begun), t.n
	if outbox.Slow(err) {
		t.slow = took
		t.halve()
	}
	switch {
	case err == nil, t.n < was:
	case outbox.Refused(err):
		t.next = now.Add(sweepEvery)
	default:
		t.next = now.Add(max(repeatAfter, took))
	}
}

// listing is a list that is made again and again.
type listing struct {
	task           // its size is that of the ready rows
	serial  uint64 // of the one that is being made, or else of the last one
	passing int    // rows in flight that it passes over
}

// keyCalls are entities for each of which a call is to be made, one after the other.
type keyCalls struct {
	task
	keys []outbox.Key             // each once; a call that is under way is for the first
	in   map[outbox.Key]time.Time // not before
}

func newKeyCalls(z size) keyCalls {
	return keyCalls{task: task{size: z}, in: map[outbox.Key]time.Time{}}
}

func (e *keyCalls) has(key outbox.Key) bool {
	_, yes := e.in[key]
	return yes
}

func (e *keyCalls) add(key outbox.Key) {
	if !e.has(key) {
		e.in[key] = time.Time{}
		e.keys = append(e.keys, key)
	}
}

// start starts the call for the first entity that may have it now, unless one is under way.
func (e *keyCalls) start(now time.Time, may func(outbox.Key) bool) (key outbox.Key, ok bool) {
	if e.going {
		return key, false
	}
	i := slices.IndexFunc(e.keys, func(key outbox.Key) bool { return !now.Before(e.in[key]) && may(key) })
	if i < 0 {
		return key, false
	}
	e.keys[0], e.keys[i] = e.keys[i], e.keys[0]
	e.begin(now)
	return e.keys[0], true
}

// under reports whether the call for an entity is under way.
func (e *keyCalls) under(key outbox.Key) bool { return e.going && e.keys[0] == key }

// end ends the call that is under way, with err. When it is to be made again, that is after the others.
func (e *keyCalls) end(now time.Time, again bool, err error) (key outbox.Key) {
	e.task.end(now, err)
	key, e.keys = e.keys[0], e.keys[1:]
	delete(e.in, key)
	if again || err != nil {
		e.keys, e.in[key] = append(e.keys, key), e.next
	}
	return key
}
