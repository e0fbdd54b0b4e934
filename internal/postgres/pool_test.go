package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// The server translates: weft takes all texts for UTF-8. SQL_ASCII has nothing to translate from, and its texts stay.
func TestTextsAreUTF8(t *testing.T) {
	t.Parallel()
	for encoding, want := range map[string]string{"UTF8": "é", "LATIN1": "é", "SQL_ASCII": "\xe9"} {
		url := testenv.DatabaseIn(t, encoding)
		pool, err := postgres.NewPool(t.Context(), url, postgres.Options{MaxConns: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		var got string
		if err := pool.QueryRow(t.Context(), "select chr(233)").Scan(&got); err != nil || got != want {
			t.Errorf("in %s: got %q, %v, want %q", encoding, got, err, want)
		}
	}
}

// The server may send times as text, in the style that a role or a database has.
func TestTimesAreReadWhateverTheDateStyle(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseIn(t, "UTF8")
	admin := testenv.Pool(t, url)
	for _, style := range []string{"German", "SQL, DMY", "Postgres, MDY"} {
		_, err := admin.Exec(t.Context(), "do $$ begin execute format('alter database %I set datestyle = %L', current_database(), '"+style+"'); end $$")
		if err != nil {
			t.Fatal(err)
		}
		pool, err := postgres.NewPool(t.Context(), url, postgres.Options{MaxConns: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		want := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
		var got time.Time
		err = pool.QueryRow(t.Context(), "select timestamptz '2026-03-04 05:06:07+00'", pgx.QueryExecModeExec).Scan(&got)
		if err != nil || !got.Equal(want) {
			t.Errorf("DateStyle %s: got %v, %v, want %v", style, got, err, want)
		}
	}
}

// weft bounds each statement itself, and its sessions are idle between two: the settings would end the session as well, and what
// took too long would not be repeated with less. A session follows what is set for the server while it lives, unless it has a value
// of its own.
func TestTimeoutsOfTheDatabaseDoNotHold(t *testing.T) {
	t.Parallel()
	for setting, since := range map[string]int{"transaction_timeout": 17, "idle_session_timeout": 14} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			if testenv.PostgresMajor(t) < since {
				t.Skipf("%s came with PostgreSQL %d", setting, since)
			}
			for _, set := range []string{"0", "50ms"} {
				url := testenv.Database(t)
				_, err := testenv.Pool(t, url).Exec(t.Context(), "do $$ begin execute format('alter database %I set "+setting+" = %L', current_database(), '"+set+"'); end $$")
				if err != nil {
					t.Fatal(err)
				}
				pool, err := postgres.NewPool(t.Context(), url, postgres.Options{MaxConns: 1})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				var got string
				err = pool.QueryRow(t.Context(), "select source || ', ' || setting from pg_settings, pg_sleep(0.2) where name = $1", setting).Scan(&got)
				if err != nil || got != "session, 0" {
					t.Errorf("set to %s: it is that of the %s, %v, want the session's own, 0, and a statement of 200 ms", set, got, err)
				}
			}
		})
	}
}

// Behind a proxy a session may lead to a server that has become a standby, until the proxy notices.
func TestReadOnlySessionIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	pool, err := postgres.NewPool(t.Context(), testenv.Database(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const write = "create table if not exists written ()"
	if _, err := pool.Exec(t.Context(), "set default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	_, err = pool.Exec(t.Context(), write)
	if kind, text := postgres.Diagnose(err); kind != postgres.ReadOnly {
		t.Fatalf("got %q for a write of a read-only session, want that it is one", text)
	}
	if _, err := pool.Exec(t.Context(), write); err != nil {
		t.Errorf("the next write: %v, want that a new session does it", err)
	}
}

// The role or the database may have had a search_path for a moment that leads past the tables.
func TestSessionThatLacksATableIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	pool, err := postgres.NewPool(t.Context(), testenv.Database(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const read = "select from there"
	for _, sql := range []string{"create table there ()", "set search_path = pg_catalog"} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pool.Exec(t.Context(), read); err == nil {
		t.Fatal("read past the search_path, want that the table is missing")
	}
	if _, err := pool.Exec(t.Context(), read); err != nil {
		t.Errorf("the next read: %v, want that a new session does it", err)
	}
}
