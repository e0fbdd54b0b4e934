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

// Members are the faults of a PostgreSQL that fails over by itself.
func Members() Names {
	var names Names
	for _, f := range members() {
		names = append(names, f.Name)
	}
	return names
}

// members are faults of [Target.Patroni]. No schedule draws them.
func members() []Fault {
	all := []Fault{
		{
			Name: "member-switchover", About: "Patroni is asked for another primary", Observe: moved,
			Inject: func(ctx context.Context, i *Injection) error { return i.Patroni.Switchover(ctx) },
		},
		{
			Name: "postgres-killed", About: "PostgreSQL of the primary is killed, and its Patroni lives", Observe: restarted,
			Inject: func(_ context.Context, i *Injection) error {
				return i.primary.Signal(patroni.Postgres, syscall.SIGKILL)
			},
		},
		{
			Name: PrimaryKilled, About: "PostgreSQL and Patroni of the primary are killed", Observe: moved,
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
			Name: "member-frozen", About: "the host of the primary is frozen until another is the primary, and comes back", Observe: moved,
			Inject: func(_ context.Context, i *Injection) error {
				return i.primary.Signal(patroni.Patroni|patroni.Postgres|patroni.Etcd, syscall.SIGSTOP)
			},
		},
		{
			Name: "member-paused", About: "PostgreSQL of the primary is killed while Patroni is paused, and Patroni resumes", Observe: restarted,
			Inject: killPaused,
		},
		{Name: "members-restart", About: "all members restart, one after the other, for a setting that needs it", Inject: restartMembers, Observe: restarted},
	}
	for n := range all {
		all[n].Available, all[n].Heal = availableMember, wholeAgain
	}
	return all
}

// availableMember notes who is the primary and since when the members run.
func availableMember(ctx context.Context, i *Injection) (err error) {
	if i.Patroni == nil {
		return Skip("PostgreSQL does not fail over by itself here")
	}
	if i.primary, err = i.Patroni.Primary(ctx); err != nil {
		return fmt.Errorf("primary: %w", err)
	}
	i.started, err = startedAt(ctx, i.primary)
	return err
}

func startedAt(ctx context.Context, h *patroni.Host) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, h.URL())
	if err != nil {
		return at, fmt.Errorf("start of %s: %w", h.Name, err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := conn.QueryRow(ctx, "select pg_postmaster_start_time()").Scan(&at); err != nil {
		return at, fmt.Errorf("start of %s: %w", h.Name, err)
	}
	return at, nil
}

func (i *Injection) expect(holds bool, format string, args ...any) {
	if !holds {
		i.Findings = append(i.Findings, i.Name+": "+fmt.Sprintf(format, args...))
	}
}

// moved expects another primary.
func moved(ctx context.Context, i *Injection) error {
	now, err := i.Patroni.Primary(ctx)
	if err != nil {
		return fmt.Errorf("primary: %w", err)
	}
	i.expect(now != i.primary, "%s still is the primary", now.Name)
	return nil
}

// restarted expects that PostgreSQL of the primary has been started anew, or another one in its
// place, as Patroni sees fit.
func restarted(ctx context.Context, i *Injection) error {
	now, err := i.Patroni.Primary(ctx)
	if err != nil {
		return fmt.Errorf("primary: %w", err)
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
