package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	electionBound = 2 * time.Minute
	leads         = "select coalesce((select leader_id from river_leader where expires_at > now()), '')"
)

// nothing is a job that nobody inserts: a client elects only when it has a worker.
type nothing struct{}

func (nothing) Kind() string { return "nothing" }

type idle struct {
	river.WorkerDefaults[nothing]
}

func (idle) Work(context.Context, *river.Job[nothing]) error { return nil }

// runRiver is one client, until ctx ends.
func runRiver(ctx context.Context, url, id string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, idle{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		ID: id, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}, Workers: workers,
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-client.Stopped()
	return nil
}

func riverVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/riverqueue/river" {
			return strings.TrimPrefix(m.Version, "v")
		}
	}
	return ""
}

// electAgain strikes the leading one of two clients and times the election of the other.
func electAgain(ctx context.Context, s *site, f fault, turn int) (t takeover, err error) {
	db, err := s.postgres.create(ctx, fmt.Sprintf("river_%d_%d", f.signal, turn))
	if err != nil {
		return t, err
	}
	defer db.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(db.Pool), nil)
	if err != nil {
		return t, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return t, err
	}
	self, err := os.Executable()
	if err != nil {
		return t, err
	}
	clients := map[string]*program{}
	for _, id := range []string{"a", "b"} {
		if clients[id], err = start(command{name: id, dir: s.dir, log: s.log(db.name + "-" + id), argv: []string{self, riverCommand, db.url, id}}); err != nil {
			return t, err
		}
		defer func() { err = errors.Join(err, clients[id].stop(syscall.SIGTERM)) }()
	}
	leader := func() (name string, err error) {
		err = db.QueryRow(ctx, leads).Scan(&name)
		return name, err
	}
	if err := await(ctx, electionBound, "first election", func() (bool, error) {
		name, err := leader()
		return name != "", err
	}); err != nil {
		return t, err
	}
	// Where in the term the fault falls decides how long the rest of it is.
	if err := pause(ctx, restBeforeFault+time.Duration(turn)*time.Second); err != nil {
		return t, err
	}
	old, err := leader()
	if err != nil {
		return t, err
	}
	at, err := clients[old].signal(f.signal)
	if err != nil {
		return t, err
	}
	err = await(ctx, electionBound, "election", func() (bool, error) {
		name, err := leader()
		return name != "" && name != old, err
	})
	t.First = time.Since(at).Seconds()
	return t, err
}
