package docstest

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

// restorePath returns the three commands of the path after a restore.
func restorePath(t *testing.T) (compare, repair, rebuild string) {
	t.Helper()
	page := document(t, "docs/rebuild.md")
	commands := page.in("After a restore", "sh")
	if len(commands) != 3 {
		t.Fatalf("%s: got %d commands after a restore, want three", page.name, len(commands))
	}
	return commands[0].text, commands[1].text, commands[2].text
}

// The database goes back to a backup. The path after a restore is followed as it is written: what
// can be repaired is, and a new index takes care of the documents ahead of their rows.
func TestRestoreOfPostgres(t *testing.T) {
	t.Parallel()
	compare, repair, rebuild := restorePath(t)
	r := newRestore(t)

	weft := r.start()
	r.run(`insert into search_index (id, entity_type, entity_id, text, event_version)
	       select md5('r' || n)::uuid, 'book', md5('e' || n)::uuid, 'before', 1000 from generate_series(1, 30) n`, enqueue+`true`)
	r.drained()
	r.run(`create table backup as select * from search_index`)
	r.changed()
	r.stop(weft)

	r.run(`truncate search_index, search_outbox_events`, `insert into search_index select * from backup`)
	r.start()
	r.run(enqueue + `true`)
	r.drained()
	if got := r.compare(); got.Stale != 10 || got.Extra != 3 || got.Missing != 4 {
		t.Errorf("everything sent again into the same index: got %d stale, %d extra, %d missing documents, want 10, 3 and 4: that does not help",
			got.Stale, got.Extra, got.Missing)
	}
	r.command(compare, 1)
	r.command(repair, 1)
	if got := r.compare(); got.Stale != 10 || got.Extra != 0 {
		t.Errorf("after the repair: got %d stale, %d extra and %d missing documents, want the 10 that are ahead, and no extra one", got.Stale, got.Extra, got.Missing)
	}
	r.command(rebuild, 0)
	r.equal()
	r.command(compare, 0)
	r.run(`update search_index set text = 'goes on', event_version = 2000 where entity_id = md5('e1')::uuid`, enqueue+`event_version = 2000`)
	r.drained()
	r.equal()
}

// Elasticsearch goes back to a snapshot. The repair of the path is enough.
func TestRestoreOfElasticsearch(t *testing.T) {
	t.Parallel()
	compare, repair, _ := restorePath(t)
	r := newRestore(t)
	weft := r.start()
	r.run(`insert into search_index (id, entity_type, entity_id, text, event_version)
	       select md5('r' || n)::uuid, 'book', md5('e' || n)::uuid, 'before', 1000 from generate_series(1, 30) n`, enqueue+`true`)
	r.drained()
	repository := "/_snapshot/" + r.index
	r.ask(http.MethodPut, repository, map[string]any{"type": "fs", "settings": map[string]any{"location": r.index}})
	t.Cleanup(func() { r.ask(http.MethodDelete, repository, nil) })
	r.ask(http.MethodPut, repository+"/backup?wait_for_completion=true", map[string]any{"indices": r.index + "-v1", "include_global_state": false})
	r.changed()
	r.stop(weft)

	r.ask(http.MethodDelete, "/"+r.index+"-v1", nil)
	r.ask(http.MethodPost, repository+"/backup/_restore?wait_for_completion=true", map[string]any{"indices": r.index + "-v1"})
	r.start()
	if got := r.compare(); got.Stale != 10 || got.Extra != 4 || got.Missing != 3 {
		t.Errorf("restored: got %d stale, %d extra, %d missing documents, want 10, 4 and 3", got.Stale, got.Extra, got.Missing)
	}
	r.command(compare, 1)
	r.command(repair, 0)
	r.equal()
	r.command(compare, 0)
}

// changed changes, adds and deletes rows.
func (r *restore) changed() {
	r.t.Helper()
	r.run(`update search_index set text = 'after', event_version = 5000 where entity_id in (select md5('e' || n)::uuid from generate_series(1, 10) n)`,
		`insert into search_index (entity_type, entity_id, text, event_version) select 'tag', gen_random_uuid(), 'after', 5000 from generate_series(1, 3)`,
		enqueue+`event_version = 5000`,
		`with gone as (delete from search_index where entity_id in (select md5('e' || n)::uuid from generate_series(11, 14) n) returning *)
		 insert into search_outbox_events (entity_type, entity_id, op, event_version) select entity_type, entity_id, 'delete', 5000 from gone`)
	r.drained()
	r.equal()
}

// command runs a command of a page, which must end with that exit code.
func (r *restore) command(text string, code int) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "sh", "-c", text)
	cmd.Env = append(slices.Clone(r.fleet.Env), "ELASTIC_INDEX="+r.index, "PATH="+filepath.Dir(r.fleet.Binary)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		r.t.Fatalf("%s: got exit code %d (%v), want %d: %s", text, got, err, code, out)
	}
}

func (r *restore) ask(method, path string, in any) {
	r.t.Helper()
	if err := r.elastic.Do(context.WithoutCancel(r.t.Context()), method, path, in, nil); err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
}

const enqueue = `insert into search_outbox_events (entity_type, entity_id, op, event_version)
	select entity_type, entity_id, 'upsert', event_version from search_index where `

type restore struct {
	t       *testing.T
	pool    *pgxpool.Pool
	elastic *reconcile.Client
	fleet   *rig.Fleet
	index   string
}

func newRestore(t *testing.T) *restore {
	t.Helper()
	url := testenv.Database(t)
	r := &restore{t: t, pool: testenv.Pool(t, url), index: testenv.Index(t)}
	var err error
	if r.elastic, err = reconcile.NewClient(testenv.ElasticURL(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.elastic.Close)
	r.fleet = &rig.Fleet{Binary: testenv.Program(t, "weft"), Dir: t.TempDir(),
		Env: rig.Environment(os.Environ(), true, "DATABASE_URL="+url, "ELASTIC_URL="+testenv.ElasticURL(t))}
	t.Cleanup(func() {
		if err := r.fleet.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// start runs an instance.
func (r *restore) start() *rig.Instance {
	r.t.Helper()
	i, err := r.fleet.Start(r.t.Context(), "a", "ELASTIC_INDEX="+r.index)
	if err != nil {
		r.t.Fatal(err)
	}
	return i
}

func (r *restore) stop(i *rig.Instance) {
	r.t.Helper()
	if err := r.fleet.Stop(); err != nil {
		r.t.Fatal(err)
	}
	<-i.Ended()
}

func (r *restore) run(statements ...string) {
	r.t.Helper()
	for _, sql := range statements {
		if _, err := r.pool.Exec(r.t.Context(), sql); err != nil {
			r.t.Fatalf("%s: %v", sql, err)
		}
	}
}

func (r *restore) drained() {
	r.t.Helper()
	testenv.Eventually(r.t, func() bool {
		var left int
		if err := r.pool.QueryRow(r.t.Context(), `select count(*) from search_outbox_events where status <> 'done'`).Scan(&left); err != nil {
			r.t.Fatal(err)
		}
		return left == 0
	}, "all events are done")
}

func (r *restore) compare() *reconcile.Report {
	r.t.Helper()
	got, err := reconcile.Run(r.t.Context(), r.pool, r.elastic, r.index, reconcile.SearchIndex)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func (r *restore) equal() {
	r.t.Helper()
	if got := r.compare(); !got.Equal() {
		r.t.Fatalf("got %d missing, %d extra, %d stale documents, want none: %v", got.Missing, got.Extra, got.Stale, got.Examples)
	}
}
