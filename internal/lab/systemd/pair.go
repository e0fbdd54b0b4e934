package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

const (
	// bound is for what takes seconds on an idle machine.
	bound       = 2 * time.Minute
	unitPoll    = 100 * time.Millisecond
	calmBacklog = 200 // events that are in flight or could be
)

// await polls until check returns nil. A look at a unit starts two processes.
func (r *run) await(what string, check func(context.Context) error) {
	r.Must(rig.Await(r.Ctx, bound, unitPoll, what, check))
}

// pair is who leads and who stands by.
type pair struct {
	leader, standby *host
	epoch           int64
}

// well returns the pair when unit is active on both machines, one leading, the other
// standing by. The names of weft's instances are those of the hosts, with suffix.
func (r *run) well(ctx context.Context, unit, suffix string) (p pair, err error) {
	l, err := r.Leader(ctx)
	if err != nil {
		return p, err
	}
	if l.Released {
		return p, errors.New("nobody leads")
	}
	p.epoch = l.Epoch
	for _, h := range r.hosts {
		if !h.Up() {
			return p, fmt.Errorf("machine %s is off", h.Name)
		}
		s, err := h.state(ctx, unit)
		if err != nil {
			return p, err
		}
		leads := l.Instance == h.Name+suffix
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
		return p, fmt.Errorf("%s leads, which is none of the pair", l.Instance)
	}
	return p, nil
}

// back waits until both units are well.
func (r *run) back() (p pair) {
	r.await("well pair", func(ctx context.Context) (err error) {
		p, err = r.well(ctx, service, "")
		return err
	})
	return p
}

// calm waits until the pair is well, its term is not just beginning, and the outbox is
// close behind the producer.
func (r *run) calm() (p pair) {
	r.await("calm", func(ctx context.Context) (err error) {
		if p, err = r.well(ctx, service, ""); err != nil {
			return err
		}
		l, err := r.Leader(ctx)
		if err == nil {
			err = l.Rested()
		}
		if err != nil {
			return err
		}
		return r.Abreast(ctx, calmBacklog)
	})
	r.settles(p.epoch)
	return p
}

// awaitState waits until a machine's weft.service is as it has to be.
func (r *run) awaitState(h *host, what string, want func(state) bool) (s state) {
	r.await(what, func(ctx context.Context) (err error) {
		if s, err = h.state(ctx, service); err == nil && !want(s) {
			err = fmt.Errorf("%s on %s is %v", service, h.Name, s)
		}
		return err
	})
	return s
}
