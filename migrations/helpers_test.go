package migrations_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// setup returns an empty schema in a database of its own, so that no other test's
// snapshot holds up a concurrent index build.
func setup(t *testing.T) (dsn string, pool *pgxpool.Pool) {
	t.Helper()
	base := testenv.Database(t)
	if _, err := testenv.Pool(t, base).Exec(t.Context(), "create schema app"); err != nil {
		t.Fatalf("create schema: %v", err)
	}
	dsn = with(t, base, "search_path", "app")
	return dsn, testenv.Pool(t, dsn)
}

// adopted returns a schema with a Wordloom deployment of n outbox rows in it.
func adopted(t *testing.T, n int) (dsn string, pool *pgxpool.Pool, filled legacy.Filled) {
	t.Helper()
	dsn, pool = setup(t)
	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	filled, err := legacy.Fill(t.Context(), pool, n)
	if err != nil {
		t.Fatal(err)
	}
	return dsn, pool, filled
}

func with(t *testing.T, dsn, key, value string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("parse url: %v", err)
	}
	q := u.Query()
	q.Set(key, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func up(t *testing.T, dsn string, opts ...migrations.Option) []migrations.Step {
	t.Helper()
	steps, err := migrations.Up(t.Context(), dsn, opts...)
	if err != nil {
		t.Fatalf("up: %v", err)
	}
	return steps
}

func versions(steps []migrations.Step) []int64 {
	var vs []int64
	for _, s := range steps {
		vs = append(vs, s.Version)
	}
	return vs
}

// query returns the first column of all rows.
func query[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

func one[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	all := query[T](t, pool, sql, args...)
	if len(all) != 1 {
		t.Fatalf("%s: got %d rows, want 1", sql, len(all))
	}
	return all[0]
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// validIndexes lists weft's indexes of the outbox tables that are usable.
func validIndexes(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return query[string](t, pool, `select c.relname::text from pg_index i join pg_class c on c.oid = i.indexrelid
		where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relname like 'weft\_%\_outbox\_%' and i.indisvalid and i.indisready
		order by 1`)
}

// wantIndexes are weft's on the outbox tables at the latest version.
var wantIndexes = []string{
	"weft_chronicle_outbox_behind", "weft_chronicle_outbox_blocked", "weft_chronicle_outbox_discarded", "weft_chronicle_outbox_entity", "weft_chronicle_outbox_failed",
	"weft_chronicle_outbox_letters", "weft_chronicle_outbox_list", "weft_chronicle_outbox_processing", "weft_chronicle_outbox_retry",
	"weft_search_outbox_behind", "weft_search_outbox_blocked", "weft_search_outbox_discarded", "weft_search_outbox_entity", "weft_search_outbox_failed",
	"weft_search_outbox_letters", "weft_search_outbox_list", "weft_search_outbox_processing", "weft_search_outbox_retry",
}

// olderIndexes are those that only builds before leases read, at version 4 and where it was upgraded.
var olderIndexes = []string{"weft_chronicle_outbox_due", "weft_chronicle_outbox_ready", "weft_search_outbox_due", "weft_search_outbox_ready"}

// upgradedIndexes are those of a database on which a build before leases may have worked.
func upgradedIndexes() []string {
	return slices.Sorted(slices.Values(slices.Concat(wantIndexes, olderIndexes)))
}

// hold opens a transaction, runs sql in it, and leaves it idle until release.
func hold(t *testing.T, pool *pgxpool.Pool, sql string) (pid uint32, release func()) {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(release)
	return tx.Conn().PgConn().PID(), release
}

// snapshot pins a snapshot, and locks no table of ours.
const snapshot = "select count(*) from pg_catalog.pg_database"

// lines collects progress and calls f with each line.
type lines struct {
	mu  sync.Mutex
	all []string
	f   func(string)
}

func (l *lines) option() migrations.Option {
	return migrations.WithProgress(func(p migrations.Progress) {
		l.mu.Lock()
		l.all = append(l.all, p.String())
		l.mu.Unlock()
		if l.f != nil {
			l.f(p.String())
		}
	})
}

func (l *lines) contain(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.all, func(s string) bool { return strings.Contains(s, part) })
}

func wantLockError(t *testing.T, err error, pid uint32) {
	t.Helper()
	lock, ok := errors.AsType[*migrations.LockError](err)
	if !ok {
		t.Fatalf("error: got %v, want a LockError", err)
	}
	if uint32(lock.Holder.PID) != pid {
		t.Errorf("holder: got %s, want pid %d", lock.Holder, pid)
	}
}
