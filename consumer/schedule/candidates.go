package schedule

import (
	"maps"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// suspectAfter is how many consecutive reclaims mark an event as the possible cause of
// crashes.
const suspectAfter = 3

// entity is the state of one entity: the rows to lease next, as lists have shown them, and
// its last lease.
type entity struct {
	key     outbox.Key
	rows    []outbox.Row // none: it is no candidate
	begun   uint64       // serial of the list that showed them first
	shown   uint64       // and of the one that showed them last
	sure    bool         // that list began at the head: nothing earlier of the entity was ready
	suspect bool
	aside   bool // not in a queue, but its rows outlive the list that showed them
	queue   queue

	leased []outbox.Row
	check  bool   // whether the database is to look for earlier rows
	flying bool   // the lease is not over
	landed uint64 // serial
	left   uint64 // serial of the last landing that left leased rows open
}

// compact sorts the rows, and of a row that several lists have shown keeps the last showing.
func (e *entity) compact() {
	if len(e.rows) < 2 {
		return
	}
	slices.SortStableFunc(e.rows, compareRows)
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
	inReady
	inDue
	inAgain // it has more, or could not go before
)

// forget drops the entity's rows, and its place in the queue.
func (e *entity) forget() { e.rows, e.queue, e.aside, e.suspect = nil, none, false, false }

// candidates are the entities to choose from. Serials order lists and leases.
type candidates struct {
	strict   bool // see Config
	serial   uint64
	entities map[outbox.Key]*entity
	ready    []*entity
	due      []*entity
	again    []*entity
	turn     int // whose it is
	barriers map[outbox.Key]*barrier

	listing  bool
	asked    outbox.ListRequest
	askedAt  time.Time
	passing  int    // rows in flight that the list passes over
	begun    uint64 // of the list that is being made, or else of the last one
	size     int    // of the next list
	dueSize  int    // most due rows of it
	ownSize  int    // most rows of the next look-up
	more     bool   // the last list did not show all
	taken    bool   // something has been leased since it was here
	last     int    // entities of the last batch
	pause    time.Duration
	nextList time.Time

	backwards bool  // the next list is of the newest rows, and they go first
	ends      []end // of the lists of the last lateCommit, and of the one before them
	throttled bool  // rows go slowly: lists are short, and made again every second
	skipping  bool  // the head is expensive, or full of rows that wait
	nextHead  time.Time
	blind     bool      // no list has shown where the rows behind the head are
	nextDue   time.Time // lists leave due rows out until then

	quarantines int // of the barriers

	lookUps  map[outbox.Key]bool // entities whose own rows are to be listed
	toLookUp []outbox.Key        // the same, in turn
	looking  uint64              // serial of the list of the first one's; 0 when there is none
	putOffs  []outbox.Key        // entities of which rows are to be put off
	putting  bool                // rows of the first of them are
	putOff   map[outbox.Key]bool // entities of which rows are put off, as far as known
	nextOff  time.Time           // when such entities are looked for
	naming   bool                // they are
	names    int                 // of so many ids at most
	namedAt  time.Time           // when that was begun
}

func newCandidates(strict bool) candidates {
	return candidates{
		strict: strict, size: shortList, dueSize: dueList, ownSize: ownList, names: putOffNames, entities: map[outbox.Key]*entity{}, barriers: map[outbox.Key]*barrier{}, putOff: map[outbox.Key]bool{}, lookUps: map[outbox.Key]bool{},
	}
}

func (c *candidates) tick() uint64 {
	c.serial++
	return c.serial
}

// drop forgets all that lists have shown.
func (c *candidates) drop() {
	for _, e := range c.entities {
		e.forget()
	}
	c.ready, c.due, c.again, c.more = nil, nil, nil, false
}

// left returns the number of entities in the queues.
func (c *candidates) left() int { return len(c.ready) + len(c.due) + len(c.again) }

// lowest returns the position of the last list's first row that is still to be leased; nil
// when there is none.
func (c *candidates) lowest() *outbox.Position {
	for _, e := range c.ready {
		if len(e.rows) > 0 {
			return position(slices.MinFunc(e.rows, compareRows))
		}
	}
	return nil
}

// prune drops entities that neither a queue, a lease nor the current list needs, and
// barriers that have expired.
func (c *candidates) prune(now time.Time) {
	maps.DeleteFunc(c.entities, func(_ outbox.Key, e *entity) bool {
		return !e.flying && e.landed < c.begun && len(e.rows) == 0 && e.queue == none
	})
	maps.DeleteFunc(c.barriers, func(_ outbox.Key, b *barrier) bool {
		b.blocked = 0
		return now.After(b.until) && (b.tries == 0 || now.Sub(b.until) > sweepEvery)
	})
}

// chunk is how many entities share an allocation.
const chunk = 256

// add makes rows candidates. The rows of one entity form one candidate, in the place of its
// first row. It returns how many rows may go.
func (c *candidates) add(now time.Time, rows []outbox.Row, begun uint64, sure bool, to queue, suspects map[outbox.ID]bool) (taken int) {
	var fresh []entity
	for i := range rows {
		r := &rows[i]
		e := c.entities[r.Key]
		if c.blocks(now, r) || e != nil && e.flies(r, begun) {
			continue
		}
		taken++
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
			if e.shown < begun {
				e.compact()
			}
			e.rows = append(e.rows, *r)
			e.sure = e.sure && sure && e.begun == begun
		}
		e.shown = begun
		e.suspect = e.suspect || suspects[r.ID]
	}
	return taken
}

// push puts an entity at the end of a queue, unless it stands in one.
func (c *candidates) push(e *entity, to queue) {
	if e.queue == none {
		e.queue = to
		q := c.line(to)
		*q = append(*q, e)
	}
}

func (c *candidates) line(q queue) *[]*entity {
	return [...]*[]*entity{inReady: &c.ready, inDue: &c.due, inAgain: &c.again}[q]
}

// flies reports whether a row was leased when its list was begun, or has been since.
func (e *entity) flies(r *outbox.Row, begun uint64) bool {
	if !e.flying && e.landed <= begun {
		return false
	}
	_, leased := slices.BinarySearchFunc(e.leased, *r, compareRows)
	return leased
}

// take removes up to limit entities and page rows from the queues, which take turns, and
// begins their leases. It sets aside a busy entity, until it is free, and one
// for which refuse returns true.
func (c *candidates) take(limit, page int, refuse func(*entity) bool) (out []*entity) {
	rows := 0
	for len(out) < limit && rows < page && c.left() > 0 {
		e := c.pop()
		switch {
		case len(e.rows) == 0:
		case c.quarantined(e.key):
			e.forget()
		case c.busy(e), refuse(e):
			e.aside = true
		default:
			c.begin(e, page-rows)
			rows += len(e.leased)
			out = append(out, e)
		}
	}
	c.last, c.taken = len(out), c.taken || len(out) > 0
	return out
}

// pop removes the first entity of the queue whose turn it is.
func (c *candidates) pop() *entity {
	for {
		c.turn = c.turn%3 + 1
		if q := c.line(queue(c.turn)); len(*q) > 0 {
			e := (*q)[0]
			*q, e.queue = (*q)[1:], none
			return e
		}
	}
}

// bring returns an entity that is aside, if it is still a candidate and may go. One that is in
// quarantine is forgotten, so that a list makes it a candidate again once it is released.
func (c *candidates) bring(key outbox.Key) *entity {
	e := c.entities[key]
	switch {
	case e == nil || !e.aside || c.busy(e) || len(e.rows) == 0:
		return nil
	case c.quarantined(key):
		e.forget()
		return nil
	}
	return e
}

// begin begins the lease of at most limit of an entity's rows; the rest waits for its
// landing.
func (c *candidates) begin(e *entity, limit int) {
	e.compact()
	e.check = !e.sure || e.left > e.begun
	if c.strict { // no event is superseded, and no list shows those that have failed
		limit, e.check = 1, true
	}
	e.leased, e.flying, e.suspect = e.rows, true, e.suspect && len(e.rows) > limit
	if len(e.rows) > limit {
		e.leased, e.rows = e.rows[:limit:limit], e.rows[limit:]
		e.aside = true
	} else {
		e.rows, e.aside = nil, false
	}
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
