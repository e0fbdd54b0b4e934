package traffic

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestSettings(t *testing.T) {
	t.Parallel()
	defaults := Settings{Scenario: CreateScenario, Ops: 3000, Bytes: 200, Rate: 100, Concurrency: 20}
	for _, c := range []struct {
		name       string
		env, flags map[string]string
		want       Settings
		err        string
	}{
		{name: "Defaults", want: defaults},
		{
			name: "Environment", env: map[string]string{"LOADGEN_SCENARIO": "hot", "TOTAL_OPS": "8000", "CONTENT_BYTES": "1", "RATE_PER_SEC": "0.5", "CONCURRENCY": "40"},
			want: Settings{Scenario: HotScenario, Ops: 8000, Bytes: 1, Rate: 0.5, Concurrency: 40},
		},
		{
			name: "FlagsWin", env: map[string]string{"TOTAL_OPS": "8000", "RATE_PER_SEC": "5"}, flags: map[string]string{"ops": "7", "rate": "0"},
			want: Settings{Scenario: CreateScenario, Ops: 7, Bytes: 200, Rate: 0, Concurrency: 20},
		},
		{
			name: "AllThatIsWrong", env: map[string]string{"LOADGEN_SCENARIO": "upsert", "TOTAL_OPS": "many"}, flags: map[string]string{"rate": "-1"},
			err: `load: LOADGEN_SCENARIO: "upsert" is none of [create update delete mixed hot]; TOTAL_OPS: "many" is no number from 1 to 100000000; --rate: "-1" is no number from 0 to 1000000`,
		},
		{name: "NotANumber", env: map[string]string{"RATE_PER_SEC": "NaN"}, err: `load: RATE_PER_SEC: "NaN" is no number from 0 to 1000000`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := Load(func(name string) string { return c.env[name] }, c.flags)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("Load: got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("Load: got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

type site struct {
	pool *pgxpool.Pool

	mu   sync.Mutex
	seen []outbox.NewEvent
}

func newSite(t *testing.T) *site {
	t.Helper()
	r := &site{pool: testenv.Pool(t, testenv.Database(t))}
	r.exec(t, `insert into environment_sentinel (id, env) values (1, 'test')`)
	return r
}

func (r *site) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := r.pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func (r *site) count(t *testing.T, sql string) (n int) {
	t.Helper()
	if err := r.pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (r *site) run(ctx context.Context, t *testing.T, s Settings) (*Result, string) {
	t.Helper()
	var out bytes.Buffer
	got, err := Run(ctx, Options{Settings: s, App: &Application{Pool: r.pool}, Out: &out, Committed: func(events []outbox.NewEvent) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen = append(r.seen, events...)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return got, out.String()
}

// What the newest event of each entity says is what its row is.
const contradictions = `
select count(*)
from (select distinct on (entity_id) entity_id, op, event_version from search_outbox_events order by entity_id, event_version desc) e
full join search_index s using (entity_id)
where case e.op when 'upsert' then s.event_version is distinct from e.event_version else e.op is null or s.entity_id is not null end`

func TestScenariosWriteRowsAndEvents(t *testing.T) {
	t.Parallel()
	const ops, bytesOfText = 300, 77
	for _, c := range []struct {
		scenario               Scenario
		rows, upserts, deletes int // at least; of the operations alone
	}{
		{CreateScenario, ops, ops, 0}, {UpdateScenario, known, ops, 0}, {DeleteScenario, 0, 0, ops}, {MixedScenario, known / 2, ops / 2, ops / 10}, {HotScenario, known, ops, 0},
	} {
		t.Run(string(c.scenario), func(t *testing.T) {
			t.Parallel()
			r := newSite(t)
			got, out := r.run(t.Context(), t, Settings{Scenario: c.scenario, Ops: ops, Bytes: bytesOfText, Concurrency: 4, Seed: 1})
			if got.Ops != ops || got.Errors != 0 || got.Latency.Max <= 0 || len(r.seen) != ops {
				t.Errorf("result: got %+v and %d events confirmed, want %d without an error", got, len(r.seen), ops)
			}
			if n := r.count(t, contradictions); n != 0 {
				t.Errorf("%d rows are not what their newest event says", n)
			}
			if n := r.count(t, `select count(*) from search_index where length(text) <> 77`); n != 0 {
				t.Errorf("%d rows have a text of another length", n)
			}
			if n := r.count(t, `select count(*) from search_index`); n < c.rows || c.scenario == DeleteScenario && n != 0 {
				t.Errorf("rows: got %d, want %d", n, c.rows)
			}
			upserts, deletes, hottest, on := 0, 0, 0, map[outbox.Key]int{}
			for _, e := range r.seen {
				on[e.Key]++
				hottest = max(hottest, on[e.Key])
				if e.Op == outbox.Delete {
					deletes++
				} else {
					upserts++
				}
			}
			if upserts < c.upserts || deletes < c.deletes || c.upserts == 0 && upserts > 0 || c.deletes == 0 && deletes > 0 {
				t.Errorf("operations: got %d upserts and %d deletes, want %d and %d at least", upserts, deletes, c.upserts, c.deletes)
			}
			if isHot := hottest > ops/hot/3; isHot != (c.scenario == HotScenario) {
				t.Errorf("the entity that changes most does so %d times", hottest)
			}
			if !strings.Contains(out, "300 of 300 operations") || !strings.Contains(out, "committed after it was due") {
				t.Errorf("output: got %q, want a summary", out)
			}
		})
	}
}

// A database that stands still for a while changes nothing about when operations are due:
// those that had to wait say how long.
func TestRateIsAnOpenLoop(t *testing.T) {
	t.Parallel()
	r := newSite(t)
	blocker, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blocker.Exec(t.Context(), `lock table search_outbox_events`); err != nil {
		t.Fatal(err)
	}
	const stall = 1500 * time.Millisecond
	freed := make(chan error, 1)
	watcher, err := r.pool.Acquire(t.Context()) // before the load takes all that are left
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Release()
	go func() {
		const waiting = `select count(*) from pg_locks where not granted and relation = 'search_outbox_events'::regclass
			and database = (select oid from pg_database where datname = current_database())`
		for n := 0; n == 0; {
			if err := watcher.QueryRow(t.Context(), waiting).Scan(&n); err != nil {
				freed <- err
				return
			}
		}
		<-time.After(stall)
		freed <- blocker.Rollback(context.Background())
	}()
	began := time.Now()
	got, _ := r.run(t.Context(), t, Settings{Scenario: CreateScenario, Ops: 200, Bytes: 10, Rate: 100, Concurrency: 3, Seed: 1})
	if err := <-freed; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 1990*time.Millisecond {
		t.Errorf("200 operations at 100 a second: got %v, want 2 s", took)
	}
	if got.Ops != 200 || got.Latency.Max < 1000 || got.Late.P99 < 500 {
		t.Errorf("result: got %+v, want the stall in the latencies and in what began late", got)
	}
}

func TestFailedOperationsAreCounted(t *testing.T) {
	t.Parallel()
	r := newSite(t)
	r.exec(t, `alter table search_outbox_events add constraint refuse check (event_version < 0)`)
	got, out := r.run(t.Context(), t, Settings{Scenario: CreateScenario, Ops: 20, Bytes: 10, Concurrency: 2})
	if got.Errors != 20 || got.Ops != 0 || !strings.Contains(got.Error, "refuse") || !strings.Contains(out, "20 failed") {
		t.Errorf("result: got %+v, %q; want 20 failures and the first error", got, out)
	}
	if n := r.count(t, `select count(*) from search_index`); n != 0 {
		t.Errorf("%d rows were written without their event", n)
	}
}

func TestInterruptedLoadEndsWhatHasBegun(t *testing.T) {
	t.Parallel()
	r := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	got, err := Run(ctx, Options{
		Settings: Settings{Scenario: CreateScenario, Ops: 1000, Bytes: 10, Rate: 50, Concurrency: 2}, App: &Application{Pool: r.pool}, Out: &out,
		Committed: func([]outbox.NewEvent) { cancel() },
	})
	if err != nil || got.Ops == 0 || got.Ops > 10 || got.Errors != 0 {
		t.Errorf("Run: got %+v, %v; want what had begun, and no error", got, err)
	}
}

func TestOtherEnvironmentsAreRefused(t *testing.T) {
	t.Parallel()
	r := newSite(t)
	r.exec(t, `update environment_sentinel set env = 'sandbox'`)
	_, err := Run(t.Context(), Options{Settings: Settings{Scenario: CreateScenario, Ops: 1, Bytes: 1, Concurrency: 1}, App: &Application{Pool: r.pool}})
	if err == nil || !strings.Contains(err.Error(), "not a place for drills") {
		t.Errorf("Run: got %v, want a refusal", err)
	}
	if n := r.count(t, `select count(*) from search_index`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestMissingTablesAreSaid(t *testing.T) {
	t.Parallel()
	r := newSite(t)
	r.exec(t, `alter table search_index rename to elsewhere`)
	_, err := Run(t.Context(), Options{Settings: Settings{Scenario: CreateScenario, Ops: 1, Bytes: 1, Concurrency: 1}, App: &Application{Pool: r.pool}})
	if kind, text := postgres.Diagnose(err); kind != postgres.MissingMigration || !strings.Contains(text, "weft migrate up") {
		t.Errorf("Run: got %v (%s), want it to say what to do", err, text)
	}
}

// An event for an entity that never existed has no row, before or after it.
func TestMissingEntities(t *testing.T) {
	t.Parallel()
	for _, op := range []outbox.Op{outbox.Upsert, outbox.Delete} {
		r := newSite(t)
		got, text := r.run(t.Context(), t, Settings{Scenario: HotScenario, Ops: 3, Bytes: 9, Concurrency: 2, Missing: op})
		if got.Ops != 3 || got.Errors != 0 || len(r.seen) != 3 || !strings.Contains(text, string(op)+" of entities that never existed") {
			t.Errorf("%s: got %+v, %q", op, got, text)
		}
		if n := r.count(t, "select count(distinct entity_id) from search_outbox_events where op = '"+string(op)+"' and status = 'pending'"); n != 3 {
			t.Errorf("%s: %d events, want 3 of different entities", op, n)
		}
		if n := r.count(t, "select count(*) from search_index"); n != 0 {
			t.Errorf("%s: %d rows, want none", op, n)
		}
	}
	for _, c := range []struct {
		missing bool
		op      string
		want    outbox.Op
		err     string
	}{
		{false, "", "", ""}, {true, "delete", outbox.Delete, ""}, {true, "upsert", outbox.Upsert, ""},
		{false, "delete", "", "load: --op goes with --missing; --scenario says what else to write"},
		{true, "", "", `load: --missing needs --op upsert or --op delete, not ""`},
	} {
		got, err := missingOp(c.missing, c.op)
		if text := fmt.Sprint(err); got != c.want || (err != nil || c.err != "") && text != c.err {
			t.Errorf("%+v: got %q, %v", c, got, err)
		}
	}
}

func TestProducedIsServed(t *testing.T) {
	t.Parallel()
	p, err := produce("127.0.0.1:0", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	key := NewKey()
	p.committed([]outbox.NewEvent{{Key: key, Op: outbox.Delete}, {Key: key, Op: outbox.Delete}})
	response, err := http.Get("http://" + p.address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	want := fmt.Sprintf(`outbox_produced_total{component="worker",entity_type=%q,env="test",event_type=%q} 2`, key.Type, key.Type+".delete")
	if err != nil || !strings.Contains(string(text), want) {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
	if _, err := produce(p.address, "test"); err == nil {
		t.Error("a second listener on the address: got no error")
	}
}
