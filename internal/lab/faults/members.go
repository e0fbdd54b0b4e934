package faults

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/patroni"
)

// PrimaryKilled names the fault that takes what the primary has not passed on.
const PrimaryKilled = "member-killed"

const (
	wholeTimeout = 3 * time.Minute // for a base backup, on a busy machine
	pausedFor    = 10 * time.Second
	watchedFor   = 40 * time.Second // longer than Patroni's ttl
)

// MemberFaults are the names of the faults of a PostgreSQL that fails over by itself.
func MemberFaults() Names {
	var names Names
	for _, f := range members() {
		names = append(names, f.Name)
	}
	return names
}

// members are faults of [Target.Patroni].
func members() []Fault {
	all := []Fault{
		{
			Name: "member-switchover", About: "Patroni is asked for another primary", Observe: moved,
			Inject: func(ctx context.Context, i *Injection) error { return i.Patroni.Switchover(ctx) },
		},
		{
			Name: "postgres-killed", About: "PostgreSQL of the primary is killed, and its Patroni lives", Observe: restarted, Crash: true,
			Inject: func(_ context.Context, i *Injection) error {
				return i.primary.Signal(patroni.Postgres, syscall.SIGKILL)
			},
		},
		{
			Name: PrimaryKilled, About: "PostgreSQL and Patroni of the primary are killed", Observe: moved, Crash: true,
			Inject: func(_ context.Context, i *Injection) error {
				return i.primary.Signal(patroni.Patroni|patroni.Postgres, syscall.SIGKILL)
			},
		},
		{
			Name: "etcd-killed", About: "etcd on the host of the primary is killed", Inject: killEtcd,
			Observe: func(_ context.Context, i *Injection) error {
				i.expect(!i.primary.EtcdRuns(), "etcd of %s still runs", i.primary.Name)
				return nil
			},
		},
		{
			Name: "member-frozen", About: "the host of the primary is frozen until another is the primary, and comes back", Observe: moved, Crash: true,
			Inject: func(_ context.Context, i *Injection) error {
				return i.primary.Signal(patroni.Patroni|patroni.Postgres|patroni.Etcd, syscall.SIGSTOP)
			},
		},
		{
			Name: "member-paused", About: "PostgreSQL of the primary is killed while Patroni is paused, and Patroni resumes", Observe: restarted,
			Inject: killPaused, Crash: true,
		},
		{Name: "members-restart", About: "all members restart, one after the other, for a setting that needs it", Inject: restartMembers, Observe: restarted},
	}
	for n := range all {
		f := &all[n]
		f.Share, f.Where, f.Available, f.Heal = 1, Members, availableMember, wholeAgain
		if f.Crash {
			f.Measure = Restarted
		}
	}
	return all
}

// availableMember notes who is the primary and since when the members run.
func availableMember(ctx context.Context, i *Injection) (err error) {
	if i.Patroni == nil {
		return Never("PostgreSQL does not fail over by itself here")
	}
	if i.primary, err = i.Patroni.Primary(ctx); err != nil {
		return fmt.Errorf("primary: %w", err)
	}
	i.started, err = startedAt(ctx, i.primary)
	return err
}

func startedAt(ctx context.Context, h *patroni.Host) (at time.Time, err error) {
	err = query(ctx, h.URL(), rig.QueryTimeout, "select pg_postmaster_start_time()", &at)
	if err != nil {
		err = fmt.Errorf("start of %s: %w", h.Name, err)
	}
	return at, err
}

// query reads the row of a query in a session of its own.
func query(ctx context.Context, url string, timeout time.Duration, sql string, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.QueryRow(ctx, sql).Scan(into...)
}

func (i *Injection) expect(holds bool, format string, args ...any) {
	if !holds {
		i.Findings = append(i.Findings, i.Name+": "+fmt.Sprintf(format, args...))
	}
}

// newPrimary waits until commits are answered again, and returns who answers them.
func newPrimary(ctx context.Context, i *Injection) (*patroni.Host, error) {
	err := rig.Await(ctx, wholeTimeout, probePeriod, "commit after "+i.Name, func(ctx context.Context) error {
		var written string
		// A transaction that is replicated.
		return query(ctx, i.Patroni.ProxyURL(), probeTimeout, "select pg_logical_emit_message(true, 'weftlab', '')::text", &written)
	})
	if err != nil {
		return nil, err
	}
	i.Accepts = time.Now()
	now, err := i.Patroni.Primary(ctx)
	if err != nil {
		return nil, fmt.Errorf("primary: %w", err)
	}
	return now, nil
}

// moved expects another primary.
func moved(ctx context.Context, i *Injection) error {
	now, err := newPrimary(ctx, i)
	if err != nil {
		return err
	}
	i.expect(now != i.primary, "%s still is the primary", now.Name)
	return nil
}

// restarted expects that PostgreSQL of the primary has been started anew, or another one in its
// place, as Patroni sees fit.
func restarted(ctx context.Context, i *Injection) error {
	now, err := newPrimary(ctx, i)
	if err != nil {
		return err
	}
	if now != i.primary {
		i.Note = ", " + now.Name + " in its place"
		return nil
	}
	at, err := startedAt(ctx, i.primary)
	if err != nil {
		return err
	}
	i.expect(at.After(i.started), "PostgreSQL of %s was not started again", i.primary.Name)
	return nil
}

// killEtcd watches for longer than the primary keeps its lease without renewing it.
func killEtcd(ctx context.Context, i *Injection) error {
	if err := i.primary.Signal(patroni.Etcd, syscall.SIGKILL); err != nil {
		return err
	}
	return rig.Sleep(ctx, watchedFor)
}

func killPaused(ctx context.Context, i *Injection) error {
	if err := i.Patroni.Configure(ctx, map[string]any{"pause": true}); err != nil {
		return err
	}
	if err := i.Patroni.AwaitPause(ctx); err != nil {
		return err
	}
	i.At = time.Now()
	if err := i.primary.Signal(patroni.Postgres, syscall.SIGKILL); err != nil {
		return err
	}
	if err := rig.Sleep(ctx, pausedFor); err != nil {
		return err
	}
	return i.Patroni.Configure(ctx, map[string]any{"pause": nil})
}

// restartMembers does the replicas first, as an operator does.
func restartMembers(ctx context.Context, i *Injection) error {
	buffers := fmt.Sprintf("%dMB", 64+i.At.Second()) // another size than before
	change := map[string]any{"postgresql": map[string]any{"parameters": map[string]any{"shared_buffers": buffers}}}
	if err := i.Patroni.Configure(ctx, change); err != nil {
		return err
	}
	for _, h := range append(i.Patroni.Others(i.primary), i.primary) {
		if err := h.Restart(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wholeAgain starts what was killed, wakes what was frozen, and waits for the members.
func wholeAgain(ctx context.Context, i *Injection) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wholeTimeout, errors.New("the members are not whole again"))
	defer cancel()
	if err := i.primary.Signal(patroni.Patroni|patroni.Postgres|patroni.Etcd, syscall.SIGCONT); err != nil {
		return err
	}
	if err := errors.Join(i.Patroni.Configure(ctx, map[string]any{"pause": nil}), i.primary.StartEtcd(), i.primary.StartPatroni()); err != nil {
		return err
	}
	return i.Patroni.AwaitWhole(ctx)
}
