package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// headStart is how long what is not urgent waits at the start of a term: its statements, which no session has planned yet,
// would delay the first events.
const headStart = 250 * time.Millisecond

// lead is the work of one term. A fault of one projection's tables does not stop the others.
func (d *daemon) lead(ctx context.Context, t *leader.Term) error {
	g, ctx := errgroup.WithContext(ctx)
	until, stop := context.WithCancel(ctx) // the graceful end, for what has nothing in flight
	defer stop()
	g.Go(func() error {
		select {
		case <-t.Stopping():
		case <-ctx.Done():
		}
		stop()
		return nil
	})
	g.Go(func() error { d.records(until); return nil })
	for _, l := range d.projectors {
		g.Go(func() error {
			if err := d.takeOver(until, l, t.Epoch()); err != nil || until.Err() != nil {
				return err
			}
			r := d.newRebuilder(l, t)
			if err := r.join(until); err != nil || until.Err() != nil {
				return err
			}
			select { // events projected before the destination exists would meet an outage
			case <-l.attempted:
			case <-until.Done():
			}
			g.Go(func() error { return l.reclaimer.Run(until, t.Epoch()) })
			for _, run := range []func(){
				func() { d.upkeep(until, l, t.Epoch()) }, func() { d.scrub(until, l) }, func() { d.load(until, l) }, func() { r.run(until) },
			} {
				g.Go(func() error { sleep(until, headStart); run(); return nil })
			}
			return r.pump(ctx, t)
		})
	}
	err := g.Wait()
	if errors.Is(err, outbox.ErrFenced) && t.Check() == nil {
		d.pool.Reset() // its connections may lead to another server than the lock session, as to what was the primary
	}
	return err
}

// takeOver occupies the table and reclaims the leases of older terms.
func (d *daemon) takeOver(ctx context.Context, l projector, epoch int64) error {
	err := d.insist(ctx, l, func(tries int, err error) {
		switch {
		case occupied(err) && tries%300 == 0: // a minute
			d.log.Error("another group works on the table; waiting until it stops",
				zap.String("event", "outbox.occupied"), zap.String("projection", l.proj.Name()), zap.Error(err))
		case !occupied(err) && tries == 0:
			d.log.Warn("takeover waits until the leases of the old term are reclaimed",
				zap.String("event", "reclaim.fault"), zap.String("projection", l.proj.Name()), zap.Error(err))
		}
	}, func() error {
		return l.store.Occupy(ctx, epoch)
	}, func() error {
		_, err := l.reclaimer.RunOnce(ctx, epoch)
		return err
	})
	if err != nil {
		return fmt.Errorf("takeover of %s: %w", l.store.Table(), err)
	}
	return nil
}

// insist makes calls without which the term cannot begin to work, one after the other, until all
// succeed or ctx ends. Meanwhile the instance is not ready and says why; while another group works
// on the table its projection says so. It returns an error where the term is over: a newer one has
// begun, or no call is answered, as another instance's may be. A locked table is no reason, as
// whoever comes next would stand before it, too.
func (d *daemon) insist(ctx context.Context, l projector, failed func(tries int, err error), calls ...func() error) error {
	defer l.takeover.Rest()
	defer l.trouble.Store(nil)
	var silence outbox.Silence
	pause := backoff.NewExponentialBackOff() // short at first: a proxy may still lead half of the sessions to the old primary
	pause.InitialInterval, pause.MaxInterval = 25*time.Millisecond, 200*time.Millisecond
	for tries := 0; ; tries++ {
		l.takeover.Beat()
		var err error
		for _, call := range calls {
			err = call()
			if silent := silence.After(err, consumer.DefaultCutOff); silent != nil {
				return silent
			}
			if err != nil {
				break
			}
		}
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, outbox.ErrFenced) {
			return err
		}
		l.trouble.Store(&err)
		failed(tries, err)
		sleep(ctx, pause.NextBackOff())
	}
}

func occupied(err error) bool {
	_, ok := errors.AsType[*outbox.OccupiedError](err)
	return ok
}
