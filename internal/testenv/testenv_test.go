package testenv

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

func TestMain(m *testing.M) { Main(m) }

func TestSchemaIsAloneOnTheSearchPathAndDropped(t *testing.T) {
	t.Parallel()

	var name string
	t.Run("Use", func(t *testing.T) {
		pool := Pool(t, Schema(t))
		if _, err := pool.Exec(t.Context(), "create table thing (id int)"); err != nil {
			t.Fatalf("create table: %v", err)
		}
		if err := pool.QueryRow(t.Context(), "select current_schema").Scan(&name); err != nil {
			t.Fatalf("current schema: %v", err)
		}
		if !strings.HasPrefix(name, "weft_test_") {
			t.Errorf("current schema: got %q, want a weft_test_… name", name)
		}
		var path string
		if err := pool.QueryRow(t.Context(), "show search_path").Scan(&path); err != nil || path != name {
			t.Errorf("search_path: got %q (%v), want %q", path, err, name)
		}
	})

	var left int
	pool := Pool(t, server(t, databaseEnv))
	err := pool.QueryRow(t.Context(), "select count(*) from pg_namespace where nspname = $1", name).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("schemas after the test: got %d (%v), want 0", left, err)
	}
}

func TestDatabaseIsMigratedAndDropped(t *testing.T) {
	t.Parallel()

	var names []string
	t.Run("Use", func(t *testing.T) {
		for range 2 {
			url := Database(t)
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatalf("connect: %v", err)
			}
			// Left open on purpose: a forgotten session must not keep the database.
			t.Cleanup(func() { _ = conn.Close(t.Context()) })
			var name string
			var rows int
			if err := conn.QueryRow(t.Context(), "select current_database(), (select count(*) from search_outbox_events)").Scan(&name, &rows); err != nil {
				t.Fatalf("look into the database: %v", err)
			}
			if rows != 0 {
				t.Errorf("events: got %d, want 0", rows)
			}
			names = append(names, name)
		}
	})
	if names[0] == names[1] {
		t.Errorf("database names: got %q twice, want two", names[0])
	}

	var left int
	pool := Pool(t, server(t, databaseEnv))
	err := pool.QueryRow(t.Context(), "select count(*) from pg_database where datname = any($1)", names).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("databases after the test: got %d (%v), want 0", left, err)
	}
}

func TestIndexIsDeletedWithItsVersions(t *testing.T) {
	t.Parallel()

	var name string
	es, err := reconcile.NewClient(ElasticURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer es.Close()
	t.Run("Use", func(t *testing.T) {
		name = Index(t)
		for _, path := range []string{"/" + name + "-v1", "/" + name + "-v2", "/" + name + "-v2/_alias/" + name} {
			if err := es.Do(t.Context(), http.MethodPut, path, nil, nil); err != nil {
				t.Fatalf("make %s: %v", path, err)
			}
		}
	})
	if left, err := es.Indices(t.Context(), name); err != nil || len(left) > 0 {
		t.Errorf("indices after the test: got %v (%v), want none", left, err)
	}
}

func TestMissingServersErrorNamesTheRemedy(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		env  map[string]string
		want string
	}{
		"None": {map[string]string{}, "DATABASE_URL and ELASTIC_URL are not set"},
		"One":  {map[string]string{databaseEnv: "postgres://"}, "ELASTIC_URL is not set"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := missingServers(func(key string) string { return c.env[key] })
			if !strings.Contains(got, c.want) || !strings.Contains(got, "make test") || strings.Contains(got, "\n") {
				t.Errorf("message: got %q, want one line with %q and `make test`", got, c.want)
			}
		})
	}
	if got := missingServers(func(string) string { return "set" }); got != "" {
		t.Errorf("message with both set: got %q, want none", got)
	}
}

func TestUniqueNameFitsPostgres(t *testing.T) {
	t.Parallel()

	t.Run("A very long name, with ÜTF-8 and / slashes, to be cut somewhere", func(t *testing.T) {
		a, b := uniqueName(t.Name(), "weft_test_", "_"), uniqueName(t.Name(), "weft_test_", "_")
		if a == b {
			t.Errorf("names: got %q twice, want two", a)
		}
		if len(a) > 63 || strings.Trim(a, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("name: got %q, want at most 63 of a-z 0-9 _", a)
		}
	})
}

func TestEventuallyFailsNamingWhat(t *testing.T) {
	t.Parallel()

	probe := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Within(probe, 20*time.Millisecond, func() bool { return false }, "the moon is full")
	}()
	<-done
	if !strings.Contains(probe.fatal, "the moon is full") {
		t.Errorf("failure: got %q, want it to name what", probe.fatal)
	}

	calls := 0
	Eventually(t, func() bool { calls++; return calls == 3 }, "third call")
}
