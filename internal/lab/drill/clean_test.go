package drill

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

func testSite(t *testing.T, databaseURL string) *site {
	t.Helper()
	s, err := openSite(t.Context(), stack.Options{DatabaseURL: databaseURL, ElasticURL: testenv.ElasticURL(t)}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *site) schemas(t *testing.T) (n int) {
	t.Helper()
	if err := s.Pool.QueryRow(t.Context(), `select count(*) from pg_namespace where nspname like 'weft\_drill\_%'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What a killed run has left goes, block and all; what belongs to a run that lives stays.
func TestCleanAfterACrash(t *testing.T) {
	t.Parallel()
	url := testDatabase(t, "dev")
	p := testSite(t, url)
	c, err := p.newCorner(t.Context(), "es_write_block_4xx")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Pool.Close()
	for _, do := range []struct {
		method, path string
		body         any
	}{
		{http.MethodPut, "/" + c.Index + "-v1", map[string]any{"settings": map[string]any{"number_of_replicas": 0}}},
		{http.MethodPut, "/" + c.Index + "-v1/_settings", map[string]any{"index.blocks.write": true}},
	} {
		if err := p.Elastic.Do(t.Context(), do.method, do.path, do.body, nil); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	opts := Options{Out: &out, Evidence: t.TempDir(), DatabaseURL: url, ElasticURL: testenv.ElasticURL(t), Environment: "dev"}
	clean := func(want string) {
		t.Helper()
		out.Reset()
		if err := Clean(t.Context(), opts, -1, "es_write_block_4xx"); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) || want == "" && out.Len() > 0 {
			t.Errorf("clean: got %q, want %q", &out, want)
		}
	}
	clean("belongs to a run that is under way")
	if names, err := p.Elastic.Indices(t.Context(), c.Index); err != nil || len(names) != 1 || p.schemas(t) != 1 {
		t.Fatalf("after the clean of a run that lives: %v, %v and %d schemas, want all", names, err, p.schemas(t))
	}
	if err := c.session.Close(context.WithoutCancel(t.Context())); err != nil { // as its death would
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		out.Reset()
		return Clean(t.Context(), opts, -1, "es_write_block_4xx") == nil && strings.Contains(out.String(), "removed schema "+c.Schema)
	}, "the clean of what is left")
	if names, err := p.Elastic.Indices(t.Context(), c.Index); err != nil || len(names) != 0 || p.schemas(t) != 0 {
		t.Errorf("after clean: %v, %v and %d schemas, want none", names, err, p.schemas(t))
	}
	clean("")
}

// A database that has become another environment's is left alone, whatever is in it.
func TestAnotherEnvironmentIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, env := range []string{"sandbox", "production"} {
		var out bytes.Buffer
		opts := testOptions(t, &out, "never started")
		opts.DatabaseURL = testDatabase(t, env)
		if err := Run(t.Context(), opts, "duplicate_delivery"); !errors.Is(err, rig.ErrEnvironment) {
			t.Errorf("run on %s: got %v, want a refusal", env, err)
		}
		if err := Clean(t.Context(), opts, -1, "all"); !errors.Is(err, rig.ErrEnvironment) {
			t.Errorf("clean on %s: got %v, want a refusal", env, err)
		}
	}
	url := testDatabase(t, "test")
	p := testSite(t, url)
	c, err := p.newCorner(t.Context(), "duplicate_delivery")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Pool.Exec(t.Context(), `update environment_sentinel set env = 'sandbox'`); err != nil {
		t.Fatal(err)
	}
	r := &run{corner: c}
	if err := r.Play(t.Context(), func() {
		r.inject("a fault", func(context.Context) error { t.Error("the fault was injected"); return nil }, nil)
		t.Error("the script went on")
	}); !errors.Is(err, rig.ErrEnvironment) {
		t.Errorf("inject: got %v, want a refusal", err)
	}
	if err := c.close(t.Context()); !errors.Is(err, rig.ErrEnvironment) || p.schemas(t) != 1 {
		t.Errorf("close: got %v and %d schemas, want a refusal and the schema", err, p.schemas(t))
	}
	opts := Options{DatabaseURL: url, ElasticURL: testenv.ElasticURL(t), Environment: "dev", Out: &bytes.Buffer{}}
	if err := Clean(t.Context(), opts, -1, "all"); err == nil {
		t.Error("clean with WORDLOOM_ENV=dev: got no error")
	}
}

func TestKeepLast(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var all []verdict.Dir
	for range 4 {
		d, err := verdict.Create(root, "es_429_inject", evidenceTime())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	var out bytes.Buffer
	if err := Clean(t.Context(), Options{Out: &out, Evidence: root}, 2, "all"); err != nil {
		t.Fatal(err)
	}
	left, err := verdict.Runs(root, "es_429_inject")
	if err != nil || len(left) != 2 || left[0] != all[2] || left[1] != all[3] {
		t.Errorf("left: got %v, %v; want the newest two of %v", left, err, all)
	}
}
