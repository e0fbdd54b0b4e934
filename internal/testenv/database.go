package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/migrations"
)

// Database makes a database with all of weft's migrations applied and returns its URL.
// It is dropped when the test ends, with whatever sessions are still in it.
func Database(t testing.TB) string {
	t.Helper()
	return DatabaseWith(t, "", func(context.Context, string) error { return nil })
}

// DatabaseWith is [Database] after prepare, which is called once in a process for each name, with
// the URL of a migrated database: what it takes long to make is copied for each test.
func DatabaseWith(t testing.TB, prepared string, prepare func(ctx context.Context, url string) error) string {
	t.Helper()
	base, name, dsn := newName(t)
	ctx, cancel := context.WithTimeout(t.Context(), Limit) // it may wait for what others prepare
	defer cancel()
	conn, err := pgx.Connect(ctx, base) // for all of it: a session of its own for each step takes nearly as long as the steps
	must(t, "make database", err)
	quoted := pgx.Identifier{name}.Sanitize()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
		defer cancel()
		drop := "drop database if exists " + quoted + " with (force)"
		err := execute(ctx, conn, drop)
		if conn.IsClosed() { // the test, or a server's limit, has ended it
			err = execOn(ctx, base, drop)
		}
		if err := errors.Join(err, conn.Close(ctx)); err != nil {
			t.Errorf("testenv: drop database %s: %v", name, err)
		}
	})
	template, err := makeTemplate(ctx, conn, base, prepared, prepare)
	must(t, "template", err)
	create := "create database " + quoted + " template " + pgx.Identifier{template}.Sanitize()
	if conn.PgConn().ParameterStatus("server_version") >= "15" {
		create += " strategy file_copy" // a third of the time of the log that a replica would need
	}
	must(t, "make database", execute(ctx, conn, create))
	return dsn
}

// newName returns the URL of the server, and the name of a new database of the test and its URL.
func newName(t testing.TB) (base, name, dsn string) {
	t.Helper()
	base, name = server(t, databaseEnv), uniqueName(t.Name(), "weft_test_", "_")
	dsn, err := withDatabase(base, name)
	must(t, "address of the database", err)
	return base, name, dsn
}

// DatabaseIn is [Database] with another encoding.
func DatabaseIn(t testing.TB, encoding string) string {
	t.Helper()
	base, name, dsn := newName(t)
	quoted, provider := pgx.Identifier{name}.Sanitize(), ""
	if PostgresMajor(t) >= 15 {
		provider = "locale_provider libc " // others know UTF8 alone
	}
	dropAtEnd(t, base, "database "+name, "drop database if exists "+quoted+" with (force)")
	err := execOn(t.Context(), base, "create database "+quoted+" encoding '"+encoding+"' "+provider+"locale 'C' template template0")
	if err == nil {
		_, err = migrations.Up(t.Context(), dsn)
	}
	must(t, "make database in "+encoding, err)
	return dsn
}

// makeTemplate returns the name of this process's database that has the migrations and what
// prepare has made, and takes no sessions (a database with sessions cannot be copied).
func makeTemplate(ctx context.Context, conn *pgx.Conn, base, prepared string, prepare func(ctx context.Context, url string) error) (string, error) {
	name, key, err := templateName()
	if err != nil {
		return "", err
	}
	name += prepared
	found, err := hasDatabase(ctx, conn, name)
	if err != nil || found {
		return name, err
	}
	if err := lock(ctx, conn, key); err != nil {
		return "", err
	}
	found, err = hasDatabase(ctx, conn, name)
	if err == nil && !found {
		err = buildTemplate(ctx, conn, base, name, prepare)
	}
	return name, errors.Join(err, execute(ctx, conn, "select pg_advisory_unlock_all()"))
}

const buildingSuffix = "_building"

// templateName also returns the advisory lock that is held while the template is built.
// A template belongs to one process: what a build's migrations do is in its SQL and in
// its code, so nothing shorter than the test binary would tell two of them apart.
func templateName() (name string, key int64, err error) {
	host, err := os.Hostname()
	if err != nil {
		return "", 0, err
	}
	executable, err := os.Executable()
	if err != nil {
		return "", 0, err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", host, executable, os.Getpid()))
	return "weft_template_" + hex.EncodeToString(sum[:8]), int64(binary.BigEndian.Uint64(sum[:8])), nil
}

// dropTemplates is for the end of the process; there may be none.
func dropTemplates(base string) error {
	name, _, err := templateName()
	if err != nil {
		return err
	}
	return onSession(context.Background(), base, func(ctx context.Context, conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, "select datname::text from pg_database where starts_with(datname::text, $1)", name)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for n, name := range names {
			names[n] = "drop database " + pgx.Identifier{name}.Sanitize() + " with (force)"
		}
		return execute(ctx, conn, names...)
	})
}

// buildTemplate migrates under another name first: a build that dies half-way is never
// taken for a template.
func buildTemplate(ctx context.Context, conn *pgx.Conn, base, name string, prepare func(ctx context.Context, url string) error) error {
	building := name + buildingSuffix
	dsn, err := withDatabase(base, building)
	if err != nil {
		return err
	}
	from, to := pgx.Identifier{building}.Sanitize(), pgx.Identifier{name}.Sanitize()
	if err := execute(ctx, conn, "drop database if exists "+from+" with (force)", "create database "+from+" template template0"); err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, dsn); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := prepare(ctx, dsn); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	// A first session leaves a file of what every session reads of the catalog, which is copied, too.
	if err := execOn(ctx, dsn); err != nil {
		return err
	}
	return execute(ctx, conn,
		"alter database "+from+" allow_connections false",
		"select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = '"+building+"'",
		"alter database "+from+" rename to "+to)
}

func hasDatabase(ctx context.Context, conn *pgx.Conn, name string) (found bool, err error) {
	err = conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&found)
	return found, err
}

// lock polls, because a blocking waiter keeps a snapshot that holds up vacuum and
// concurrent index builds in the same database.
func lock(ctx context.Context, conn *pgx.Conn, key int64) error {
	for range Every(ctx, 20*time.Millisecond) {
		var held bool
		if err := conn.QueryRow(ctx, "select pg_try_advisory_lock($1)", key).Scan(&held); err != nil || held {
			return err
		}
	}
	return ctx.Err()
}
