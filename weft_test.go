package weft_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	searchTable    = "search_outbox_events"
	chronicleTable = "chronicle_outbox_events"
)

// recorder is a projection that remembers the versions that it was given.
type recorder struct {
	name, table string
	mu          sync.Mutex
	versions    []int64
}

func (r *recorder) Name() string                { return r.name }
func (r *recorder) Table() string               { return r.table }
func (r *recorder) Destination() string         { return "memory of " + r.name }
func (r *recorder) Ready(context.Context) error { return nil }
func (r *recorder) Close()                      {}

func (r *recorder) Project(_ context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]outbox.Outcome, len(events))
	for i := range events {
		r.versions = append(r.versions, events[i].Version)
		out[i] = outbox.OK()
	}
	return out, nil
}

func (r *recorder) saw(version int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.versions, version)
}

func (r *recorder) build(projections.Deps) (projections.Projection, error) { return r, nil }

func settings(dsn, group string) weft.Settings {
	s := weft.DefaultSettings()
	s.Database.URL, s.Group = weft.URL(dsn), group
	return s
}

// start runs w until the test ends, and returns what stops it earlier.
func start(t *testing.T, w *weft.Weft, own ...*recorder) (stop func()) {
	t.Helper()
	for _, r := range own {
		if err := w.Register(r.name, r.build); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: got %v, want nil after a graceful end", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func enqueue(t *testing.T, pool *pgxpool.Pool, table string, version int64) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.Enqueue(t.Context(), tx, table, outbox.NewEvent{
			Key: outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}, Op: outbox.Upsert, Version: version,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	testenv.Eventually(t, cond, what)
}

// role returns what the readiness endpoint answers: its status, and its body.
func readiness(t *testing.T, w *weft.Weft) (int, string) {
	t.Helper()
	answer := httptest.NewRecorder()
	w.Health().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/health/ready", nil))
	return answer.Code, answer.Body.String()
}

func leads(t *testing.T, w *weft.Weft) bool {
	t.Helper()
	status, body := readiness(t, w)
	return status == http.StatusOK && strings.Contains(body, `"role": "leader"`)
}

func TestRunCarriesEventsToARegisteredProjectionAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	core, lines := observer.New(zap.InfoLevel)
	spans, reg := tracetest.NewSpanRecorder(), prometheus.NewRegistry()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	w := weft.New(weft.Options{
		Settings: settings(dsn, "embedded"), Logger: zap.New(core), Registerer: reg, TracerProvider: provider,
	})
	r := &recorder{name: "recorded", table: searchTable}
	stop := start(t, w, r)
	enqueue(t, pool, searchTable, 7)
	eventually(t, "the event in the projection", func() bool { return r.saw(7) })
	eventually(t, "readiness as leader", func() bool { return leads(t, w) })
	eventually(t, "one processed event in the metrics", func() bool {
		sum, _ := testenv.Metric(t, reg, "outbox_processed_total", "projection", "recorded")
		return sum == 1
	})
	if err := w.Register("late", r.build); err == nil || !strings.Contains(err.Error(), "register before Run") {
		t.Errorf("Register while it runs: got %v, want a refusal", err)
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("second Run: got %v, want a refusal", err)
	}
	stop()
	if lines.FilterField(zap.String("group", "embedded")).Len() == 0 {
		t.Error("no log line names the group")
	}
	if !slices.ContainsFunc(spans.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "projection.process_batch" }) {
		t.Error("no span of the batch")
	}
	if families, err := reg.Gather(); err != nil || len(families) > 0 {
		t.Errorf("after Run %d metrics are registered (%v), want none", len(families), err)
	}

	start(t, w)
	enqueue(t, pool, searchTable, 8)
	eventually(t, "the event of the second Run", func() bool { return r.saw(8) })
}

func TestOfTwoInstancesOfAGroupOneLeadsAndTheOtherTakesOver(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	a, b := weft.New(weft.Options{Settings: settings(dsn, "pair")}), weft.New(weft.Options{Settings: settings(dsn, "pair")})
	ra, rb := &recorder{name: "recorded", table: searchTable}, &recorder{name: "recorded", table: searchTable}
	stopA := start(t, a, ra)
	eventually(t, "the first one's leadership", func() bool { return leads(t, a) })
	start(t, b, rb)
	eventually(t, "the second one's standby", func() bool {
		status, body := readiness(t, b)
		return status == http.StatusOK && strings.Contains(body, `"role": "standby"`)
	})
	enqueue(t, pool, searchTable, 1)
	eventually(t, "the event at the leader", func() bool { return ra.saw(1) })
	stopA()
	enqueue(t, pool, searchTable, 2)
	eventually(t, "the event at the successor", func() bool { return rb.saw(2) })
	if rb.saw(1) || ra.saw(2) {
		t.Errorf("events: first %v, second %v; want each at the leader of its time", ra.versions, rb.versions)
	}
}

func TestInstancesOfTwoGroupsBothLead(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	reg := prometheus.NewRegistry()
	for i, table := range []string{searchTable, chronicleTable} {
		group := []string{"first", "second"}[i]
		w := weft.New(weft.Options{
			Settings:   settings(dsn, group),
			Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"weft": group}, reg),
		})
		r := &recorder{name: "recorded", table: table}
		start(t, w, r)
		eventually(t, "the leadership of "+group, func() bool { return leads(t, w) })
		enqueue(t, pool, table, int64(i))
		eventually(t, "the event of "+group, func() bool { return r.saw(int64(i)) })
	}
}

func TestRegisterRefuses(t *testing.T) {
	t.Parallel()
	w := weft.New(weft.Options{})
	r := &recorder{}
	if err := w.Register("mine", r.build); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		build      projections.Constructor
	}{
		{"mine", "there is one of that name already", r.build},
		{projections.SearchIndexToElastic, "there is one of that name already", r.build},
		{"Mine", "want a lower-case letter", r.build},
		{"other", "its constructor is nil", nil},
	} {
		if err := w.Register(tc.name, tc.build); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Register %q: got %v, want it to say %q", tc.name, err, tc.want)
		}
	}
}

func TestRunRefusesWrongOptions(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://nobody@127.0.0.1:1/none"
	for _, tc := range []struct {
		name   string
		change func(*weft.Settings)
		own    []*recorder
		want   []string
	}{
		{"NoDatabase", func(s *weft.Settings) { s.Database.URL = "" }, []*recorder{{name: "mine", table: "t"}}, []string{"database.url: is required"}},
		{"NoProjection", func(*weft.Settings) {}, nil, []string{"projections"}},
		{"UnknownProjection", func(s *weft.Settings) { s.Projections = []string{"theirs"} }, []*recorder{{name: "mine", table: "t"}}, []string{"theirs", "mine"}},
		{"OtherName", func(s *weft.Settings) { s.Projections = []string{"mine"} }, []*recorder{{name: "mine", table: searchTable}}, nil},
		{"OneTableTwice", func(*weft.Settings) {}, []*recorder{{name: "mine", table: "t"}, {name: "yours", table: "t"}}, []string{"yours: reads outbox table t, as mine does"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := settings(nowhere, "g")
			tc.change(&s)
			w := weft.New(weft.Options{Settings: s})
			for _, r := range tc.own {
				if err := w.Register(r.name, r.build); err != nil {
					t.Fatal(err)
				}
				if tc.want == nil {
					r.name = "changed"
					tc.want = []string{`mine: its method Name returns "changed"`}
				}
			}
			err := w.Run(t.Context())
			for _, part := range tc.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("Run: got %v, want it to say %q", err, part)
				}
			}
		})
	}
}

func TestRunRefusesARegistererThatAnotherInstanceUses(t *testing.T) {
	t.Parallel()
	dsn, reg := testenv.Database(t), prometheus.NewRegistry()
	a := weft.New(weft.Options{Settings: settings(dsn, "a"), Registerer: reg})
	start(t, a, &recorder{name: "recorded", table: searchTable})
	eventually(t, "the leadership", func() bool { return leads(t, a) })
	before, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	b := weft.New(weft.Options{Settings: settings(dsn, "b"), Registerer: reg})
	if err := b.Register("recorded", (&recorder{name: "recorded", table: chronicleTable}).build); err != nil {
		t.Fatal(err)
	}
	if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "wrap it with a label") {
		t.Errorf("Run: got %v, want it to name the remedy", err)
	}
	if after, err := reg.Gather(); err != nil || len(after) < len(before) {
		t.Errorf("metrics: got %d (%v), want the %d of the first instance untouched", len(after), err, len(before))
	}
}

func TestRunEndsByAFaultThatOnlyAPersonCanFix(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t) // not migrated
	w := weft.New(weft.Options{Settings: settings(dsn, "g")})
	if err := w.Register("recorded", (&recorder{name: "recorded", table: searchTable}).build); err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "weft migrate up") {
		t.Errorf("Run: got %v, want it to name the remedy", err)
	}
}

func TestLoadSettingsReadsWhatTheProgramReads(t *testing.T) {
	t.Parallel()
	s, err := weft.LoadSettings(weft.Source{
		Environ: []string{"DATABASE_URL=postgres://u@h/d", "OUTBOX_BULK_SIZE=17"}, Projections: []string{"mine"},
	})
	if err != nil || s.Outbox.BulkSize != 17 || !slices.Equal(s.Projections, []string{"mine"}) {
		t.Errorf("got bulk size %d, projections %v and %v; want 17, mine and no error", s.Outbox.BulkSize, s.Projections, err)
	}
	_, err = weft.LoadSettings(weft.Source{Environ: []string{"DATABASE_URL=postgres://u@h/d", "WEFT_PROJECTIONS=yours"}, Projections: []string{"mine"}})
	if err == nil || !strings.Contains(err.Error(), "yours") || !strings.Contains(err.Error(), "mine") {
		t.Errorf("unknown projection: got %v, want it to name both", err)
	}
}

func TestRunCarriesEventsOfDeclaredAndRegisteredProjectionsOfAFile(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	if _, err := pool.Exec(t.Context(), `create table product (id bigint primary key); create table card (entity_id bigint primary key, version bigint not null)`); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: "product"}, true); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "weft.yaml")
	if err := os.WriteFile(file, []byte(`projections:
  cards:
    outbox: {table: product_outbox_events}
    source: {query: "select p.id as entity_id, v.version from product p join product_outbox_versions v on v.entity_id = p.id where p.id = any($1)"}
    destination: {table: card}
  recorded:
`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := weft.LoadSettings(weft.Source{File: file, Environ: []string{"DATABASE_URL=" + dsn, "WEFT_GROUP=file"}, Projections: []string{"recorded"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{name: "recorded", table: searchTable}
	start(t, weft.New(weft.Options{Settings: s}), r)
	enqueue(t, pool, searchTable, 7)
	if _, err := pool.Exec(t.Context(), `insert into product values (1)`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the event of the registered projection", func() bool { return r.saw(7) })
	eventually(t, "the card of the declared projection", func() bool {
		var n int
		return pool.QueryRow(t.Context(), `select count(*) from card`).Scan(&n) == nil && n == 1
	})
}

func TestDeclaredProjectionFillsATableOfTheSameDatabase(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`create table product (id bigint primary key, name text, price numeric(10,2));
		create table product_card (entity_id bigint primary key, version bigint not null, label text not null check (label <> 'bad 0.00'))`)
	if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: "product"}, true); err != nil {
		t.Fatal(err)
	}
	s := settings(dsn, "cards")
	s.Declared = []projections.Declaration{{
		Name: "cards", Table: "product_outbox_events", Destination: "product_card",
		Query: "select p.id as entity_id, v.version, concat_ws(' ', p.name, p.price) as label from product p join product_outbox_versions v on v.entity_id = p.id where p.id = any($1)",
	}}
	start(t, weft.New(weft.Options{Settings: s}))
	exec(`insert into product select i, 'p' || i, i from generate_series(1, 500) i`)
	exec(`insert into product values (501, 'bad', 0)`)
	exec(`update product set price = 0.5 where id = 7; delete from product where id > 100 and id <= 500`)
	cards := func(sql string) (s string) {
		if err := pool.QueryRow(t.Context(), sql).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	eventually(t, "the cards", func() bool {
		return cards(`select count(*) || ' ' || coalesce(max(label) filter (where entity_id = 7), '') from product_card`) == "100 p7 0.50"
	})
	eventually(t, "the refused card among the dead letters", func() bool {
		return cards(`select coalesce(string_agg(entity_id || ' ' || error_reason, ''), '') from product_outbox_events where status = 'failed'`) == "501 deterministic_exception"
	})
}
