package schedule

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// recheck bounds how long a barrier is kept before the database is asked again.
	recheck = 5 * time.Second
	// sweepEvery is the pause between two searches for entities with rows put off. While
	// there are some the pause is shorter, as the row in their way may vanish: recheck after the
	// last of them, and sweepShare for each that may go, as far as known, but does not, as each costs a list.
	sweepEvery = time.Minute
	sweepShare = 50 * time.Millisecond
	// putOffNames is of how many ids a search names the entities with rows put off.
	putOffNames = 100
	// maxPutOffs bounds the entities that are queued for a put-off, maxPutOff those that are known to have rows put off:
	// searches find the others.
	maxPutOffs, maxPutOff = 1_000, 100_000
	// stuckAfter is how long a lease lasts until it counts as one that hangs: rows behind it that fill the lists are put
	// off, and a suspect waits for it no more.
	stuckAfter = time.Second
	// forever is until a quarantine ends: longer than any term.
	forever = 100 * 365 * 24 * time.Hour
)

// barrier lets rows of an entity wait without asking the database again.
type barrier struct {
	at     outbox.Position // of the earliest row in the way
	self   bool            // that one has to wait, too: it could not be settled
	tries  int             // times in a row that it could not
	until  time.Time
	behind int // rows behind the one in the way, as the last list has shown: they can be put off
}

// Quarantine replaces the entities that somebody has put into quarantine: none of their events is
// leased. The rows of a released one that were put off are looked up; a list shows the others.
func (s *Scheduler) Quarantine(now time.Time, keys []outbox.Key) {
	c, changed := &s.c, false
	in := make(map[outbox.Key]bool, len(keys))
	for _, key := range keys {
		in[key] = true
		delete(s.apart, key) // it is not tried at all
		if c.quarantined[key] {
			continue
		}
		changed = true
		c.barriers[key] = &barrier{at: outbox.Position{Version: math.MinInt64}, self: true, until: now.Add(forever)}
		if e := c.entities[key]; e != nil {
			e.rows, e.suspect = nil, false
		}
	}
	var free []outbox.Key
	for key := range c.quarantined {
		if !in[key] {
			free = append(free, key)
		}
	}
	slices.SortFunc(free, func(a, b outbox.Key) int { return cmp.Or(cmp.Compare(a.Type, b.Type), a.ID.Compare(b.ID)) })
	c.quarantined = in
	for _, key := range free {
		c.lift(key)
	}
	if (changed || len(free) > 0) && !c.list.going {
		c.list.next = now
	}
}

// blocks reports whether a row has to wait behind a barrier. It removes the barrier when the
// row is the one that was in the way and may go now.
func (c *candidates) blocks(now time.Time, r *outbox.Row) bool {
	b := c.barriers[r.Key]
	switch {
	case b == nil || !now.Before(b.until) || r.Position().Compare(b.at) < 0:
		return false
	case r.ID == b.at.ID && !b.self:
		delete(c.barriers, r.Key)
		return false
	default:
		if r.ID != b.at.ID {
			b.behind++
		}
		return true
	}
}

// bar notes the obstacle of a group. The rows before it may go; a later list shows the
// others again.
func (c *candidates) bar(now time.Time, e *entity, o *outbox.Obstacle) {
	switch {
	case c.quarantined[e.key]:
		return
	case o.Ready || o.Wait == 0 && !o.Foreign:
		c.lookUp(e.key)
		return
	}
	wait := min(max(o.Wait, minPoll), recheck)
	if o.Wait == 0 { // another worker's claim, without a lease or after its end
		wait = recheck
	}
	c.barriers[e.key] = &barrier{at: o.Position, until: now.Add(wait)}
	e.rows, e.own = nil, outbox.Position{}
	before := slices.IndexFunc(e.leased, func(r outbox.Row) bool { return r.Position().Compare(o.Position) > 0 })
	if before > 0 {
		e.rows, e.begun, e.sure = e.leased[:before:before], c.list.serial, false
	}
}

// barStuck lets the rows behind leases that last long wait until these end, and those of an entity that is set aside
// wait for its first one. It returns how many.
func (c *candidates) barStuck(now time.Time) (n int) {
	for key, e := range c.entities {
		stuck := e.flying && now.Sub(e.since) >= stuckAfter
		if len(e.rows) == 0 || !stuck && !e.setAside() {
			continue
		}
		e.compact()
		at := e.rows[0].Position()
		if stuck {
			at = e.leased[len(e.leased)-1].Position()
		}
		before := slices.IndexFunc(e.rows, func(r outbox.Row) bool { return r.Position().Compare(at) > 0 })
		if before < 0 { // there is one, or all were committed late
			continue
		}
		b := c.barriers[key]
		if b == nil {
			b = &barrier{}
			c.barriers[key] = b
		}
		b.at, b.self, b.until = at, true, now.Add(recheck)
		b.behind += len(e.rows) - before
		n += len(e.rows) - before
		e.rows = e.rows[:before:before]
	}
	return n
}

// hold delays an entity that could not be settled, longer each time.
func (c *candidates) hold(now time.Time, e *entity, at outbox.Position) {
	if c.quarantined[e.key] {
		return
	}
	b := c.barriers[e.key]
	if b == nil || !b.self {
		b = &barrier{self: true}
		c.barriers[e.key] = b
	}
	b.at, b.until = at, now.Add(c.cfg.Retry.ceiling(b.tries))
	b.tries++
	e.rows, e.own = nil, outbox.Position{}
}

// lift removes the barrier of an entity. Its rows that were put off are looked up, unless some are left of those that
// the last look-up has shown.
func (c *candidates) lift(key outbox.Key) {
	delete(c.barriers, key)
	e := c.entities[key]
	known := e != nil && len(e.rows) > 0 && e.rows[0].Position().Compare(e.own) <= 0
	if c.putOff[key] && !known {
		c.lookUp(key)
	}
}

// lookUp asks for the list of an entity's own rows. Until it is here the entity is not leased: what
// lists show of it may be a part that has to wait behind the others.
func (c *candidates) lookUp(key outbox.Key) {
	if !c.quarantined[key] {
		c.lookUps.add(key)
	}
}

// lookedUp takes the list of an entity's own rows.
func (c *candidates) lookedUp(now time.Time, key outbox.Key, rows []outbox.Row, suspects map[outbox.ID]bool) {
	c.lookUps.grow()
	if len(rows) == 0 {
		delete(c.putOff, key)
	}
	c.add(now, rows, c.tick(), false, inDue, suspects)
	if e := c.entities[key]; e != nil && len(rows) > 0 {
		e.own = *position(slices.MaxFunc(rows, outbox.Row.Compare))
	}
	c.free(key)
}

// notePutOff notes that an entity has rows put off.
func (c *candidates) notePutOff(key outbox.Key) {
	if len(c.putOff) < maxPutOff {
		c.putOff[key] = true
	}
}

// atRest reports whether nothing of an entity is in flight: its rows must stay as they were
// leased, and its own list would lack those.
func (c *candidates) atRest(key outbox.Key) bool {
	e := c.entities[key]
	return e == nil || !e.flying
}

// busy reports whether an entity must not be leased now.
func (c *candidates) busy(e *entity) bool {
	return e.flying || c.lookUps.has(e.key) || c.putOffs.under(e.key)
}

// free lets an entity go that was busy.
func (c *candidates) free(key outbox.Key) {
	if e := c.entities[key]; e != nil && len(e.rows) > 0 {
		c.push(e, inAgain)
	}
}

// wantPutOffs queues the entities with rows behind a barrier for a put-off, the one with the most
// such rows first, but after one that is under way.
func (c *candidates) wantPutOffs() {
	behind := map[outbox.Key]int{}
	for key, b := range c.barriers {
		if b.behind > 0 {
			behind[key] = b.behind
			c.putOffs.add(key)
		}
	}
	q := &c.putOffs
	if q.going {
		behind[q.keys[0]] = math.MaxInt
	}
	slices.SortFunc(q.keys, func(a, b outbox.Key) int { return cmp.Compare(behind[b], behind[a]) })
	kept := min(len(q.keys), maxPutOffs)
	for _, key := range q.keys[kept:] {
		delete(q.in, key)
	}
	q.keys = q.keys[:kept]
}

// wantsPutOff returns the entity whose rows to put off next, behind its barrier.
func (c *candidates) wantsPutOff(now time.Time) (key outbox.Key, ok bool) {
	may := func(key outbox.Key) bool { // rows in flight must stay as they were leased
		b, e := c.barriers[key], c.entities[key]
		return b == nil || c.atRest(key) || e.leased[len(e.leased)-1].Position().Compare(b.at) <= 0
	}
	for {
		key, ok = c.putOffs.start(now, may)
		if !ok || c.barriers[key] != nil {
			return key, ok
		}
		c.putOffs.end(now, false, nil) // nothing is in the way any more
	}
}

// PutOff takes the answer to DoPutOff. Where more of the entity's rows may be left, it comes again, after the
// others.
func (s *Scheduler) PutOff(now time.Time, n int, err error) {
	key := s.c.putOffs.end(now, n >= s.c.putOffs.n, err)
	if s.answered(now, err) && n >= s.c.putOffs.n {
		s.c.putOffs.growQuick(now)
	}
	if n > 0 || err != nil && !outbox.Answered(err) { // the answer that is lost may tell of some
		s.c.notePutOff(key)
		if s.c.barriers[key] == nil {
			s.c.lookUp(key)
		}
		if soon := now.Add(recheck); soon.Before(s.c.search.next) {
			s.c.search.next = soon
		}
	}
	s.c.free(key)
}

// PutOffNamed takes the answer to DoNamePutOff: entities that may go, each of which costs a list, and those that have
// to wait; last is the id to go on behind, or zero when these are the last ones. After them come the first again: what
// is in the way of a page may stay for ever.
func (s *Scheduler) PutOffNamed(now time.Time, free, waiting []outbox.Key, last outbox.ID, err error) {
	search := &s.c.search
	search.end(now, err)
	if !s.answered(now, err) {
		return
	}
	var pause time.Duration
	for _, key := range waiting {
		s.c.notePutOff(key)
	}
	for _, key := range free {
		s.c.notePutOff(key)
		if !s.c.quarantined[key] { // else its release has it looked up
			s.c.lookUp(key)
			pause += sweepShare
		}
	}
	switch n := len(free) + len(waiting); {
	case n == 0 && !s.c.named.IsZero(): // they come at once
	case n == 0:
		pause = sweepEvery
	case n < search.n: // they come next
		pause = max(pause, recheck)
	}
	s.c.named = last
	search.grow()
	search.next = now.Add(max(min(pause, sweepEvery), headShare*now.Sub(search.begun)))
}
