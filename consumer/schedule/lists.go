package schedule

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	minPoll = 4 * time.Millisecond // pause after a list that showed less than it was asked for

	// A list is short at first, so that the first settle of a term comes soon, and grows
	// while there is a backlog; the more so the more events of an entity it shows, of which
	// only the newest need be projected.
	shortList   = 256
	firstLists  = 8 // the second is so many times as long as the first
	wideList    = 10_000
	longList    = 40_000
	longestList = 80_000
	severalRows = 4     // of an entity: the longest list is worth its memory
	dueList     = 4_000 // and up to longList where most stay in lists
	ownList     = 1_000 // of one entity's rows

	// When PostgreSQL takes longer than cheapLook to find the first row of a list, or that there
	// is none, it has stepped over dead index entries. From then on lists begin at a cursor, and
	// look backs at the head are made beside them, for 1/headShare of the time at most, and for
	// 1/backShare after one that has found something. They continue while one takes longer than longLook.
	// The search for entities with rows put off takes 1/headShare, too.
	cheapLook = 5 * time.Millisecond
	longLook  = 100 * time.Millisecond
	passRow   = 2 * time.Microsecond // and a row in flight may take it so long
	headEvery = time.Second
	headShare = 20
	backShare = 4

	// Of two rows the one with the lower version may be committed later. So a cursor is the
	// end of a list that is at least this old.
	lateCommit = 250 * time.Millisecond

	// When more than 1/clogged of the listed rows have to wait, and the list is full or more
	// than crowd rows wait, they are put off in the table. Until that is done lists begin
	// behind them.
	clogged = 4
	crowd   = 1_000
)

// longer returns the size of the next list after a full one with taken rows that may go. The
// third list is a long one, as a sample of the backlog.
func (c *candidates) longer(taken int) int {
	entities := len(c.queues[inReady])
	switch {
	case c.list.n < firstLists*shortList:
		return firstLists * c.list.n
	case taken > severalRows*entities:
		return longestList
	case c.list.n < wideList || taken > entities*5/4:
		return longList
	default:
		return wideList
	}
}

// start is where lists begin: at the head of the index, or elsewhere for most of the time while
// the head is expensive, or full of rows that wait.
type start struct {
	head      time.Time // no list begins at the head before, and no look back; zero: each may
	expensive bool      // the leader looks back, and no list begins at the head
	due       time.Time // lists leave due rows out until then
	blind     bool      // no list has shown where the rows behind the head are
	ends      []end     // of the lists of the last lateCommit, and of the one before them
}

// end is the last ready row that a list has shown.
type end struct {
	at  time.Time
	row *outbox.Position
}

// cursor returns where lists begin while the head is expensive: behind all rows as long as no list has ended.
func (s *start) cursor() *outbox.Position {
	if len(s.ends) == 0 {
		return &outbox.Position{Version: math.MaxInt64}
	}
	return s.ends[0].row
}

func (s *start) ended(now time.Time, row *outbox.Position) {
	s.ends = append(s.ends, end{now, row})
	for len(s.ends) > 1 && now.Sub(s.ends[1].at) >= lateCommit {
		s.ends = s.ends[1:]
	}
}

// atHead reports whether a list begins at the head of the index.
func atHead(r *outbox.ListRequest) bool { return r.From == nil && !r.Newest }

// rest returns when a list at the head that has taken a time may be made again.
func rest(now time.Time, took time.Duration) time.Time {
	return now.Add(max(headEvery, headShare*took))
}

func position(r outbox.Row) *outbox.Position { at := r.Position(); return &at }

// lowest returns the position of the last list's first row that is still to be leased; nil
// when there is none.
func (c *candidates) lowest() *outbox.Position {
	for _, e := range c.queues[inReady] {
		if len(e.rows) > 0 {
			return position(slices.MinFunc(e.rows, outbox.Row.Compare))
		}
	}
	return nil
}

// wantsList returns the next list, if it is time for one. A list shows again what is left of the one before, so
// the next list of a backlog is begun while there are enough entities for one more batch.
func (c *candidates) wantsList(now time.Time) (r outbox.ListRequest, ok bool) {
	ready, enough := len(c.queues[inReady]), 0
	if c.more {
		enough = c.last
	}
	old := c.flow.rate > 0 && now.Sub(c.list.begun) >= throttleList
	if !c.list.due(now) || !old && (ready > enough || c.left(inAgain) > 0 && !c.taken) {
		return r, false
	}
	r = outbox.ListRequest{Ready: c.list.n}
	if len(c.queues[inDue]) < c.dueRows.n/2 && !now.Before(c.start.due) {
		r.Due = c.dueRows.n
	}
	if c.start.expensive || now.Before(c.start.head) {
		switch {
		case ready > 0:
			r.From = cmp.Or(c.lowest(), c.start.cursor())
			if last := c.asked.From; last != nil && r.From.Compare(*last) < 0 { // a look back has shown the lowest row
				r.From = last
			}
		case (len(c.putOffs.keys) > 0 || c.start.blind) && !c.asked.Newest:
			r.Newest, r.Due = true, 0
		default:
			r.From = c.start.cursor()
		}
	}
	if c.backwards {
		r = outbox.ListRequest{Ready: shortList, Newest: true}
	}
	c.asked = r
	return r, true
}

// wantsLookBack returns the next look back, if one is due. It finds rows that were committed after higher
// versions. No other list waits for it.
func (c *candidates) wantsLookBack(now time.Time) (r outbox.ListRequest, ok bool) {
	if !c.start.expensive || c.back.going || now.Before(c.start.head) || len(c.queues[inAgain]) > c.last {
		return r, false
	}
	return outbox.ListRequest{Ready: c.back.n, Back: true}, true
}

// lookedBack adds the rows of a look back that are before the cursor, which no list shows. When all rows of a
// full one are, lists continue at its end.
func (c *candidates) lookedBack(now time.Time, l *outbox.List) {
	cursor := c.start.cursor()
	before, _ := slices.BinarySearchFunc(l.Ready, *cursor, func(r outbox.Row, at outbox.Position) int { return r.Position().Compare(at) })
	taken := c.add(now, l.Ready[:before], c.back.serial, false, inAgain, nil).taken
	full := before == c.back.n
	if full {
		c.back.grow()
		if taken < before-before/clogged {
			c.wantPutOffs()
		}
	}
	if before > 0 && (full && taken > 0 || len(c.start.ends) == 0) {
		c.start.ends, c.start.blind = []end{{now, position(l.Ready[before-1])}}, false
	}
	// Reading many rows costs more than the server's time, and less than the way of an answer from far away takes.
	took := max(l.Took, min(now.Sub(c.back.begun), 4*l.Took))
	c.start.head, c.start.expensive = time.Time{}, expensiveHead(l.Look, c.back.passing) || l.Took > longLook
	switch {
	case c.start.expensive && taken > 0:
		c.start.head = now.Add(backShare * took)
	case c.start.expensive:
		c.start.head = now.Add(headShare * took)
	}
}

// expensiveHead reports whether a look for the first ready row has stepped over dead index entries. passing is
// how many rows in flight it has passed over.
func expensiveHead(look time.Duration, passing int) bool {
	return look > cheapLook+time.Duration(passing)*passRow
}

// slow notes a list that took longer than it may. The next one is of fewer rows. Where that has not helped, or
// the head is known to be expensive, lists begin elsewhere for most of the time, as after an expensive look: at
// the cursor, or from the other end as long as there is none. Where that does not help either, they leave the due
// rows out.
func (c *candidates) slow(now time.Time) {
	again := rest(now, now.Sub(c.list.begun))
	switch head := atHead(&c.asked); {
	case head && (!c.start.head.IsZero() || c.asked.Ready == c.list.least):
		c.start.head, c.start.expensive, c.start.blind = again, true, c.start.blind || len(c.start.ends) == 0
	case !head && c.asked.Due > 0:
		c.start.due = again
	}
	if c.asked.Due > 0 {
		c.dueRows.halve()
	}
}

// listed takes a list, which replaces what is left of the last one.
func (c *candidates) listed(now time.Time, l *outbox.List) {
	c.taken = false
	for _, e := range c.queues[inReady] {
		if e.queue = none; c.showsOwn(e) {
			c.push(e, inAgain)
		} else {
			e.forget()
		}
	}
	c.queues[inReady] = c.queues[inReady][:0]
	c.prune(now)
	head := atHead(&c.asked)
	ready := c.add(now, l.Ready, c.list.serial, head, inReady, nil)
	due := c.add(now, l.Due, c.list.serial, false, inDue, l.Suspects)
	if c.backwards && c.asked.Newest {
		slices.Reverse(c.queues[inReady])
		c.backwards, c.more = false, false
		c.list.next = now.Add(min(10*minPoll, c.cfg.Poll))
		return
	}

	full := len(l.Ready) >= c.asked.Ready
	dueFull := c.asked.Due > 0 && len(l.Due) >= c.asked.Due
	blocked := ready.blocked + due.blocked
	if full && c.longer(ready.taken) <= c.asked.Ready && !ready.goes || dueFull && !due.goes {
		blocked += c.barStuck(now)
	}
	clog := (full || dueFull || blocked > crowd) && blocked > (len(l.Ready)+len(l.Due))/clogged
	if clog {
		c.wantPutOffs()
	}
	switch {
	case dueFull && (c.dueRows.n < dueList || due.stays > len(l.Due)/2): // the others are behind them
		c.dueRows.grow()
	case !dueFull:
		c.dueRows.n = min(c.dueRows.n, dueList)
	}
	if n := len(l.Ready); n > 0 {
		c.start.ended(now, position(l.Ready[n-1]))
	}
	if head {
		c.start.blind, c.start.head, c.start.expensive = false, time.Time{}, expensiveHead(l.Look, c.list.passing) && len(c.start.ends) > 0
		switch {
		case c.start.expensive:
			c.start.head = now.Add(headShare * l.Look)
		case clog:
			c.start.head = rest(now, l.Look)
		}
	}
	c.pace(now, len(l.Ready), ready.taken, clog)
}

// pace decides how long the next list is, and when it is made, after one of so many rows, of which taken may go.
func (c *candidates) pace(now time.Time, rows, taken int, clog bool) {
	full := rows >= c.asked.Ready
	c.more = full && c.left(inAgain) > 0
	least := max(minPoll, now.Sub(c.list.begun)) // a list that shows nothing to do is not half of the time
	switch {
	case c.more && c.flow.rate > 0: // rows go slowly: lists are short, and made again every second
		c.pause, c.list.n = 0, firstLists*shortList
	case c.more:
		c.pause, c.list.n = 0, c.longer(taken)
	case full:
		c.pause = max(10*minPoll, least)
		if !clog { // all of it is in flight, in parts of a batch that the list cannot know: the others come behind
			c.list.n = c.longer(taken)
		}
	case c.left(inAgain) == 0:
		c.pause = max(2*c.pause, least)
	default:
		c.pause = least
	}
	if !full {
		c.list.n = max(shortList, min(c.list.n, 4*rows))
	}
	c.pause = min(c.pause, c.cfg.Poll)
	c.list.next = now.Add(c.pause)
	if c.pause == c.cfg.Poll {
		c.list.next = Tick(now, c.cfg.Poll)
	}
}

// Tick returns the next multiple of every on the wall clock. An idle process with several
// pipelines wakes up once for what all of them do at the same tick.
func Tick(now time.Time, every time.Duration) time.Time {
	return now.Add(every - time.Duration(now.UnixNano())%every)
}
