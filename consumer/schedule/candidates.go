package schedule

import (
	"maps"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// entity is the state of one entity: the rows to lease next, as lists have shown them, and
// its last lease.
type entity struct {
	key     outbox.Key
	rows    []outbox.Row    // none: it is no candidate
	begun   uint64          // serial of the list that showed them first
	sure    bool            // that list began at the head: nothing earlier of the entity was ready
	own     outbox.Position // of the last row that its own list has shown
	suspect bool
	queue   queue // none while it is busy: it comes back with its rows

	leased []outbox.Row
	flying bool      // the lease is not over
	since  time.Time // it began
	landed uint64    // serial
	left   uint64    // serial of the last landing that left leased rows open
}

// compact sorts the rows, and of a row that several lists have shown keeps the last showing.
func (e *entity) compact() {
	if len(e.rows) < 2 {
		return
	}
	slices.SortStableFunc(e.rows, outbox.Row.Compare)
	kept := e.rows[:0]
	for i, r := range e.rows {
		if i+1 == len(e.rows) || e.rows[i+1].ID != r.ID {
			kept = append(kept, r)
		}
	}
	e.rows = kept
}

// queue says in which queue an entity stands.
type queue uint8

const (
	none queue = iota
	// These take turns.
	inReady
	inDue
	inAgain // it has more, or could not go before
	// Each of these has a batch without others.
	inApart   // whole requests have failed with it, or it failed while the breaker was open
	inSuspect // it may end the process: beside nothing but what hangs or is tried apart
	// This is no queue: a batch of any of them that shows whether the destination takes anything at all.
	trial

	byTurns = none    // for pop: from those that take turns
	turns   = inAgain // how many they are
)

// setAside reports whether the entity waits for a batch without others.
func (e *entity) setAside() bool { return e.queue == inApart || e.queue == inSuspect }

// forget drops the entity's rows, and its place in the queue.
func (e *entity) forget() { e.rows, e.own, e.queue, e.suspect = nil, outbox.Position{}, none, false }

// candidates are the entities to choose from. Serials order lists and leases.
type candidates struct {
	cfg      *Config
	serial   uint64
	entities map[outbox.Key]*entity
	queues   [inSuspect + 1][]*entity
	turn     queue // whose it was
	flow     throttle

	barriers    map[outbox.Key]*barrier
	quarantined map[outbox.Key]bool // until their release: each has a barrier
	lookUps     keyCalls            // entities whose own rows are to be listed
	putOffs     keyCalls            // entities of which rows are to be put off
	putOff      map[outbox.Key]bool // entities of which rows are put off, as far as known
	search      task                // for such entities
	named       outbox.ID           // of the last one that a search has named; zero to begin anew

	list, back listing // back at the head, beside lists that begin at a cursor
	dueRows    size    // most due rows of the next list
	asked      outbox.ListRequest
	more       bool // the last list did not show all
	taken      bool // something has been leased since it was here
	last       int  // entities of the last batch
	pause      time.Duration
	start      start

	backwards bool // the next list is of the newest rows, and they go first
}

func newCandidates(cfg *Config) candidates {
	return candidates{
		cfg: cfg, entities: map[outbox.Key]*entity{}, barriers: map[outbox.Key]*barrier{},
		lookUps: newKeyCalls(size{ownList, shortList, ownList}),
		putOffs: newKeyCalls(size{cfg.Page, 1, cfg.Page}), putOff: map[outbox.Key]bool{},
		list:    listing{task: task{size: size{shortList, shortList, longestList}}},
		dueRows: size{dueList, shortList, longList},
		back:    listing{task: task{size: size{shortList, shortList, wideList}}},
		search:  task{size: size{putOffNames, 1, putOffNames}},
	}
}

func (c *candidates) tick() uint64 {
	c.serial++
	return c.serial
}

// drop forgets all that lists have shown. What is put off no list shows again: it is looked up.
func (c *candidates) drop() {
	for key, e := range c.entities {
		if c.showsOwn(e) {
			c.lookUp(key)
		}
		e.forget()
	}
	clear(c.queues[:])
	c.more = false
}

// showsOwn reports whether an entity's own list has shown rows of it that are put off, as far as known.
func (c *candidates) showsOwn(e *entity) bool { return c.putOff[e.key] && e.own != (outbox.Position{}) }

// left returns the number of entities in the queues up to one.
func (c *candidates) left(last queue) (n int) {
	for _, q := range c.queues[:last+1] {
		n += len(q)
	}
	return n
}

// prune drops entities that neither a queue, a lease nor the current list needs, and
// barriers that have expired.
func (c *candidates) prune(now time.Time) {
	maps.DeleteFunc(c.entities, func(_ outbox.Key, e *entity) bool {
		return !e.flying && e.landed < c.list.serial && len(e.rows) == 0 && e.queue == none
	})
	maps.DeleteFunc(c.barriers, func(_ outbox.Key, b *barrier) bool {
		b.behind = 0
		return now.After(b.until) && (b.tries == 0 || now.Sub(b.until) > sweepEvery)
	})
}

// chunk is how many entities share an allocation.
const chunk = 256

// shown counts the rows that a list has shown.
type shown struct {
	blocked int  // wait behind a barrier
	taken   int  // may go, now or when their entity is free
	stays   int  // stay in lists: in flight, could not be settled, or of an entity that waits for a batch without others or cannot be put off
	goes    bool // one of them can be leased now
}

// add makes rows candidates. The rows of one entity form one candidate, in the place of its
// first row.
func (c *candidates) add(now time.Time, rows []outbox.Row, begun uint64, sure bool, to queue, suspects map[outbox.ID]bool) (n shown) {
	var fresh []entity
	for i := range rows {
		r := &rows[i]
		e := c.entities[r.Key]
		if c.blocks(now, r) {
			n.blocked++
			if b := c.barriers[r.Key]; r.ID == b.at.ID || now.Before(c.putOffs.in[r.Key]) {
				n.stays++
			}
			continue
		}
		if e != nil && e.flies(r, begun) {
			if e.flying {
				n.stays++
			}
			continue
		}
		n.taken++
		if e == nil {
			if len(fresh) == cap(fresh) {
				fresh = make([]entity, 0, min(chunk, len(rows)-i))
			}
			fresh = append(fresh, entity{key: r.Key})
			e = &fresh[len(fresh)-1]
			c.entities[r.Key] = e
		}
		switch {
		case len(e.rows) == 0:
			e.rows, e.begun, e.sure = rows[i:i+1:i+1], begun, sure && e.queue == none
			c.push(e, to)
		case e.sure && sure && e.begun < begun: // what this list does not show again is beyond its end
			e.rows, e.begun = rows[i:i+1:i+1], begun
		default:
			if len(e.rows) == cap(e.rows) { // lists show again what is left
				e.compact()
				e.rows = slices.Grow(e.rows, len(e.rows)) // not to sort again after a few more
			}
			e.rows = append(e.rows, *r)
			e.sure = e.sure && sure && e.begun == begun
		}
		e.suspect = e.suspect || suspects[r.ID]
		if e.setAside() {
			n.stays++
		} else {
			n.goes = n.goes || !c.busy(e)
		}
	}
	return n
}

// push puts an entity at the end of a queue, unless it stands in one.
func (c *candidates) push(e *entity, to queue) {
	if e.queue == none {
		e.queue = to
		c.queues[to] = append(c.queues[to], e)
	}
}

// flies reports whether a row was leased when its list was begun, or has been since.
func (e *entity) flies(r *outbox.Row, begun uint64) bool {
	if !e.flying && e.landed <= begun {
		return false
	}
	_, leased := slices.BinarySearchFunc(e.leased, *r, outbox.Row.Compare)
	return leased
}

// pop removes the first entity of a queue, or byTurns of the one whose turn it is.
func (c *candidates) pop(from queue) *entity {
	if from == byTurns {
		for range turns {
			c.turn = c.turn%turns + 1
			if from = c.turn; len(c.queues[from]) > 0 {
				break
			}
		}
	}
	q := c.queues[from]
	if len(q) == 0 {
		return nil
	}
	c.queues[from], q[0].queue = q[1:], none
	return q[0]
}

// putBack makes the entity that was popped last from a queue the next one.
func (c *candidates) putBack(e *entity, from queue) {
	if from == byTurns {
		from = c.turn
		c.turn--
	}
	e.queue = from
	c.queues[from] = slices.Insert(c.queues[from], 0, e)
}

// begin begins the lease of at most limit of an entity's rows; the rest waits for its
// landing. Unless lists have shown that no earlier row is open, the database is to look for one.
func (c *candidates) begin(now time.Time, e *entity, limit int) outbox.Group {
	e.compact()
	check := !e.sure || e.left > e.begun
	if c.cfg.Strict { // no event is superseded, and no list shows those that have failed
		limit, check = 1, true
	}
	n := min(limit, len(e.rows))
	e.suspect = e.suspect && len(e.rows) > n
	e.leased, e.rows, e.flying, e.since = e.rows[:n:n], e.rows[n:], true, now
	return outbox.Group{Key: e.key, Rows: e.leased, Check: check}
}

// land ends the lease of an entity; all tells whether every row of it is settled. Rows that
// were set aside meanwhile may go.
func (c *candidates) land(e *entity, all bool) {
	e.flying, e.landed = false, c.tick()
	if !all {
		e.left = e.landed
	}
	c.free(e.key)
}
