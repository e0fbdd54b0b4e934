package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/shards"
	"github.com/samuelhu324-dev/weft/leader"
)

// vacantAfter is how long a shard has no leader before every instance tries for it, in heartbeats: a
// hand-over takes less.
const vacantAfter = 4

// seenLately is how old the sign of life of an instance may be.
const seenLately = leader.AnnounceEvery + 1500*time.Millisecond

// settleIn is how long shares are uneven at least before a shard is handed over: by then the others
// have seen it, too, those that stay back have ended the try that they had begun, and an instance
// that died was not seen lately.
const settleIn = 5 * time.Second

// instancesTimeout is how long the balancer waits for the shards' lists of instances.
const instancesTimeout = time.Second

// giveUpRest is how long an instance keeps a shard that nobody took when it was handed over, unless
// instances come or go.
const giveUpRest = time.Minute

// balancer has the instance lead its share of the shards.
type balancer struct {
	*process
	view   shards.View
	since  []time.Time // each shard has had no leader; zero while it has one
	uneven time.Time   // since when the shares are; zero while they are not
	given  int         // the shard that is being handed over; -1 for none
	epoch  int64       // of the term that gives it up
	rest   time.Time   // nothing is handed over before
	fault  bool        // that was logged last
}

func newBalancer(p *process) *balancer {
	n := len(p.shards)
	return &balancer{process: p, given: -1, since: make([]time.Time, n),
		view: shards.View{Me: p.cfg.Instance, Leaders: make([]string, n), Vacant: make([]bool, n), Kept: make([]bool, n)}}
}

// run decides at each heartbeat until ctx ends.
func (b *balancer) run(ctx context.Context) error {
	return every(ctx, b.cfg.Leader.Heartbeat, func(ctx context.Context) {
		if err := b.step(ctx); err != nil && ctx.Err() == nil && !b.fault {
			b.fault = true
			b.log.Warn("shards not balanced; trying again", zap.String("event", "shards.fault"), zap.Error(err))
		} else if err == nil {
			b.fault = false
		}
	})
}

// step looks who leads which shard, and does what follows from that. It hands nothing over while it
// does not know who else is there.
func (b *balancer) step(ctx context.Context) error {
	unknown := b.look(ctx)
	plan := shards.Decide(b.view)
	b.view.Uneven = plan.Uneven
	switch {
	case !plan.Uneven:
		b.uneven = time.Time{}
	case b.uneven.IsZero():
		b.uneven = time.Now()
	}
	for n, d := range b.shards {
		d.elector.Campaign(plan.Campaign[n])
	}
	if b.given >= 0 {
		outcome := shards.HandedOver(b.view.Me, b.epoch, b.view.Leaders[b.given], b.shards[b.given].elector.Status().Epoch)
		b.view.Kept[b.given] = outcome == shards.Returned
		if outcome == shards.Returned {
			b.rest = time.Now().Add(giveUpRest)
		}
		if outcome != shards.Underway {
			b.given = -1
		}
	}
	if unknown != nil {
		return unknown
	}
	if plan.GiveUp < 0 || b.given >= 0 || time.Now().Before(b.rest) || time.Since(b.uneven) < max(settleIn, 3*b.cfg.Leader.Heartbeat) {
		return nil
	}
	return b.giveUp(ctx, plan.GiveUp)
}

// look brings the view up to date. Without an answer of a database the instances stay what they were;
// whether a shard has a leader each elector knows by itself.
func (b *balancer) look(ctx context.Context) error {
	live, err := b.live(ctx)
	if err == nil && !slices.Equal(live, b.view.Live) {
		b.view.Live, b.rest = live, time.Time{}
		clear(b.view.Kept)
	}
	for n := range b.shards {
		holder := b.leaderOf(n)
		if holder == b.view.Me && b.view.Leaders[n] != holder {
			b.uneven = time.Time{} // whoever left it may be stopping, and still be listed
		}
		switch b.view.Leaders[n] = holder; {
		case holder != "":
			b.since[n] = time.Time{}
		case b.since[n].IsZero():
			b.since[n] = time.Now()
		}
		b.view.Vacant[n] = holder == "" && time.Since(b.since[n]) > vacantAfter*b.cfg.Leader.Heartbeat
	}
	return err
}

// live returns the instances that were seen lately in any shard whose database answers: one may not reach
// the database of another, or be refused there. One that only drains any more is about to stop.
func (b *balancer) live(ctx context.Context) ([]string, error) {
	var g errgroup.Group
	answers, errs := make([][]leader.Instance, len(b.shards)), make([]error, len(b.shards))
	for n, d := range b.shards {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, instancesTimeout)
			defer cancel()
			answers[n], errs[n] = leader.Instances(ctx, d.pool, d.cfg.Group)
			return nil
		})
	}
	_ = g.Wait()
	if !slices.Contains(errs, nil) {
		return nil, errors.Join(errs...)
	}
	var live []string
	for _, in := range slices.Concat(answers...) {
		if in.SeenWithin(seenLately) && (in.Role == leader.RoleLeader || in.Role == leader.RoleStandby) {
			live = append(live, in.Name)
		}
	}
	slices.Sort(live)
	return slices.Compact(live), nil
}

// giveUp hands a shard over as weft resign does: the leader drains, settles and frees the lock.
func (b *balancer) giveUp(ctx context.Context, n int) error {
	d := b.shards[n]
	st := d.elector.Status()
	if st.Role != leader.RoleLeader {
		return nil
	}
	why := fmt.Sprintf("another of %d instances leads fewer shards", len(b.view.Live))
	if _, err := leader.Resign(ctx, d.pool, d.cfg.Group, leader.Resignation{Epoch: st.Epoch, By: b.view.Me, Why: why}); err != nil {
		return err
	}
	b.given, b.epoch = n, st.Epoch
	d.log.Info("handing the shard over", zap.String("event", "shards.hand_over"), zap.Int64("epoch", st.Epoch), zap.Strings("instances", b.view.Live))
	return nil
}
