package docstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

// TestRestoredDatabaseIsMended follows two pages as they are written: the database goes
// back to a backup, the same index cannot be repaired, and a new one takes its place.
func TestRestoredDatabaseIsMended(t *testing.T) {
	t.Parallel()
	page := document(t, folder+"/index-rebuild.md")
	commands := page.in("Actions", "sh")
	if len(commands) != 1 {
		t.Fatalf("%s: got %d commands among the actions, want one", page.name, len(commands))
	}
	r := newRestore(t)

	weft := r.start(r.index)
	r.run(`insert into search_index (id, entity_type, entity_id, text, event_version)
	       select md5('r' || n)::uuid, 'book', md5('e' || n)::uuid, 'before', 1000 from generate_series(1, 30) n`, enqueue+`true`)
	r.drained()
	r.run(`create table backup as select * from search_index`)
	r.run(`update search_index set text = 'after', event_version = 5000 where entity_id in (select md5('e' || n)::uuid from generate_series(1, 10) n)`,
		`insert into search_index (entity_type, entity_id, text, event_version) select 'tag', gen_random_uuid(), 'after', 5000 from generate_series(1, 3)`,
		enqueue+`event_version = 5000`,
		`with gone as (delete from search_index where entity_id in (select md5('e' || n)::uuid from generate_series(11, 14) n) returning *)
		 insert into search_outbox_events (entity_type, entity_id, op, event_version) select entity_type, entity_id, 'delete', 5000 from gone`)
	r.drained()
	r.equal(r.index)
	r.stop(weft)

	r.run(`truncate search_index, search_outbox_events`, `insert into search_index select * from backup`)
	r.start(r.index)
	r.run(enqueue + `true`)
	r.drained()
	if got := r.compare(r.index); got.Stale != 10 || got.Extra != 3 || got.Missing != 4 {
		t.Errorf("everything sent again into the same index: got %d stale, %d extra, %d missing documents, want 10, 3 and 4: that does not help",
			got.Stale, got.Extra, got.Missing)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", commands[0].text)
	cmd.Env = append(slices.Clone(r.fleet.Env), "ELASTIC_INDEX="+r.index, "PATH="+filepath.Dir(r.fleet.Binary)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", page.at(commands[0]), err, out)
	}
	r.equal(r.index)
	r.run(`update search_index set text = 'goes on', event_version = 2000 where entity_id = md5('e1')::uuid`, enqueue+`event_version = 2000`)
	r.drained()
	r.equal(r.index)
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

// start runs an instance that carries into index.
func (r *restore) start(index string) *rig.Instance {
	r.t.Helper()
	i, err := r.fleet.Start(r.t.Context(), "a", "ELASTIC_INDEX="+index)
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
	testenv.Eventually(r.t, time.Minute, func() bool {
		var left int
		if err := r.pool.QueryRow(r.t.Context(), `select count(*) from search_outbox_events where status <> 'done'`).Scan(&left); err != nil {
			r.t.Fatal(err)
		}
		return left == 0
	}, "all events are done")
}

func (r *restore) compare(index string) *reconcile.Report {
	r.t.Helper()
	got, err := reconcile.Run(r.t.Context(), r.pool, r.elastic, index)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func (r *restore) equal(index string) {
	r.t.Helper()
	if got := r.compare(index); !got.Equal() {
		r.t.Fatalf("%s: got %d missing, %d extra, %d stale documents, want none: %v", index, got.Missing, got.Extra, got.Stale, got.Examples)
	}
}
