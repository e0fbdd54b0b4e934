package rig

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// On servers of the user a corner has names of its own, and leaves nothing.
func TestCornerOnTheUsersServers(t *testing.T) {
	t.Parallel()
	p, err := Open(t.Context(), stack.Options{DatabaseURL: os.Getenv("DATABASE_URL"), ElasticURL: testenv.ElasticURL(t)}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	if p.Servers != nil || p.Started.Postgres || p.Started.Elastic {
		t.Error("a server was started")
	}
	suffix := Suffix()
	c, err := p.Corner(t.Context(), "weft_rigtest_"+suffix, "weft-rigtest-"+suffix, "rigtest-"+suffix, 2)
	if err != nil {
		t.Fatal(err)
	}
	var schema string
	if err := c.Pool.QueryRow(t.Context(), "select current_schema()").Scan(&schema); err != nil || schema != c.Schema {
		t.Errorf("current schema: got %q, %v; want %q", schema, err, c.Schema)
	}
	if _, err := c.Pool.Exec(t.Context(), "create table something (id int)"); err != nil {
		t.Fatal(err)
	}
	for _, index := range []string{c.Index + "-v1", c.Index + "-v2"} {
		if err := p.Elastic.Do(t.Context(), http.MethodPut, "/"+index, map[string]any{"aliases": map[string]any{}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := p.Elastic.Indices(t.Context(), c.Index); err != nil || len(names) != 2 {
		t.Errorf("indices: got %v, %v; want both", names, err)
	}

	if err := c.Close(t.Context()); err != nil {
		t.Errorf("close corner: %v", err)
	}
	var left int
	if err := p.Pool.QueryRow(t.Context(), "select count(*) from pg_namespace where nspname = $1", c.Schema).Scan(&left); err != nil || left != 0 {
		t.Errorf("schemas left: got %d, %v; want 0", left, err)
	}
	if names, err := p.Elastic.Indices(t.Context(), c.Index); err != nil || len(names) != 0 {
		t.Errorf("indices left: got %v, %v; want none", names, err)
	}
}

func TestOpenNamesTheServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), stack.Options{DatabaseURL: "postgres://nobody@127.0.0.1:1/none", ElasticURL: testenv.ElasticURL(t)}, 2)
	if err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("got %v, want an error that names DATABASE_URL", err)
	}
}
