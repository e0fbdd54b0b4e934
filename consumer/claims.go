package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

// resolve finds out what a lost answer has left behind. Until it has, nothing may
// start: an earlier event of the same entity may be claimed and unknown.
func (r *run) resolve() error {
	n, err := r.p.store.GiveBackUnknown(r.ctx, r.term.Epoch(), r.lanes.all())
	if err != nil {
		r.looks.failed()
		return r.databaseFault("give back", err)
	}
	if err := r.loadWaits(); err != nil {
		return err
	}
	r.orphans = false
	r.looks.soon()
	if n > 0 {
		r.p.log.Info("claims without an answer given back", zap.String("event", "outbox.orphans"), zap.Int("rows", n))
	}
	return nil
}

// look claims up to limit rows of each kind. An idle leader peeks first.
func (r *run) look(limit int) error {
	if r.looks.idle && !r.looks.listing {
		found, err := r.p.store.Peek(r.ctx)
		if err != nil {
			r.looks.failed()
			return r.databaseFault("peek", err)
		}
		r.answered()
		if !found {
			r.looks.nothing()
			return nil
		}
	}
	if r.lanes.older > 0 { // they are ready, at the head, and not to be claimed
		r.looks.stay()
	}
	for r.looks.wantsList() { // a sample may ask for more
		if err := r.nextList(); err != nil {
			r.looks.failed()
			return r.databaseFault("list", err)
		}
	}
	piece := r.looks.take(limit)
	if n := r.looks.wantsAhead(); n > 0 {
		r.looks.ahead = r.beginList(n)
	}
	listed, older := r.choose(piece)
	started := time.Now()
	c, err := r.p.store.Claim(r.ctx, outbox.ClaimRequest{Epoch: r.term.Epoch(), Limit: limit, Listed: listed})
	r.remember(r.p.spans.claim(r.ctx, started, limit, c, err))
	if err != nil {
		r.orphans = true
		r.looks.failed()
		r.looks.forget()
		return r.databaseFault("claim", err)
	}
	r.answered()
	if piece == nil && c.ReadyCandidates < limit {
		r.locked.forget(false)
	}
	if c.DueCandidates < limit {
		r.locked.forget(true)
	}
	r.looks.took(limit, c, r.note(limit, c, older))
	return nil
}

// choose says which rows of a piece to claim, and which events settle with them
// without a claim. What is settled with an event at work is left out. Where an event of
// the entity waits or is locked, each is claimed, to go in turn or be held back; while
// one is at work they are left, and count as locked, so that none passes them.
func (r *run) choose(piece []stack) (claim []uuid.UUID, older map[uuid.UUID][]outbox.Listed) {
	if piece == nil {
		return nil, nil
	}
	claim, older = make([]uuid.UUID, 0, len(piece)), map[uuid.UUID][]outbox.Listed{}
	for _, s := range piece {
		key, last := s.newest().Key, r.lanes.newest(s.newest().Key)
		behind := r.waits.any(key) || len(r.locked[key]) > 0
		switch {
		case last != nil && behind:
			for i := range s {
				r.locked.add(outbox.Blocked{ID: s[i].ID, Key: key, Version: s[i].Version})
			}
		case last != nil && last.Version >= s.newest().Version:
		case behind:
			for i := range s {
				claim = append(claim, s[i].ID)
			}
		default:
			claim = append(claim, s.newest().ID)
			if len(s) > 1 {
				older[s.newest().ID] = s.older()
			}
		}
	}
	return claim, older
}

// note files what a claim has brought, and returns how many of its ready events belong
// to entities that were at work.
func (r *run) note(limit int, c *outbox.Claimed, older map[uuid.UUID][]outbox.Listed) (repeated int) {
	r.looks.ahead.note(c)
	for _, b := range c.Blocked {
		r.locked.add(b)
	}
	for _, events := range [][]outbox.Event{c.Due, c.Ready} {
		for i := range events {
			e := &events[i]
			r.waits.claimed(e)
			r.locked.claimed(e)
			if r.lanes.newest(e.Key) != nil {
				repeated++
			}
			r.lanes.add(*e, older[e.ID])
		}
	}
	if c.DueCandidates < limit && !c.Now.IsZero() {
		r.waits.seen(c.Now)
	}
	r.p.setBlocked(r.waits.entities() + len(r.locked))
	return repeated
}

func (r *run) answered() {
	r.p.pulse.beat()
	r.cutOff = time.Time{}
	if r.faulty {
		r.faulty = false
		r.p.gate.fault("")
		r.p.log.Info("outbox answers", zap.String("event", "outbox.recovered"))
	}
}

// databaseFault swallows what waiting heals and returns what ends the term. It is
// logged once until the database answers again.
func (r *run) databaseFault(what string, err error) error {
	r.p.pulse.beat()
	if errors.Is(err, outbox.ErrFenced) {
		return err
	}
	if cause := context.Cause(r.ctx); cause != nil {
		return cause
	}
	if outbox.Unreachable(err) {
		if r.cutOff.IsZero() {
			r.cutOff = time.Now()
		}
		if d := time.Since(r.cutOff); d > r.p.cfg.CutOff {
			return fmt.Errorf("no connection to the outbox for %v: %w", d.Round(time.Millisecond), err)
		}
	}
	if !r.faulty {
		r.faulty = true
		r.p.gate.fault("outbox: " + err.Error())
		r.p.log.Warn("outbox does not answer", zap.String("event", "outbox.fault"), zap.String("call", what), zap.Error(err))
	}
	return nil
}

// holdBack puts the queued events off that must not pass an earlier one of their
// entity: one that waits for its retry time, or one that somebody else has locked.
func (r *run) holdBack() error {
	if r.waits.entities() == 0 && len(r.locked) == 0 {
		return nil
	}
	until := map[outbox.Key]time.Time{}
	held := r.lanes.cut(func(g *group) int {
		at, waits := r.waits.behind(g.newest())
		if !waits && !r.locked.before(g.newest()) {
			return len(g.events)
		}
		until[g.key] = at
		if len(g.older) > 0 {
			return 0
		}
		return slices.IndexFunc(g.events, func(e outbox.Event) bool {
			_, waits := r.waits.behind(&e)
			return waits || r.locked.before(&e)
		})
	})
	put := make([]outbox.Settlement, len(held))
	for i := range held {
		put[i] = outbox.Settlement{
			Event: &held[i].event, Older: held[i].older,
			Verdict: outbox.Waiting, NotBefore: until[held[i].event.Key], Delay: r.p.cfg.Retry.BaseBackoff,
		}
	}
	return r.settleNow(put)
}

// giveBack returns claimed events that were not sent.
func (r *run) giveBack(events []outbox.Event) error {
	put := make([]outbox.Settlement, len(events))
	for i := range events {
		put[i] = outbox.Settlement{Event: &events[i], Verdict: outbox.GivenBack}
	}
	r.looks.forget()
	return r.settleNow(put)
}

// settleNow settles from the loop. A fault leaves the rows to GiveBackUnknown.
func (r *run) settleNow(put []outbox.Settlement) error {
	if len(put) == 0 {
		return nil
	}
	s, err := r.p.store.Settle(r.ctx, r.term.Epoch(), put)
	if err != nil {
		r.orphans = true
		return r.databaseFault("settle", err)
	}
	for _, w := range s.Waits {
		r.waits.add(w)
	}
	r.p.metrics.mismatch.WithLabelValues(r.p.Name()).Add(float64(s.Mismatch))
	return nil
}

func (r *run) loadWaits() error {
	for {
		r.waits = newWaits()
		err := r.p.store.Waits(r.ctx, r.lanes.all(), r.waits.add)
		if err == nil {
			r.p.pulse.beat()
			r.p.setBlocked(r.waits.entities())
			return nil
		}
		if err := r.databaseFault("load waiting events", err); err != nil {
			return err
		}
		if err := r.upkeep(); err != nil {
			return err
		}
		if err := r.sleep(100*time.Millisecond, r.term.Stopping()); err != nil {
			return err
		}
		select {
		case <-r.term.Stopping():
			return nil // the loop drains next; without waits it must not claim
		default:
		}
	}
}
