package history_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	table = "search_outbox_events"
	group = "g"
)

// rig is an application, a recorded database and a recorded Elasticsearch.
type rig struct {
	t          *testing.T
	dsn, index string
	pool       *pgxpool.Pool
	rec        *proxy.Recorder
	taps       []*proxy.Tap
	ledger     []history.Enqueued
	finished   outbox.Finished // as the record is judged; members begin with it
}

func setup(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dsn: testenv.Database(t), index: testenv.Index(t), rec: proxy.NewRecorder(), finished: outbox.Keep}
	r.pool = testenv.Pool(t, r.dsn)
	r.exec(r.pool, `select weft_history_attach($1, (now() at time zone 'UTC')::date + n) from generate_series(0, 1) n`, table)
	if err := history.Install(t.Context(), r.pool, table); err != nil {
		t.Fatal(err)
	}
	if err := history.InstallSource(t.Context(), r.pool); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) exec(pool *pgxpool.Pool, sql string, args ...any) int64 {
	r.t.Helper()
	tag, err := pool.Exec(context.Background(), sql, args...)
	if err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// lead begins a term.
func (r *rig) lead(epoch int64, instance string) {
	r.t.Helper()
	r.exec(r.pool, `insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ($1, $2, $3, now(), now())
	                on conflict (group_name) do update set epoch = excluded.epoch, instance = excluded.instance`, group, epoch, instance)
}

func newID() outbox.ID { return outbox.UUID(uuid.New()) }

func newKey() outbox.Key { return outbox.Key{Type: "book", ID: newID()} }

// write commits a new state of an entity, and remove its end, with their events.
func (r *rig) write(key outbox.Key, version int64) {
	r.t.Helper()
	r.commit(outbox.NewEvent{ID: newID(), Key: key, Op: outbox.Upsert, Version: version}, `
		insert into search_index (id, entity_type, entity_id, text, event_version) values (gen_random_uuid(), $1, $2, 'version ' || $3::bigint, $3)
		on conflict (entity_type, entity_id) do update set text = excluded.text, event_version = excluded.event_version`, version)
}

func (r *rig) remove(key outbox.Key, version int64) {
	r.t.Helper()
	r.commit(outbox.NewEvent{ID: newID(), Key: key, Op: outbox.Delete, Version: version}, `delete from search_index where entity_type = $1 and entity_id = $2`)
}

// late commits an event that comes after newer ones, and leaves the row as it is.
func (r *rig) late(key outbox.Key, version int64) {
	r.t.Helper()
	r.commit(outbox.NewEvent{ID: newID(), Key: key, Op: outbox.Upsert, Version: version}, `select $1::text, $2::uuid`)
}

func (r *rig) commit(e outbox.NewEvent, sql string, args ...any) {
	r.t.Helper()
	err := pgx.BeginFunc(r.t.Context(), r.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(r.t.Context(), sql, append([]any{e.Key.Type, &e.Key.ID}, args...)...); err != nil {
			return err
		}
		return outbox.Enqueue(r.t.Context(), tx, table, e)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.ledger = append(r.ledger, history.Enqueued{Event: e.ID, Key: e.Key, Version: e.Version})
}

// count answers a query with a number.
func (r *rig) count(sql string) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), sql).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

const (
	inFlight  = `select count(*) from weft_inflight`
	unsettled = `select count(*) from search_outbox_events where status <> 'done'`
)

// settled waits until every event is done.
func (r *rig) settled() {
	r.t.Helper()
	testenv.Eventually(r.t, func() bool { return r.count(unsettled) == 0 }, "all events are done")
}

// check judges the run when everything has come to its end.
func (r *rig) check() *history.Verdict {
	r.t.Helper()
	for _, tap := range r.taps {
		if err := tap.Close(); err != nil {
			r.t.Fatal(err)
		}
	}
	log, err := history.Read(r.t.Context(), r.pool, table, group)
	if err != nil {
		r.t.Fatal(err)
	}
	log.Finished = r.finished
	es, err := reconcile.NewClient(testenv.ElasticURL(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	defer es.Close()
	end, err := history.ReadEnd(r.t.Context(), r.pool, es, r.index, reconcile.SearchIndex)
	if err != nil {
		r.t.Fatal(err)
	}
	applied := r.rec.Applied()
	v := history.Check(history.Run{Log: log, Acknowledged: r.ledger, Applied: applied, End: end})
	r.t.Cleanup(func() {
		if r.t.Failed() {
			for _, b := range v.Breaches() {
				for _, f := range b.Findings {
					r.t.Logf("%s: %v\n%s", b.Invariant, f, history.Story(log, applied, f.Key))
				}
			}
		}
	})
	return v
}

// expect compares the breaches, in their order, with "invariant: part of a finding" of one entity.
func expect(t *testing.T, v *history.Verdict, key outbox.Key, want ...string) {
	t.Helper()
	var got []string
	for _, b := range v.Breaches() {
		for _, f := range b.Findings {
			got = append(got, b.Invariant+": "+f.String())
			if f.Key != key {
				t.Errorf("%s: %v is not about %s", b.Invariant, f, key)
			}
		}
	}
	if len(got) != len(want) {
		t.Fatalf("got %d findings\n%s\nwant %d", len(got), strings.Join(got, "\n"), len(want))
	}
	for i := range want {
		invariant, what, _ := strings.Cut(want[i], ": ")
		if !strings.HasPrefix(got[i], invariant+": ") || !strings.Contains(got[i], what) {
			t.Errorf("finding %d: got %q, want %q", i, got[i], want[i])
		}
	}
}

// member is an instance: sessions, a tap and a pipeline of its own.
type member struct {
	rig   *rig
	name  string
	epoch int64
	pool  *pgxpool.Pool
	tap   *proxy.Tap
	store consumer.Store
	proj  consumer.Projection
	stop  chan struct{}
}

// Epoch, Check and Stopping implement consumer.Term, without an election.
func (m *member) Epoch() int64              { return m.epoch }
func (m *member) Check() error              { return nil }
func (m *member) Stopping() <-chan struct{} { return m.stop }

// member begins a term of an instance; its pipeline starts with run.
func (r *rig) member(name string, epoch int64) *member {
	r.t.Helper()
	separator := "?"
	if strings.Contains(r.dsn, "?") {
		separator = "&"
	}
	m := &member{rig: r, name: name, epoch: epoch, stop: make(chan struct{}), pool: testenv.Pool(r.t, r.dsn+separator+"application_name=weft/"+group+"/"+name+"/work")}
	r.lead(epoch, name)
	store := m.open(group, r.finished)
	var err error
	if m.tap, err = proxy.NewTap(name, testenv.ElasticURL(r.t), r.rec); err != nil {
		r.t.Fatal(err)
	}
	r.taps = append(r.taps, m.tap)
	r.t.Cleanup(func() { _ = m.tap.Close() })
	sink, err := elastic.New(elastic.Config{URLs: []string{m.tap.URL()}, Index: r.index, RequestTimeout: time.Minute}, zap.NewNop(), prometheus.NewRegistry(), "p")
	if err != nil {
		r.t.Fatal(err)
	}
	if err := sink.EnsureIndex(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	proj, err := projections.NewSearch(m.pool, sink, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(proj.Close)
	m.store, m.proj = store, proj
	return m
}

// open returns a store of the member's.
func (m *member) open(group string, finished outbox.Finished) *outbox.Store {
	m.rig.t.Helper()
	return m.openOn(m.pool, group, finished)
}

// openOn returns a store of the member's on another way to its database.
func (m *member) openOn(db outbox.DB, group string, finished outbox.Finished) *outbox.Store {
	m.rig.t.Helper()
	store, err := outbox.OpenStore(m.rig.t.Context(), db, outbox.StoreConfig{
		Table: table, Projection: "p", Group: group, Owner: m.name, Lease: time.Minute, Finished: finished,
	})
	if err != nil {
		m.rig.t.Fatal(err)
	}
	return store
}

// run starts the pipeline and returns what ends it gracefully.
func (m *member) run() (stop func() error) {
	t := m.rig.t
	t.Helper()
	metrics, err := observe.NewMetrics(prometheus.NewRegistry(), []string{m.proj.Name()})
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := consumer.New(m.store, m.proj, consumer.Config{
		Group: group, Instance: m.name, BatchSize: 100, Concurrency: 4, Poll: 10 * time.Millisecond, BreakerThreshold: 20, Grace: 10 * time.Second,
		Retry: consumer.RetryPolicy{MaxAttempts: 4, BaseBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond},
	}, zap.NewNop(), metrics)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- pipe.Run(ctx, m) }()
	stop = sync.OnceValue(func() error {
		close(m.stop)
		defer cancel()
		return <-done
	})
	t.Cleanup(func() { cancel(); _ = stop() })
	return stop
}

// carry carries one new event of an entity, from the start of the pipeline to its end.
func (m *member) carry(key outbox.Key) {
	m.rig.t.Helper()
	m.rig.write(key, 1)
	stop := m.run()
	m.rig.settled()
	if err := stop(); err != nil {
		m.rig.t.Fatal(err)
	}
}
