package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
)

// exitTimeout bounds a graceful end, the grace of weft included.
const exitTimeout = 40 * time.Second

// holdTimeout bounds the wait for a request to be held back.
const holdTimeout = 2 * time.Second

func (r *run) carryOut(ctx context.Context, m *member, i *injection) error {
	info := infoOf(i.Step.Kind)
	if info.servers && r.place.servers == nil {
		return errSkip("the servers are not of this run")
	}
	return info.carryOut(r, ctx, m, i)
}

// kill is SIGKILL; the supervisor starts the instance again once another one leads, so
// that what is measured is the standby.
func (r *run) kill(ctx context.Context, m *member, i *injection) (err error) {
	m.asked = true
	if i.At, err = m.instance.Kill(); err != nil {
		return err
	}
	if i.Leader {
		if err := r.succeeded(ctx, i.Epoch); err != nil {
			return err
		}
	}
	if err := ended(ctx, m.instance); err != nil {
		return err
	}
	return r.supervise(ctx)
}

// terminate is SIGTERM, which must end in exit code 0.
func (r *run) terminate(ctx context.Context, m *member, i *injection) (err error) {
	m.asked = true
	if i.At, err = m.instance.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := ended(ctx, m.instance); err != nil {
		return err
	}
	if err := m.instance.Err(); err != nil {
		r.surprises = append(r.surprises, "after SIGTERM: "+m.instance.Ending().Error())
	}
	if i.Leader {
		if err := r.succeeded(ctx, i.Epoch); err != nil {
			return err
		}
	}
	return r.supervise(ctx)
}

func ended(ctx context.Context, i *fleet.Instance) error {
	select {
	case <-i.Ended():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(exitTimeout):
		return fmt.Errorf("instance %s did not end within %v", i.Name, exitTimeout)
	}
}

// freeze is SIGSTOP and, when another one has led for a while, SIGCONT. In one of two
// cases a bulk request of the frozen leader is on its way all the time, and arrives
// when the successor has written.
func (r *run) freeze(ctx context.Context, m *member, i *injection) (err error) {
	if i.Step.Variant == 1 {
		defer m.Tap.Release()
		m.Tap.Hold()
		_ = await.Await(ctx, holdTimeout, pollPeriod, "request", func(context.Context) error {
			if m.Tap.Held() == 0 {
				return errors.New("none came")
			}
			return nil
		})
		i.Note = fmt.Sprintf(", %d requests late", m.Tap.Held())
	}
	if i.At, err = m.instance.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err = r.succeeded(ctx, i.Epoch)
	if err == nil {
		err = await.Sleep(ctx, time.Until(i.At.Add(i.Step.Hold)))
	}
	_, thaw := m.instance.Signal(syscall.SIGCONT)
	return errors.Join(err, thaw)
}

func (r *run) resign(ctx context.Context, _ *member, i *injection) error {
	if _, err := r.fleet.Output(ctx, "resign", "--help"); err != nil {
		return errSkip("this weft has no command resign")
	}
	if err := r.fleet.Run(ctx, "resign", "--by", "weftlab chaos", "--why", i.Step.String()); err != nil {
		return err
	}
	return r.succeeded(ctx, i.Epoch)
}

// endSessions is pg_terminate_backend.
func (r *run) endSessions(ctx context.Context, m *member, i *injection) error {
	prefix := "weft/" + group + "/" + m.name + "/"
	pattern := prefix + "%"
	switch i.Step.Kind {
	case TerminateLock:
		pattern = prefix + "lock"
	case TerminatePool:
		pattern = prefix + "work"
	default:
	}
	query, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var n int
	err := r.place.pool.QueryRow(query, `
select count(*) from (select pg_terminate_backend(pid) from pg_stat_activity where application_name like $1 and datname = current_database()) t`,
		pattern).Scan(&n)
	switch {
	case err != nil:
		return fmt.Errorf("end sessions: %w", err)
	case n == 0:
		return errSkip(fmt.Sprintf("no session is named %s", pattern))
	case i.Leader && i.Step.Kind != TerminatePool:
		return r.succeeded(ctx, i.Epoch)
	default:
		return r.settles(ctx, i.Epoch)
	}
}

const resetPeriod = 150 * time.Millisecond

func (r *run) network(ctx context.Context, m *member, i *injection) (err error) {
	defer func() { err = errors.Join(err, m.Heal()) }()
	s := i.Step
	switch s.Kind {
	case PartitionPostgres:
		err = m.Postgres.HalfOpen()
	case LostAnswer: // what arrived is carried out: a lease, a settle
		err = m.Postgres.HalfOpen()
		if err == nil {
			err = await.Sleep(ctx, s.Latency)
		}
		i.At = time.Now()
		err = errors.Join(err, m.Postgres.Cut())
	case PartitionElastic:
		err = m.Elastic.HalfOpen()
	case PartitionBoth:
		err = errors.Join(m.Postgres.HalfOpen(), m.Elastic.HalfOpen())
	case LatencyPostgres:
		err = m.Postgres.Latency(s.Latency, s.Jitter)
	case LatencyElastic:
		err = m.Elastic.Latency(s.Latency, s.Jitter)
	default:
		for until := time.Now().Add(s.Hold); err == nil && time.Now().Before(until); {
			if err = m.Elastic.ResetAfter(s.Bytes); err == nil {
				err = await.Sleep(ctx, resetPeriod)
			}
		}
		return err
	}
	if err == nil && infoOf(s.Kind).measure == takeover {
		err = r.succeeded(ctx, i.Epoch)
	}
	if err == nil {
		err = await.Sleep(ctx, time.Until(i.At.Add(s.Hold)))
	}
	return err
}

// blockWrites sets index.blocks.write. What weft sends meanwhile ends in failed, until
// its breaker opens: it must be visible.
func (r *run) blockWrites(ctx context.Context, _ *member, i *injection) (err error) {
	index, err := r.indexOfAlias(ctx)
	if err != nil {
		return err
	}
	set := func(ctx context.Context, v any) error {
		return r.elastic(ctx, http.MethodPut, "/"+index+"/_settings", map[string]any{"index.blocks.write": v})
	}
	defer func() { err = errors.Join(err, set(context.WithoutCancel(ctx), nil)) }()
	if err := set(ctx, true); err != nil {
		return err
	}
	return await.Sleep(ctx, i.Step.Hold)
}

func (r *run) removeAlias(ctx context.Context, _ *member, i *injection) (err error) {
	index, err := r.indexOfAlias(ctx)
	if err != nil {
		return err
	}
	change := func(ctx context.Context, action string) error {
		return r.elastic(ctx, http.MethodPost, "/_aliases", map[string]any{"actions": []any{
			map[string]any{action: map[string]any{"index": index, "alias": r.place.index}},
		}})
	}
	if err := change(ctx, "remove"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, change(context.WithoutCancel(ctx), "add")) }()
	return await.Sleep(ctx, i.Step.Hold)
}

func (r *run) indexOfAlias(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var found map[string]any
	if err := r.place.es.Do(ctx, http.MethodGet, "/_alias/"+r.place.index, nil, &found); err != nil {
		return "", fmt.Errorf("look up the alias: %w", err)
	}
	for index := range found {
		return index, nil
	}
	return "", errSkip("the index has no alias")
}

func (r *run) elastic(ctx context.Context, method, path string, body any) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := r.place.es.Do(ctx, method, path, body, nil); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
