package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// Replication says whether a PostgreSQL has a streaming replica, and whether commits
// wait for it.
type Replication string

// The kinds of replication.
const (
	NoReplica    Replication = ""
	Asynchronous Replication = "async" // what the primary has committed last may be lost with it
	Synchronous  Replication = "sync"  // a commit is answered when the replica has it on disk
)

const (
	// walKept is the log that a primary keeps for a replica that is being made.
	walKept = "1GB"
	// replicaName is the application_name of a replica at its primary.
	replicaName = "weft_replica"

	replicaBound  = time.Minute
	promoteBound  = time.Minute
	promotedPoll  = 2 * time.Millisecond
	streamingPoll = 10 * time.Millisecond
)

// MakeReplica discards what server has, stops it if need be, and makes it a replica of
// the other PostgreSQL, at its old URL. It returns when the replica follows.
func (s *Stack) MakeReplica(ctx context.Context, server Server, kind Replication) error {
	return s.ask(ctx, request{Op: opReplica, Server: server, Replication: kind})
}

// URL is that of one server of the stack, "" for one that it has not started.
func (s *Stack) URL(server Server) string { return s.guardian.last(server).URL }

// PairURL names both PostgreSQL servers and leads to the one that takes writes.
func (s *Stack) PairURL() string {
	host := func(server Server) string {
		_, rest, _ := strings.Cut(s.URL(server), "@")
		address, _, _ := strings.Cut(rest, "/")
		return address
	}
	return "postgres://postgres@" + host(Postgres) + "," + host(Replica) + "/" + databaseName +
		"?sslmode=disable&target_session_attrs=read-write"
}

func (g *guardian) makeReplica(ctx context.Context, server Server, kind Replication) error {
	began := time.Now()
	replica, primary := g.cluster(Replica), g.cluster(Postgres)
	if server == Postgres {
		replica, primary = primary, replica
	}
	switch {
	case replica == nil || primary == nil:
		return errors.New("the stack was started without a replica")
	case kind != Asynchronous && kind != Synchronous:
		return fmt.Errorf("replication %q: want %s or %s", kind, Asynchronous, Synchronous)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, replicaBound, fmt.Errorf("replica %w within %v", process.ErrTimeout, replicaBound))
	defer cancel()
	replica.kill()
	return primary.session(ctx, func(conn *pgx.Conn) error {
		if err := replica.copyFrom(ctx, conn, primary); err != nil {
			return fmt.Errorf("base backup: %w", explainDisk(err, replica.dir))
		}
		if err := g.startOne(ctx, server, began); err != nil {
			return err
		}
		if err := follows(ctx, conn, kind); err != nil {
			return fmt.Errorf("%w\n%s", err, replica.process.Tail())
		}
		return nil
	})
}

// copyFrom is a base backup by the server's own functions: there is no pg_basebackup
// among the binaries. Nothing archives the log; the replica streams what it needs.
func (p *postgres) copyFrom(ctx context.Context, conn *pgx.Conn, primary *postgres) error {
	p.forgetMemory()
	if err := os.RemoveAll(p.data()); err != nil {
		return err
	}
	start, stop := "pg_backup_start('weft', fast => true)", "pg_backup_stop(wait_for_archive => false)"
	if strings.HasPrefix(conn.PgConn().ParameterStatus("server_version"), "14.") { // their older names
		start, stop = "pg_start_backup('weft', fast => true, exclusive => false)", "pg_stop_backup(exclusive => false, wait_for_archive => false)"
	}
	// A primary that waits for a replica that is gone would not even take a backup.
	err := execute(ctx, conn, "alter system reset synchronous_standby_names", "select pg_reload_conf()", "select "+start)
	if err != nil {
		return err
	}
	if err := p.copyFiles(ctx, primary.data()); err != nil {
		return err // the backup ends with the session
	}
	var label string
	if err := conn.QueryRow(ctx, "select labelfile from "+stop).Scan(&label); err != nil {
		return err
	}
	settings := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres application_name=%s'\n", primary.port, replicaName)
	for name, content := range map[string]string{"backup_label": label, "standby.signal": "", "postgresql.auto.conf": settings} {
		if err := p.write(filepath.Join(p.data(), name), []byte(content)); err != nil {
			return err
		}
	}
	p.copied = true
	return nil
}

// forgetMemory removes the shared memory of a killed server, which never starts again with
// this data and so cannot do it. The server writes key and id into the
// seventh line of its lock file.
func (p *postgres) forgetMemory() {
	content, err := os.ReadFile(filepath.Join(p.data(), "postmaster.pid"))
	if err != nil {
		return // ended in order
	}
	lines := strings.Split(string(content), "\n")
	var key, id int
	if len(lines) < 7 {
		return
	}
	if n, _ := fmt.Sscan(lines[6], &key, &id); n == 2 {
		removeSharedMemory(id)
	}
}

// copyFiles copies a data directory in use. Files may vanish or change while it copies;
// replay of the log repairs that.
func (p *postgres) copyFiles(ctx context.Context, from string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return unlessGone(err)
		}
		to := filepath.Join(p.data(), filepath.FromSlash(name))
		switch {
		case entry.IsDir():
			if err := os.Mkdir(to, 0o700); err != nil {
				return err
			}
			return p.Account.own(to)
		case !entry.Type().IsRegular() || leftOut(name):
			return nil
		}
		content, err := root.ReadFile(name)
		if err != nil {
			return unlessGone(err)
		}
		return p.write(to, content)
	})
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// leftOut are files of the running server that are not its data, and its log.
func leftOut(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	switch first {
	case "pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans", "postmaster.pid", "postmaster.opts":
		return true
	}
	base := path.Base(name)
	return strings.HasPrefix(base, "pgsql_tmp") || strings.HasPrefix(base, "pg_internal.init")
}

// follows waits for the replica, and makes commits wait for it if that is wanted.
func follows(ctx context.Context, conn *pgx.Conn, kind Replication) error {
	const state = "select coalesce((select state || ' ' || sync_state from pg_stat_replication where application_name = $1), '')"
	if err := awaitAnswer(ctx, conn, streamingPoll, "streaming async", state, replicaName); err != nil || kind != Synchronous {
		return err
	}
	if err := execute(ctx, conn, "alter system set synchronous_standby_names = '"+replicaName+"'", "select pg_reload_conf()"); err != nil {
		return fmt.Errorf("synchronous replication: %w", err)
	}
	return awaitAnswer(ctx, conn, streamingPoll, "streaming sync", state, replicaName)
}

// promote returns when the server takes writes.
func (p *postgres) promote(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, promoteBound, fmt.Errorf("promotion: not done within %v", promoteBound))
	defer cancel()
	return p.session(ctx, func(conn *pgx.Conn) error {
		if err := execute(ctx, conn, "select pg_promote(wait => false)"); err != nil {
			return err
		}
		return awaitAnswer(ctx, conn, promotedPoll, "false", "select pg_is_in_recovery()::text")
	})
}

func awaitAnswer(ctx context.Context, conn *pgx.Conn, poll time.Duration, want, sql string, args ...any) error {
	for {
		var got string
		if err := conn.QueryRow(ctx, sql, args...).Scan(&got); err != nil {
			return err
		}
		if got == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (it says %s)", context.Cause(ctx), strconv.Quote(got))
		case <-time.After(poll):
		}
	}
}
