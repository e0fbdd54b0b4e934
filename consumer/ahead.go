package consumer

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// aheadShare is when the next list is begun: with one of so many of the last one's
// entities left.
const aheadShare = 3

// ahead is a list that is being made. It belongs to the loop; only the goroutine that
// makes it sends the answer.
type ahead struct {
	limit   int
	answer  chan listAnswer    // one, always
	claimed map[uuid.UUID]bool // ready events claimed since it was begun: it may show them
	blocked bool               // a row was found locked since then: it may be missing
}

type listAnswer struct {
	events     []outbox.Listed
	look, cost time.Duration
	err        error
}

// beginList begins a list of up to limit events.
func (r *run) beginList(limit int) *ahead {
	a := &ahead{limit: limit, answer: make(chan listAnswer, 1), claimed: map[uuid.UUID]bool{}}
	r.workers.Go(func() {
		start := time.Now()
		events, look, err := r.p.store.List(r.ctx, limit)
		a.answer <- listAnswer{events, look, time.Since(start), err}
	})
	return a
}

// nextList replaces the list that is used up by the one begun ahead, or by a new one.
func (r *run) nextList() error {
	a := r.looks.ahead
	if a == nil {
		a = r.beginList(r.looks.size)
	}
	r.looks.ahead = nil
	got := <-a.answer // within the deadline of a call
	if got.err != nil {
		return got.err
	}
	if !a.blocked {
		r.locked.keep(got.events) // what is not on the list comes after what is
	}
	short := len(got.events) < a.limit
	if len(a.claimed) > 0 {
		got.events = slices.DeleteFunc(got.events, func(l outbox.Listed) bool { return a.claimed[l.ID] })
	}
	r.looks.listed(got.events, short, got.look, got.cost)
	return nil
}

// note files what a claim has brought that a list may show.
func (a *ahead) note(c *outbox.Claimed) {
	if a == nil {
		return
	}
	for i := range c.Ready {
		a.claimed[c.Ready[i].ID] = true
	}
	a.blocked = a.blocked || len(c.Blocked) > 0
}
