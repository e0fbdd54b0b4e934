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
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// PrimaryKilled names the fault that takes what the primary has not passed on.
const PrimaryKilled = "member-killed"

const (
	wholeTimeout = 3 * time.Minute // for a base backup, on a busy machine
	pausedFor    = 10 * time.Second
	watchedFor   = 40 * time.Second // longer than Patroni's ttl, for which the primary keeps its lease without renewing it
)

// MemberFaults are the names of the faults of a PostgreSQL that fails over by itself.
func MemberFaults() Names {
	return rig.Map(members(), func(f Fault) string { return f.Name })
}

// members are faults of [Target.Patroni].
func members() []Fault {
	all := []Fault{
		{
			Name: "member-switchover", About: "Patroni is asked for another primary", Observe: moved,
			Inject: func(i *Injection) { i.Must(i.Patroni.Switchover(i.Ctx)) },
		},
		{
			Name: "postgres-killed", About: "PostgreSQL of the primary is killed, and its Patroni lives", Observe: restarted, Crash: true,
			Inject: func(i *Injection) { i.Must(i.primary.Signal(patroni.Postgres, syscall.SIGKILL)) },
		},
		{
			Name: PrimaryKilled, About: "PostgreSQL and Patroni of the primary are killed", Observe: moved, Crash: true,
			Inject: func(i *Injection) { i.Must(i.primary.Signal(patroni.Patroni|patroni.Postgres, syscall.SIGKILL)) },
		},
		{
			Name: "etcd-killed", About: "etcd on the host of the primary is killed",
			Inject: func(i *Injection) {
				i.Must(i.primary.Signal(patroni.Etcd, syscall.SIGKILL))
				i.Pause(watchedFor)
			},
			Observe: func(i *Injection) { i.wants(!i.primary.EtcdRuns(), "etcd of %s still runs", i.primary.Name) },
		},
		{
			Name: "member-frozen", About: "the host of the primary is frozen until another is the primary, and comes back", Observe: moved, Crash: true,
			Inject: func(i *Injection) {
				i.Must(i.primary.Signal(patroni.Patroni|patroni.Postgres|patroni.Etcd, syscall.SIGSTOP))
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
func availableMember(i *Injection) {
	if i.Patroni == nil {
		i.Must(Never("PostgreSQL does not fail over by itself here"))
	}
	i.primary = i.primaryNow()
	i.started = i.startedAt(i.primary)
}

func (i *Injection) primaryNow() *patroni.Host {
	return rig.Try(i.Patroni.Primary(i.Ctx)).MustDo(i, "primary")
}

func (i *Injection) startedAt(h *patroni.Host) (at time.Time) {
	i.MustDo("start of "+h.Name, query(i.Ctx, h.URL(), rig.QueryTimeout, "select pg_postmaster_start_time()", &at))
	return at
}

// query reads the row of a query in a session of its own.
func query(ctx context.Context, url string, timeout time.Duration, sql string, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return stack.Session(ctx, url, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(into...) })
}

// wants adds a finding unless something holds.
func (i *Injection) wants(holds bool, format string, args ...any) {
	if !holds {
		i.Findings = append(i.Findings, i.Name+": "+fmt.Sprintf(format, args...))
	}
}

// newPrimary waits until commits are answered again, and returns who answers them.
func (i *Injection) newPrimary() *patroni.Host {
	i.Must(rig.Await(i.Ctx, wholeTimeout, probePeriod, "commit after "+i.Name, func(ctx context.Context) error {
		var written string
		// A transaction that is replicated.
		return query(ctx, i.Patroni.ProxyURL(), probeTimeout, "select pg_logical_emit_message(true, 'weftlab', '')::text", &written)
	}))
	i.Accepts = time.Now()
	return i.primaryNow()
}

// moved expects another primary.
func moved(i *Injection) {
	now := i.newPrimary()
	i.wants(now != i.primary, "%s still is the primary", now.Name)
}

// restarted expects that PostgreSQL of the primary has been started anew, or another one in its
// place, as Patroni sees fit.
func restarted(i *Injection) {
	if now := i.newPrimary(); now != i.primary {
		i.Note = ", " + now.Name + " in its place"
		return
	}
	i.wants(i.startedAt(i.primary).After(i.started), "PostgreSQL of %s was not started again", i.primary.Name)
}

func killPaused(i *Injection) {
	i.Must(i.Patroni.Configure(i.Ctx, map[string]any{"pause": true}))
	i.Must(i.Patroni.AwaitPause(i.Ctx))
	i.At = time.Now()
	i.Must(i.primary.Signal(patroni.Postgres, syscall.SIGKILL))
	i.Pause(pausedFor)
	i.Must(i.Patroni.Configure(i.Ctx, map[string]any{"pause": nil}))
}

// restartMembers does the replicas first, as an operator does.
func restartMembers(i *Injection) {
	buffers := fmt.Sprintf("%dMB", 64+i.At.Second()) // another size than before
	i.Must(i.Patroni.Configure(i.Ctx, map[string]any{"postgresql": map[string]any{"parameters": map[string]any{"shared_buffers": buffers}}}))
	for _, h := range append(i.Patroni.Others(i.primary), i.primary) {
		i.Must(h.Restart(i.Ctx))
	}
}

// wholeAgain starts what was killed, wakes what was frozen, and waits for the members.
func wholeAgain(i *Injection) {
	i.Part("members", wholeTimeout, func() {
		i.Must(i.primary.Signal(patroni.Patroni|patroni.Postgres|patroni.Etcd, syscall.SIGCONT))
		i.Must(errors.Join(i.Patroni.Configure(i.Ctx, map[string]any{"pause": nil}), i.primary.StartEtcd(), i.primary.StartPatroni()))
		i.Must(i.Patroni.AwaitWhole(i.Ctx))
	})
}
