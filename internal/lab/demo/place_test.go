package demo

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

// On servers of the user the demo keeps to itself and leaves nothing.
func TestPlaceOnTheUsersServers(t *testing.T) {
	t.Parallel()
	es, err := reconcile.NewClient(testenv.ElasticURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer es.Close()
	p, err := openPlace(t.Context(), os.Getenv("DATABASE_URL"), testenv.ElasticURL(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.stack != nil {
		t.Error("a server was started")
	}
	if p.group == "weft" || p.index == "weft-demo" || p.schema == "" {
		t.Errorf("group %q, index %q, schema %q: want names of its own", p.group, p.index, p.schema)
	}
	conn, err := pgx.Connect(t.Context(), p.databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	var schema string
	if err := conn.QueryRow(t.Context(), "select current_schema()").Scan(&schema); err != nil || schema != p.schema {
		t.Errorf("current schema: got %q, %v; want %q", schema, err, p.schema)
	}
	if _, err := conn.Exec(t.Context(), "create table something (id int)"); err != nil {
		t.Fatal(err)
	}
	for _, index := range []string{p.index + "-v1", p.index + "-v2"} {
		if err := es.Do(t.Context(), http.MethodPut, "/"+index, map[string]any{"aliases": map[string]any{}}, nil); err != nil {
			t.Fatal(err)
		}
	}

	if err := p.close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	var left int
	if err := conn.QueryRow(t.Context(), "select count(*) from pg_namespace where nspname = $1", p.schema).Scan(&left); err != nil || left != 0 {
		t.Errorf("schemas left: got %d, %v; want 0", left, err)
	}
	_ = conn.Close(t.Context())
	var settings map[string]any
	if err := es.Do(t.Context(), http.MethodGet, "/"+p.index+"*/_settings", nil, &settings); err != nil || len(settings) != 0 {
		t.Errorf("indices left: got %v, %v; want none", settings, err)
	}
}

func TestPlaceNamesTheServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	_, err := openPlace(t.Context(), "postgres://nobody@127.0.0.1:1/none", testenv.ElasticURL(t), nil)
	if err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("got %v, want an error that names DATABASE_URL", err)
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	if got, want := shown("postgres://u:secret@h/d"), "postgres://u:xxxxx@h/d"; got != want {
		t.Errorf("shown: got %q, want %q", got, want)
	}
}
