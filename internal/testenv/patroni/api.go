package patroni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// restartTimeout is longer than a switchover or the restart of a member takes.
const restartTimeout = time.Minute

// member is how Patroni describes one to all, and itself with whether it is paused.
type member struct {
	Name, Role, State string
	Pending           bool `json:"pending_restart"`
	Pause             bool
}

func (h *Host) state(ctx context.Context) (state member, err error) {
	err = h.ask(ctx, http.MethodGet, "/patroni", nil, &state)
	return state, err
}

// ask sends a request to the Patroni of a host. A nil answer is discarded.
func (h *Host) ask(ctx context.Context, method, path string, body, answer any) error {
	if err := h.api.Do(ctx, method, path, body, answer); err != nil {
		return fmt.Errorf("%s %s at %s: %w", method, path, h.Name, err)
	}
	return nil
}

// askAny asks one Patroni after the other until one answers.
func (c *Cluster) askAny(ctx context.Context, limit time.Duration, method, path string, body, answer any) error {
	var errs []error
	for _, h := range c.hosts {
		limited, cancel := context.WithTimeout(ctx, limit)
		err := h.ask(limited, method, path, body, answer)
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *Cluster) members(ctx context.Context) ([]member, error) {
	var cluster struct{ Members []member }
	err := c.askAny(ctx, time.Second, http.MethodGet, "/cluster", nil, &cluster)
	return cluster.Members, err
}

// Primary returns the host that Patroni calls its leader.
func (c *Cluster) Primary(ctx context.Context) (*Host, error) {
	members, err := c.members(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if h := c.host(m.Name); m.Role == "leader" && h != nil {
			return h, nil
		}
	}
	return nil, errors.New("no member is the primary")
}

func (c *Cluster) host(name string) *Host {
	for _, h := range c.hosts {
		if h.Name == name {
			return h
		}
	}
	return nil
}

// Others returns the hosts that are not h.
func (c *Cluster) Others(h *Host) (others []*Host) {
	for _, other := range c.hosts {
		if other != h {
			others = append(others, other)
		}
	}
	return others
}

// AwaitWhole returns when one member takes writes and the others stream from it, one of them
// synchronously in synchronous mode.
func (c *Cluster) AwaitWhole(ctx context.Context) error { return await(ctx, c.whole) }

func await(ctx context.Context, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(poll):
		}
	}
}

func (c *Cluster) whole(ctx context.Context) error {
	members, err := c.members(ctx)
	if err != nil {
		return err
	}
	running, named := 0, false
	for _, m := range members {
		named = named || m.Role == "sync_standby"
		if m.State != "running" && m.State != "streaming" || m.Pending {
			return fmt.Errorf("%s is %s (pending restart: %v)", m.Name, m.State, m.Pending)
		}
		running++
	}
	if running != hosts || named != c.opts.Synchronous {
		return fmt.Errorf("%d members run; a synchronous one is named: %v", running, named)
	}
	primary, err := c.Primary(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var replica bool
	var streaming, synchronous int
	err = stack.Session(ctx, primary.url("postgres"), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select pg_is_in_recovery(), count(*) filter (where state = 'streaming'), count(*) filter (where sync_state = 'sync')
		from pg_stat_replication`).Scan(&replica, &streaming, &synchronous)
	})
	switch {
	case err != nil:
		return err
	case replica || streaming != hosts-1:
		return fmt.Errorf("%s: replica %v, %d members stream from it", primary.Name, replica, streaming)
	case (synchronous == 1) != c.opts.Synchronous:
		return fmt.Errorf("commits on %s wait for %d members", primary.Name, synchronous)
	}
	return nil
}

// Switchover asks for another primary, as patronictl switchover does, and returns when Patroni
// has answered.
func (c *Cluster) Switchover(ctx context.Context) error {
	primary, err := c.Primary(ctx)
	if err != nil {
		return err
	}
	return primary.ask(ctx, http.MethodPost, "/switchover", object{"leader": primary.Name}, nil)
}

// Configure changes what the members share, as patronictl edit-config does.
func (c *Cluster) Configure(ctx context.Context, change map[string]any) error {
	return c.askAny(ctx, restartTimeout, http.MethodPatch, "/config", change, nil)
}

// AwaitPause returns when every Patroni knows of a pause.
func (c *Cluster) AwaitPause(ctx context.Context) error {
	return await(ctx, func(ctx context.Context) error {
		for _, h := range c.hosts {
			if state, err := h.state(ctx); err != nil || !state.Pause {
				return cmp.Or(err, fmt.Errorf("%s is not paused", h.Name))
			}
		}
		return nil
	})
}

// Restart waits until a changed setting wants a restart of the host's PostgreSQL, restarts it
// as patronictl restart does, and returns when it answers.
func (h *Host) Restart(ctx context.Context) error {
	err := await(ctx, func(ctx context.Context) error {
		state, err := h.state(ctx)
		if err == nil && !state.Pending {
			err = fmt.Errorf("%s wants no restart", h.Name)
		}
		return err
	})
	if err != nil {
		return err
	}
	return h.ask(ctx, http.MethodPost, "/restart", object{}, nil)
}
