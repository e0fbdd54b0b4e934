package docstest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

// oldClaim is what the Python worker does with a row, in short.
const oldClaim = `
with claimed as (
  select id from %s where status = 'pending' and (next_retry_at is null or next_retry_at <= now()) order by created_at for update skip locked
)
update %s o set status = 'done', owner = 'w1', attempts = attempts + 1, processed_at = now(), updated_at = now() from claimed where o.id = claimed.id`

// TestComingFromWordloom follows docs/from-wordloom.md on a database as the Python workers leave
// it, to weft and back.
func TestComingFromWordloom(t *testing.T) {
	t.Parallel()
	page := document(t, "docs/from-wordloom.md")
	url := testenv.Schema(t)
	r := &restore{t: t, pool: testenv.Pool(t, url), index: testenv.Index(t)}
	if err := legacy.Create(t.Context(), r.pool); err != nil {
		t.Fatal(err)
	}
	filled, err := legacy.Fill(t.Context(), r.pool, 400)
	if err != nil || filled.Search.Processing == 0 || filled.Chronicle.Pending == 0 {
		t.Fatalf("got %+v, %v, want claims of a dead worker and open events", filled, err)
	}
	if r.elastic, err = reconcile.NewClient(testenv.ElasticURL(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.elastic.Close)
	old := "postgresql+psycopg://" + strings.TrimPrefix(strings.TrimPrefix(url, "postgres://"), "postgresql://")
	r.fleet = &rig.Fleet{Binary: testenv.Program(t, "weft"), Dir: t.TempDir(), Env: rig.Environment(os.Environ(), true,
		"DATABASE_URL="+old, "ELASTIC_URL="+testenv.ElasticURL(t), "ELASTIC_INDEX="+r.index, "OTEL_SERVICE_NAME=wordloom-search-outbox-worker",
		"OUTBOX_RECLAIM_INTERVAL_SECONDS=0.2", "OUTBOX_USE_ES_BULK=1", "OUTBOX_EXPERIMENT_ES_429_RATIO=0")}
	t.Cleanup(func() {
		if err := r.fleet.Stop(); err != nil {
			t.Error(err)
		}
	})

	steps := page.in("Go over", "sh")
	if len(steps) != 2 {
		t.Fatalf("%s: got %d steps to go over, want 2", page.name, len(steps))
	}
	r.follow(page, steps[0])
	weft := r.start()
	settled := func() {
		t.Helper()
		testenv.Eventually(t, func() bool {
			var left int
			err := r.pool.QueryRow(t.Context(), `select (select count(*) from search_outbox_events where status in ('pending', 'processing'))
				+ (select count(*) from chronicle_outbox_events where status in ('pending', 'processing'))`).Scan(&left)
			return err == nil && left == 0
		}, "both tables are settled")
	}
	settled()
	r.follow(page, steps[1])
	settled()
	r.equal()
	if err := legacy.Produce(t.Context(), r.pool); err != nil {
		t.Errorf("the application goes on to write: %v", err)
	}
	settled()
	r.equal()
	r.savedQueries(page, weft)

	r.stop(weft)
	log, err := os.ReadFile(filepath.Join(r.fleet.Dir, "weft-a.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"OUTBOX_USE_ES_BULK", "OUTBOX_EXPERIMENT_ES_429_RATIO"} {
		if !bytes.Contains(log, []byte("environment name "+name)) {
			t.Errorf("weft did not warn of %s", name)
		}
	}
	r.back(page)
}

// follow runs a step of the page.
func (r *restore) follow(p page, step block) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "sh", "-ec", step.text)
	cmd.Env = append(slices.Clone(r.fleet.Env), "USER=alice", "ELASTIC_INDEX="+r.index, "PATH="+filepath.Dir(r.fleet.Binary)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v: %s", p.at(step), err, out)
	}
}

// savedQueries holds that the series of each saved query are there.
func (r *restore) savedQueries(p page, weft *rig.Instance) {
	r.t.Helper()
	metrics, err := weft.Get(r.t.Context(), "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	queries := p.in("Queries", "promql")
	if len(queries) != 1 {
		r.t.Fatalf("%s: got %d blocks of queries, want 1", p.name, len(queries))
	}
	series := regexp.MustCompile(`([a-z_]+){component="worker"(?:, ([a-z_]+="[a-z0-9]+"))?}`)
	n := 0
	for line := range strings.Lines(strings.TrimSpace(queries[0].text)) {
		for _, m := range series.FindAllStringSubmatch(line, -1) {
			n++
			found := false
			for have := range strings.Lines(string(metrics)) {
				found = found || strings.HasPrefix(have, m[1]+"{") && strings.Contains(have, `component="worker"`) && strings.Contains(have, `env="`) && strings.Contains(have, m[2])
			}
			if !found {
				r.t.Errorf("%s: no series for %s", p.name, strings.TrimSpace(line))
			}
		}
	}
	if n < 15 {
		r.t.Errorf("%s: got %d series, want those of all queries", p.name, n)
	}
}

// back follows the way back, and does a worker's work there.
func (r *restore) back(p page) {
	r.t.Helper()
	steps := p.in("Go back", "sql")
	if len(steps) != 3 {
		r.t.Fatalf("%s: got %d statements, want 3", p.name, len(steps))
	}
	if err := legacy.Produce(r.t.Context(), r.pool); err != nil {
		r.t.Fatal(err)
	}
	r.run(`update search_outbox_events set next_retry_at = now() + interval '1 hour', behind = event_version where status = 'pending'`)
	var leases int
	if err := r.pool.QueryRow(r.t.Context(), steps[0].text).Scan(&leases); err != nil || leases != 0 {
		r.t.Errorf("%s: %d leases, %v, want none", p.at(steps[0]), leases, err)
	}
	r.run(steps[1].text, steps[2].text)
	for _, table := range []string{"search_outbox_events", "chronicle_outbox_events"} {
		tag, err := r.pool.Exec(r.t.Context(), strings.ReplaceAll(oldClaim, "%s", table))
		if err != nil || tag.RowsAffected() != 1 {
			r.t.Errorf("a Python worker on %s: %d rows, %v, want the new one", table, tag.RowsAffected(), err)
		}
	}
}
