package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/producer"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

const (
	// bound is for what takes seconds on an idle machine.
	bound = 2 * time.Minute
	// databasePoll and unitPoll are between two looks; the latter starts two processes.
	databasePoll = 20 * time.Millisecond
	unitPoll     = 100 * time.Millisecond
	// rested is how old a term and its events' newest settle are in calm.
	rested      = 1500 * time.Millisecond
	calmBacklog = 200
)

// await polls until well returns nil, and fails with its last error after bound.
func (r *run) await(ctx context.Context, what string, well func(context.Context) error) error {
	return r.awaitEvery(ctx, databasePoll, bound, what, well)
}

func (r *run) awaitEvery(ctx context.Context, period, bound time.Duration, what string, well func(context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var last error
	for {
		err := well(limit)
		if err == nil {
			return nil
		}
		if limit.Err() == nil {
			last = err
		}
		select {
		case <-limit.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("no %s within %v: %w", what, bound, last)
		case <-time.After(period):
		}
	}
}

// holds returns nil when a query says true.
func (r *run) holds(ctx context.Context, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var ok bool
	if err := r.pool.QueryRow(ctx, sql, args...).Scan(&ok); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("not yet so: %s", strings.Join(strings.Fields(sql), " "))
	}
	return nil
}

// term is the newest one of a group.
type term struct {
	instance string
	epoch    int64
	released bool
	age      time.Duration
}

func (r *run) term(ctx context.Context, group string) (t term, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = r.pool.QueryRow(ctx, `select instance, epoch, released_at is not null, clock_timestamp() - acquired_at from weft_leader where group_name = $1`, group).
		Scan(&t.instance, &t.epoch, &t.released, &t.age)
	if err != nil {
		return t, fmt.Errorf("who leads %s: %w", group, err)
	}
	return t, nil
}

// pair is who leads and who stands by.
type pair struct {
	leader, standby *host
	epoch           int64
}

// well returns the pair when unit is active on both machines, one leading, the other
// standing by. name is that of an instance of weft on a host.
func (r *run) well(ctx context.Context, unit string, name func(*host) string) (p pair, err error) {
	t, err := r.term(ctx, group)
	if err != nil {
		return p, err
	}
	if t.released {
		return p, errors.New("nobody leads")
	}
	p.epoch = t.epoch
	for _, h := range r.hosts {
		if !h.Up() {
			return p, fmt.Errorf("machine %s is off", h.Name)
		}
		s, err := h.state(ctx, unit)
		if err != nil {
			return p, err
		}
		leads := t.instance == name(h)
		if s.Active != "active" || strings.HasPrefix(s.Status, "leader") != leads || strings.HasPrefix(s.Status, "standby") == leads {
			return p, fmt.Errorf("%s on %s is %v", unit, h.Name, s)
		}
		if leads {
			p.leader = h
		} else {
			p.standby = h
		}
	}
	if p.leader == nil {
		return p, fmt.Errorf("%s leads, which is none of the pair", t.instance)
	}
	return p, nil
}

func hostName(h *host) string { return h.Name }

// back waits until both units are well.
func (r *run) back(ctx context.Context) (p pair, err error) {
	err = r.awaitEvery(ctx, unitPoll, bound, "well pair", func(ctx context.Context) (err error) {
		p, err = r.well(ctx, service, hostName)
		return err
	})
	return p, err
}

// calm waits until the pair is well, its term is not just beginning, and the outbox is
// close behind the producer.
func (r *run) calm(ctx context.Context) (p pair, err error) {
	err = r.awaitEvery(ctx, unitPoll, bound, "calm", func(ctx context.Context) (err error) {
		if p, err = r.well(ctx, service, hostName); err != nil {
			return err
		}
		t, err := r.term(ctx, group)
		if err == nil && t.age < rested {
			err = fmt.Errorf("the term of %s is %v old", t.instance, t.age)
		}
		if err != nil {
			return err
		}
		return r.holds(ctx, `select count(*) < $1 from search_outbox_events where status in ('pending', 'processing')`, calmBacklog)
	})
	if err != nil {
		return p, err
	}
	return p, r.settles(ctx, p.epoch)
}

// settles waits for another event to become done under epoch or a later one.
func (r *run) settles(ctx context.Context, epoch int64) error {
	var position int64
	err := r.await(ctx, "position of the record", func(ctx context.Context) (err error) {
		position, err = history.Position(ctx, r.pool)
		return err
	})
	if err != nil {
		return err
	}
	return r.await(ctx, "settled event", func(ctx context.Context) error {
		log, err := history.Since(ctx, r.pool, producer.Table, group, position)
		if err != nil {
			return err
		}
		if _, ok := log.FirstDone(epoch); !ok {
			return fmt.Errorf("no event is settled under epoch %d or later", epoch)
		}
		return nil
	})
}

// awaitState waits until a unit is as it has to be.
func (r *run) awaitState(ctx context.Context, h *host, unit, what string, want func(state) bool) (s state, err error) {
	err = r.awaitEvery(ctx, unitPoll, bound, what, func(ctx context.Context) (err error) {
		if s, err = h.state(ctx, unit); err == nil && !want(s) {
			err = fmt.Errorf("%s on %s is %v", unit, h.Name, s)
		}
		return err
	})
	return s, err
}

// expect returns an error, with what there is instead, unless ok.
func expect(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}
