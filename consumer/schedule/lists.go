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
	severalRows = 4 // of an entity: the longest list is worth its memory
	dueList     = 4_000
	ownList     = 1_000 // of one entity's rows
	// nextBatches is when the next list of a backlog is begun: with enough entities left for
	// so many batches. A list shows again what is left.
	nextBatches = 1

	// When PostgreSQL takes longer than cheapLook to find the first row of a list, it has
	// stepped over dead index entries. From then on lists begin at a cursor, and at the head
	// now and then, for 1/headShare of the time at most. Nor does the search for entities with
	// rows put off take more.
	cheapLook = 5 * time.Millisecond
	passRow   = 2 * time.Microsecond // and a row in flight may take it so long
	headEvery = time.Second
	headShare = 20

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
	switch {
	case c.size < firstLists*shortList:
		return firstLists * c.size
	case taken > severalRows*len(c.ready):
		return longestList
	case c.size < wideList || taken > len(c.ready)*5/4:
		return longList
	default:
		return wideList
	}
}

// slow notes a list that took longer than it may. The next one is of fewer rows. Where that has not helped, or
// the head is known to be expensive, lists begin elsewhere for most of the time, as after an expensive look: at
// the cursor, or from the other end as long as there is none. Where that does not help either, they leave the due
// rows out.
func (c *candidates) slow(now time.Time) {
	rest := now.Add(max(headEvery, headShare*now.Sub(c.askedAt)))
	switch {
	case atHead(&c.asked) && (c.skipping || c.size == shortList):
		c.skipping, c.nextHead, c.blind = true, rest, c.blind || len(c.ends) == 0
	case !atHead(&c.asked) && c.asked.Due > 0:
		c.nextDue = rest
	}
	c.size = halved(c.size)
	if c.asked.Due > 0 {
		c.dueSize = halved(c.dueSize)
	}
}

func halved(size int) int { return max(shortList, size/2) }

// end is the last ready row that a list has shown.
type end struct {
	at  time.Time
	row *outbox.Position
}

// wantsList returns the next list, if it is time for one.
func (c *candidates) wantsList(now time.Time) (r outbox.ListRequest, ok bool) {
	old := c.throttled && now.Sub(c.askedAt) >= throttleList
	if c.listing || now.Before(c.nextList) || !old && (len(c.ready) > c.enough() || c.left() > 0 && !c.taken) {
		return r, false
	}
	r = outbox.ListRequest{Ready: c.size, SuspectAfter: suspectAfter}
	if len(c.due) < c.dueSize/2 && !now.Before(c.nextDue) {
		r.Due = c.dueSize
	}
	if c.skipping && now.Before(c.nextHead) {
		switch {
		case len(c.ready) > 0:
			r.From = cmp.Or(c.lowest(), c.cursor())
		case (len(c.putOffs) > 0 || c.blind) && !c.asked.Newest:
			r.Newest, r.Due = true, 0
		default:
			r.From = c.cursor()
		}
	}
	if c.backwards {
		r = outbox.ListRequest{Ready: shortList, Newest: true}
	}
	c.listing, c.asked, c.askedAt, c.begun = true, r, now, c.tick()
	return r, true
}

// enough returns how many entities may be left when the next list begins.
func (c *candidates) enough() int {
	if !c.more {
		return 0
	}
	return nextBatches * c.last
}

// cursor returns where lists begin while the head is expensive: behind all rows as long as no list has ended.
func (c *candidates) cursor() *outbox.Position {
	if len(c.ends) == 0 {
		return &outbox.Position{Version: math.MaxInt64}
	}
	return c.ends[0].row
}

func (c *candidates) ended(now time.Time, row *outbox.Position) {
	c.ends = append(c.ends, end{now, row})
	for len(c.ends) > 1 && now.Sub(c.ends[1].at) >= lateCommit {
		c.ends = c.ends[1:]
	}
}

// atHead reports whether a list begins at the head of the index.
func atHead(r *outbox.ListRequest) bool { return r.From == nil && !r.Newest }

func position(r outbox.Row) *outbox.Position { at := r.Position(); return &at }

func compareRows(a, b outbox.Row) int { return a.Compare(&b) }

// listed takes a list, which replaces what is left of the last one.
func (c *candidates) listed(now time.Time, l *outbox.List, poll time.Duration) {
	c.listing, c.taken = false, false
	for _, e := range c.ready {
		e.forget()
	}
	c.ready = c.ready[:0]
	c.prune(now)
	head := atHead(&c.asked)
	taken := c.add(now, l.Ready, c.begun, head, inReady, nil)
	c.add(now, l.Due, c.begun, false, inDue, l.Suspects)
	if c.backwards && c.asked.Newest {
		slices.Reverse(c.ready)
		c.backwards, c.more = false, false
		c.nextList = now.Add(min(10*minPoll, poll))
		return
	}

	full := len(l.Ready) >= c.asked.Ready
	dueFull := c.asked.Due > 0 && len(l.Due) >= c.asked.Due
	blocked := 0
	for _, b := range c.barriers {
		blocked += b.blocked
	}
	clog := (full || dueFull || blocked > crowd) && blocked > (len(l.Ready)+len(l.Due))/clogged
	if clog {
		c.wantPutOffs()
	}
	if dueFull {
		c.dueSize = min(2*c.dueSize, dueList)
	}
	if n := len(l.Ready); n > 0 {
		c.ended(now, position(l.Ready[n-1]))
	}
	if head {
		c.blind = false
		c.skipping = clog || l.Look > cheapLook+time.Duration(c.passing)*passRow
		c.nextHead = now.Add(max(headEvery, headShare*l.Look))
	}
	c.more = full && c.left() > 0
	took := now.Sub(c.askedAt) // a list that shows nothing to do is not half of the time
	switch {
	case c.more && c.throttled:
		c.pause, c.size = 0, firstLists*shortList
	case c.more:
		c.pause, c.size = 0, c.longer(taken)
	case full:
		c.pause = min(max(10*minPoll, took), poll)
		if !clog { // all of it is in flight, in parts of a batch that the list cannot know: the others come behind
			c.size = c.longer(taken)
		}
	case c.left() == 0:
		c.pause = min(max(2*c.pause, minPoll, took), poll)
	default:
		c.pause = min(max(minPoll, took), poll)
	}
	if !full {
		c.size = max(shortList, min(c.size, 4*len(l.Ready)))
	}
	c.nextList = now.Add(c.pause)
	if c.pause == poll {
		c.nextList = Tick(now, poll)
	}
}

// Tick returns the next multiple of every on the wall clock. An idle process with several
// pipelines wakes up once for what all of them do at the same tick.
func Tick(now time.Time, every time.Duration) time.Time {
	return now.Add(every - time.Duration(now.UnixNano())%every)
}
