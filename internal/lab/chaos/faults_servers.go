package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	serverTimeout = 2 * time.Minute // a start on a busy machine, with recovery
	acceptPeriod  = 5 * time.Millisecond
)

// restartPostgres measures from the moment the server accepts connections.
func (r *run) restartPostgres(ctx context.Context, _ *member, i *injection) error {
	stop := r.place.servers.StopServer
	if i.Step.Kind == PostgresRestartImmediate {
		stop = r.place.servers.StopServerImmediately
	}
	return r.restart(ctx, i, stack.Postgres, stop, r.place.probePostgres)
}

// restartElastic measures from the moment the server accepts writes to another index.
func (r *run) restartElastic(ctx context.Context, _ *member, i *injection) error {
	stop := r.place.servers.StopServer
	if i.Step.Kind == ElasticSIGKILL {
		stop = r.place.servers.KillServer
	}
	return r.restart(ctx, i, stack.Elastic, stop, r.place.probeElastic)
}

func (r *run) restart(ctx context.Context, i *injection, server stack.Server, stop func(context.Context, stack.Server) error, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	if err := stop(ctx, server); err != nil {
		return err
	}
	if err := await.Sleep(ctx, i.Step.Hold); err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() { started <- r.place.servers.StartServer(ctx, server) }()
	accepts := func() error {
		for {
			if err := probe(ctx); err == nil {
				i.Accepts = time.Now() // the server's clock is this machine's
				return nil
			}
			if err := await.Sleep(ctx, acceptPeriod); err != nil {
				return fmt.Errorf("%s does not answer: %w", server, err)
			}
		}
	}
	if err := errors.Join(accepts(), <-started); err != nil {
		return err
	}
	return r.settles(ctx, i.Epoch)
}

// snapshot is a transaction that sees the database as it was at its begin.
type snapshot struct {
	conn  *pgx.Conn
	until time.Time
}

// openSnapshot leaves a snapshot open behind it: nothing that it could see is vacuumed
// while other faults go on. A restart of the server ends it early.
func (r *run) openSnapshot(ctx context.Context, _ *member, i *injection) error {
	if r.snapshot != nil && r.snapshot.alive(ctx) {
		return errSkip("one is open")
	}
	query, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	conn, err := pgx.Connect(query, r.place.databaseURL)
	if err != nil {
		return fmt.Errorf("open snapshot: %w", err)
	}
	// The first query takes it. Without arguments both are one message.
	if _, err := conn.Exec(query, "begin isolation level repeatable read; select count(*) from weft_leader"); err != nil {
		_ = conn.Close(query)
		return fmt.Errorf("open snapshot: %w", err)
	}
	r.snapshot = &snapshot{conn: conn, until: time.Now().Add(i.Step.Hold)}
	return nil
}

func (s *snapshot) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	return s.conn.Ping(ctx) == nil
}

func (s *snapshot) over() bool { return time.Now().After(s.until) }

func (s *snapshot) close() {
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
	defer cancel()
	_ = s.conn.Close(ctx)
}

const (
	strangerRows = 20
	strangerWait = 5 * time.Second // for rows to be there
)

// lockRows holds the locks of pending events as a session that weft knows nothing of.
func (r *run) lockRows(ctx context.Context, _ *member, i *injection) error {
	conn, err := pgx.Connect(ctx, r.place.databaseURL)
	if err != nil {
		return fmt.Errorf("connect as a stranger: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin as a stranger: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for until := time.Now().Add(strangerWait); ; {
		tag, err := tx.Exec(ctx, fmt.Sprintf(`select from %s where status = 'pending' limit %d for update skip locked`, outboxTable, strangerRows))
		if err != nil {
			return fmt.Errorf("lock as a stranger: %w", err)
		}
		if n := tag.RowsAffected(); n > 0 {
			i.Note = fmt.Sprintf(", %d rows", n)
			return await.Sleep(ctx, i.Step.Hold)
		}
		if time.Now().After(until) {
			return errSkip("no event was pending when it was looked")
		}
	}
}
