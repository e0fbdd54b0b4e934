package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

const (
	pollPeriod = 20 * time.Millisecond
	calmPeriod = 100 * time.Millisecond
	// calmTimeout bounds what weft needs to be well again after a fault, with waits
	// for retries and the start of a process in it.
	calmTimeout = 90 * time.Second
	// successorTimeout bounds a takeover; the slowest is that of a frozen leader.
	successorTimeout = 40 * time.Second
	calmBacklog      = 300 // events that are claimed or could be
	freshHeartbeat   = 2500 * time.Millisecond
	// restedTerm is when the loser of the term before competes again: it rests for a
	// heartbeat, so that others can win.
	restedTerm = 1500 * time.Millisecond
)

// injection is one step of the schedule as it was carried out.
type injection struct {
	Step     Step
	Instance string // at which it was aimed
	Leader   bool   // it led
	Epoch    int64  // of the term before
	At       time.Time
	Accepts  time.Time // a restarted server took work again
	Healed   time.Time
	Calm     time.Time // everything was well again
	Skipped  string    // why it was not done
	Note     string
}

// errSkip is why a fault cannot be injected now.
type errSkip string

func (e errSkip) Error() string { return string(e) }

// step is what the status line says of the nemesis.
type step struct {
	mu   sync.Mutex
	text string
}

func (s *step) set(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = fmt.Sprintf(format, args...)
}

func (s *step) get() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

// torment injects the faults of the schedule, one after the other, each into calm.
func (r *run) torment(ctx context.Context) error {
	schedule := newSchedule(r.opts.Seed, r.opts.Only)
	began := time.Now()
	of := ""
	if r.opts.Faults > 0 {
		of = fmt.Sprintf(" of %d", r.opts.Faults)
	}
	r.step.set("waiting for calm")
	if err := r.calm(ctx); err != nil {
		return err
	}
	for r.opts.Faults == 0 || len(r.injections) < r.opts.Faults {
		if r.opts.Duration > 0 && time.Since(began) >= r.opts.Duration {
			return nil
		}
		i := &injection{Step: schedule.next()}
		r.injections = append(r.injections, i)
		r.step.set("fault %d%s %s", i.Step.N, of, i.Step.Kind)
		if err := await.Sleep(ctx, i.Step.Pause); err != nil {
			return err
		}
		start := time.Now()
		if err := r.inject(ctx, i); err != nil {
			return fmt.Errorf("fault %v: %w", i.Step, err)
		}
		if i.Skipped != "" {
			r.console.Line("%4d  %-28s skipped: %s", i.Step.N, i.Step.Kind, i.Skipped)
			continue
		}
		healed := time.Now()
		if err := r.calm(ctx); err != nil {
			return fmt.Errorf("after fault %v: %w", i.Step, err)
		}
		i.Calm = time.Now()
		r.console.Line("%4d  %-28s %-2s epoch %-4d %6.1f s, calm after %.1f s%s", i.Step.N, i.Step.Kind, i.Instance, i.Epoch,
			healed.Sub(start).Seconds(), i.Calm.Sub(healed).Seconds(), i.Note)
		if r.snapshot != nil && r.snapshot.over() {
			r.snapshot.close()
			r.snapshot = nil
		}
	}
	return nil
}

// inject aims and carries out one step. When it returns the fault is healed.
func (r *run) inject(ctx context.Context, i *injection) error {
	l, err := r.leader(ctx)
	if err != nil {
		return err
	}
	m := r.member(l.instance)
	if m == nil {
		return fmt.Errorf("the leader %q is no instance of this run", l.instance)
	}
	if i.Step.Standby {
		if m = r.other(m); m == nil {
			i.Skipped = "there is no standby"
			return nil
		}
	}
	i.Instance, i.Leader, i.Epoch = m.name, m.name == l.instance, l.epoch
	if i.At, err = r.now(ctx); err != nil {
		return err
	}
	err = r.carryOut(ctx, m, i)
	if skip, ok := errors.AsType[errSkip](err); ok {
		i.Skipped, err = string(skip), nil
	}
	i.Healed = time.Now()
	return err
}

// calm waits until everything is well: all instances are ready, one of them leads, is
// close behind the writer and settles another event (one whose breaker is open is ready).
func (r *run) calm(ctx context.Context) error {
	var epoch int64
	err := await.Await(ctx, calmTimeout, calmPeriod, "calm", func(ctx context.Context) error {
		if err := r.supervise(ctx); err != nil {
			return err
		}
		l, err := r.leader(ctx)
		switch {
		case err != nil:
			return err
		case l.released:
			return errors.New("nobody leads")
		case l.beat > freshHeartbeat:
			return fmt.Errorf("the last heartbeat of %s is %v old", l.instance, l.beat)
		case l.term < restedTerm:
			return fmt.Errorf("the term of %s is %v old", l.instance, l.term)
		}
		for _, m := range r.members {
			if err := readyNow(ctx, m.instance); err != nil {
				return fmt.Errorf("%s is not ready: %w", m.name, err)
			}
		}
		backlog, err := r.backlog(ctx)
		if err == nil && backlog > calmBacklog {
			err = fmt.Errorf("%d events are claimed or could be", backlog)
		}
		epoch = l.epoch
		return err
	})
	if err != nil {
		return err
	}
	return r.settles(ctx, epoch)
}

// backlog counts the events that are claimed or could be.
func (r *run) backlog(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = r.place.pool.QueryRow(ctx, `
select (select count(*) from `+outboxTable+` where status = 'pending' and next_retry_at is null)
     + (select count(*) from `+outboxTable+` where status = 'pending' and next_retry_at <= now())
     + (select count(*) from `+outboxTable+` where status = 'processing')`).Scan(&n)
	return n, err
}

// succeeded waits for the first event that was settled under a newer epoch.
func (r *run) succeeded(ctx context.Context, epoch int64) error {
	newer := func(ctx context.Context) error {
		l, err := r.leader(ctx)
		if err == nil && l.epoch <= epoch {
			err = fmt.Errorf("epoch %d is still the newest", l.epoch)
		}
		return err
	}
	if err := await.Await(ctx, successorTimeout, pollPeriod, "successor", newer); err != nil {
		return err
	}
	return r.settles(ctx, epoch+1)
}

// settles waits for another event to become done under epoch or a later one.
func (r *run) settles(ctx context.Context, epoch int64) error {
	position, err := r.position(ctx)
	if err != nil {
		return err
	}
	return await.Await(ctx, successorTimeout, pollPeriod, "settled event", func(ctx context.Context) error {
		log, err := history.Since(ctx, r.place.pool, outboxTable, group, position)
		if err != nil {
			return err
		}
		if _, ok := log.FirstDone(epoch); !ok {
			return fmt.Errorf("no event is settled under epoch %d or later", epoch)
		}
		return nil
	})
}

// position is where the record is, as soon as the database says so.
func (r *run) position(ctx context.Context) (seq int64, err error) {
	err = await.Await(ctx, successorTimeout, pollPeriod, "position of the record", func(ctx context.Context) (err error) {
		seq, err = history.Position(ctx, r.place.pool)
		return err
	})
	return seq, err
}

// watch shows where things are until ctx ends.
func (r *run) watch(ctx context.Context) {
	for await.Sleep(ctx, time.Second) == nil {
		l, err := r.leader(ctx)
		leads := fmt.Sprintf("%s leads (epoch %d)", l.instance, l.epoch)
		if err != nil {
			leads = "PostgreSQL is away"
		} else if l.released {
			leads = "nobody leads"
		}
		waiting, failed := r.unsettled(ctx)
		produced := r.writer.ledger.produced()
		r.console.Refresh(fmt.Sprintf("%6.0f s  %s  produced %d  done %d  lag %d  failed %d  %s",
			time.Since(r.began).Seconds(), r.step.get(), produced, max(0, produced-waiting-failed), waiting, failed, leads))
	}
}

// unsettled counts what is neither done nor failed, and what failed; 0 when nobody answers.
func (r *run) unsettled(ctx context.Context) (waiting, failed int) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	_ = r.place.pool.QueryRow(ctx, `
select (select count(*) from `+outboxTable+` where status = 'pending') + (select count(*) from `+outboxTable+` where status = 'processing'),
       (select count(*) from `+outboxTable+` where status = 'failed')`).Scan(&waiting, &failed)
	return waiting, failed
}
