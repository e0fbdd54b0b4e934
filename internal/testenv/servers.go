package testenv

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/migrations"
)

const (
	// serverTimeout bounds one piece of housekeeping. The first one of a process migrates what the others
	// copy, and all of them wait for it.
	serverTimeout = Limit

	// A test that leaves a transaction open would hold its own schema for ever.
	dropLockTimeout = "10s"
)

// Schema makes an empty schema in the database of DATABASE_URL and returns a URL whose
// sessions have it, and nothing else, on their search_path. Sessions that still hold
// locks in it when the test ends fail the test.
func Schema(t testing.TB) string {
	t.Helper()
	base := server(t, databaseEnv)
	name := uniqueName(t.Name(), "weft_test_", "_")
	quoted := pgx.Identifier{name}.Sanitize()

	dsn, err := changed(base, func(u *url.URL) {
		query := u.Query()
		query.Set("search_path", name)
		u.RawQuery = query.Encode()
	})
	must(t, "address of the database", err)
	must(t, "make schema", execOn(t.Context(), base, "create schema "+quoted))
	dropAtEnd(t, base, "schema "+name, "set lock_timeout = '"+dropLockTimeout+"'", "drop schema "+quoted+" cascade")
	return dsn
}

// dropAtEnd runs statements when the test ends.
func dropAtEnd(t testing.TB, dsn, what string, statements ...string) {
	t.Helper()
	t.Cleanup(func() {
		if err := execOn(context.Background(), dsn, statements...); err != nil {
			t.Errorf("testenv: drop %s: %v", what, err)
		}
	})
}

// Pool opens a pool on url and closes it when the test ends. It fails the test when
// the server does not answer.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	must(t, "open pool", err)
	t.Cleanup(pool.Close)

	ctx, cancel := context.WithTimeout(t.Context(), serverTimeout)
	defer cancel()
	must(t, "open pool", pool.Ping(ctx))
	return pool
}

// Lock locks tables of url against readers and writers until unlock is called, or the test ends.
func Lock(t testing.TB, url, tables string) (unlock func()) {
	t.Helper()
	tx, err := Pool(t, url).Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "lock table "+tables+" in access exclusive mode")
	}
	must(t, "lock "+tables, err)
	unlock = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(unlock)
	return unlock
}

// execOn runs statements, one at a time and outside a transaction, on a session of its own.
func execOn(ctx context.Context, dsn string, statements ...string) error {
	return onSession(ctx, dsn, func(ctx context.Context, conn *pgx.Conn) error { return execute(ctx, conn, statements...) })
}

func execute(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func onSession(ctx context.Context, dsn string, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return do(ctx, conn)
}

// changed returns base after change.
func changed(base string, change func(*url.URL)) (string, error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", fmt.Errorf("%s must be a postgres:// URL for the tests", databaseEnv)
	}
	change(u)
	return u.String(), nil
}

func withDatabase(base, name string) (string, error) {
	return changed(base, func(u *url.URL) { u.Path = "/" + name })
}

// uniqueName is prefix, the readable part of the test's name, and 60 random bits, with
// sep between them: at most 53 bytes, under PostgreSQL's 63, lower case letters, digits and sep.
func uniqueName(test, prefix, sep string) string {
	const readable = 30
	words := strings.FieldsFunc(strings.ToLower(test), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	name := strings.Join(words, sep)
	if len(name) > readable {
		name = strings.Trim(name[:readable], sep)
	}
	return prefix + name + sep + strings.ToLower(rand.Text()[:12])
}

// PostgresMajor returns the major version of the server of DATABASE_URL, for tests of what only newer
// ones have. They say so where they leave something out.
func PostgresMajor(t testing.TB) int {
	t.Helper()
	var number int
	err := onSession(t.Context(), server(t, databaseEnv), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&number)
	})
	must(t, "version of PostgreSQL", err)
	return number / 10_000
}

// Runner makes a role that may do in the migrated database at dsn what `weft run` needs,
// and nothing else. It is dropped when the test ends.
func Runner(t testing.TB, dsn string) *url.Userinfo {
	t.Helper()
	name, password := uniqueName(t.Name(), "weft_test_", "_"), rand.Text()
	quoted := pgx.Identifier{name}.Sanitize()
	must(t, "make role", execOn(t.Context(), dsn, "create role "+quoted+" login password '"+password+"'"))
	// A test may have given the database settings of its own. Those of the address count from the
	// first statement on.
	plain, err := changed(dsn, func(u *url.URL) {
		q := u.Query()
		q.Set("idle_session_timeout", "0")
		q.Set("statement_timeout", "0")
		q.Set("default_transaction_read_only", "off")
		u.RawQuery = q.Encode()
	})
	must(t, "address of the database", err)
	dropAtEnd(t, plain, "role "+name, "drop owned by "+quoted, "drop role "+quoted)
	must(t, "grant to role", migrations.Grant(t.Context(), dsn, name))
	return url.UserPassword(name, password)
}

// As returns dsn with another user.
func As(t testing.TB, dsn string, user *url.Userinfo) string {
	t.Helper()
	other, err := changed(dsn, func(u *url.URL) { u.User = user })
	must(t, "address of the database", err)
	return other
}

// ElasticURL returns the URL of the Elasticsearch server, without a trailing slash.
func ElasticURL(t testing.TB) string {
	t.Helper()
	return strings.TrimRight(server(t, elasticEnv), "/")
}

// Index returns a name that no index or alias has. When the test ends, the index of
// that name and every index whose name starts with it (name-v1, …) are deleted.
func Index(t testing.TB) string {
	t.Helper()
	base := ElasticURL(t)
	name := uniqueName(t.Name(), "weft-test-", "-")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
		defer cancel()
		es, err := reconcile.NewClient(base)
		if err == nil {
			// An idle connection would be taken for a leaked goroutine; tests have some of their own.
			defer http.DefaultClient.CloseIdleConnections()
			defer es.Close()
			err = es.DeleteIndices(ctx, name)
		}
		if err != nil {
			t.Errorf("testenv: delete index %s: %v", name, err)
		}
	})
	return name
}
