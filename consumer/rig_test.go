package consumer_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	outboxTable = "search_outbox_events"
	projName    = "test"
)

// scripted is a projection that keeps versions in memory and answers as told.
type scripted struct {
	mu       sync.Mutex
	applied  map[outbox.Key][]int64 // versions in the order they were projected
	flying   map[outbox.Key]bool
	overlap  bool
	calls    [][]outbox.Event
	times    []time.Time                         // of the calls
	answer   func(e outbox.Event) outbox.Outcome // nil: OK
	fault    func(events []outbox.Event) error   // nil: none
	ready    func() error
	entering chan struct{} // when set: one value per call, then the call waits for leave
	leave    chan struct{}
}

func (s *scripted) Name() string { return projName }

func (s *scripted) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready == nil {
		return nil
	}
	return s.ready()
}

func (s *scripted) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	if err := outbox.CheckAuthority(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.calls, s.times = append(s.calls, events), append(s.times, time.Now())
	for _, e := range events {
		s.overlap = s.overlap || s.flying[e.Key]
		s.flying[e.Key] = true
	}
	s.mu.Unlock()
	if s.entering != nil {
		s.entering <- struct{}{}
		select {
		case <-s.leave:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		delete(s.flying, e.Key)
	}
	if s.fault != nil {
		if err := s.fault(events); err != nil {
			return nil, err
		}
	}
	out := make([]outbox.Outcome, len(events))
	for i, e := range events {
		out[i] = outbox.OK()
		if s.answer != nil {
			out[i] = s.answer(e)
		}
		if out[i].Verdict == outbox.Done {
			s.applied[e.Key] = append(s.applied[e.Key], e.Version)
		}
	}
	return out, nil
}

func (s *scripted) versions(k outbox.Key) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.applied[k])
}

func (s *scripted) set(f func(*scripted)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// sent returns the calls that carried an event of k, as their numbers of events, and when.
func (s *scripted) sent(k outbox.Key) (sizes []int, at []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, call := range s.calls {
		if slices.ContainsFunc(call, func(e outbox.Event) bool { return e.Key == k }) {
			sizes, at = append(sizes, len(call)), append(at, s.times[i])
		}
	}
	return sizes, at
}

// watched is the real store, with what was asked of it, and with hooks before and after
// calls. A hook that returns an error stands for a connection that breaks.
type watched struct {
	*outbox.Store
	onList, onLease, onSettle func() error // before the call; an error takes its place
	leased, settled           func() error // after the call; an error takes the place of its answer

	mu             sync.Mutex
	mostListed     int
	leases, events int
	mostLeased     int
	mostSettled    int
	looks          int // for claims of other workers
	holds          int // for holds
	failed         int // calls without an answer
}

func (w *watched) count(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *watched) get(n *int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *n
}

func called(hook func() error) error {
	if hook == nil {
		return nil
	}
	return hook()
}

func (w *watched) List(ctx context.Context, r outbox.ListRequest) (*outbox.List, error) {
	if err := called(w.onList); err != nil {
		return nil, err
	}
	l, err := w.Store.List(ctx, r)
	w.count(func() {
		if err != nil {
			w.failed++
			return
		}
		w.mostListed = max(w.mostListed, len(l.Ready)+len(l.Due))
	})
	return l, err
}

func (w *watched) Holds(ctx context.Context) (outbox.Holds, []outbox.Key, error) {
	h, keys, err := w.Store.Holds(ctx)
	w.count(func() { w.holds++ })
	return h, keys, err
}

func (w *watched) Lease(ctx context.Context, epoch int64, batch uuid.UUID, groups []outbox.Group) (*outbox.Lease, error) {
	if err := called(w.onLease); err != nil {
		return nil, err
	}
	l, err := w.Store.Lease(ctx, epoch, batch, groups)
	w.count(func() {
		if err != nil {
			w.failed++
			return
		}
		w.leases++
		w.events += l.Count()
		w.mostLeased = max(w.mostLeased, l.Count())
	})
	if err == nil {
		err = called(w.leased)
	}
	return l, err
}

func (w *watched) Settle(ctx context.Context, epoch int64, batch uuid.UUID, in []outbox.Settlement) (outbox.Settled, error) {
	if err := called(w.onSettle); err != nil {
		return outbox.Settled{}, err
	}
	s, err := w.Store.Settle(ctx, epoch, batch, in)
	w.count(func() { w.mostSettled = max(w.mostSettled, len(in)) })
	if err == nil {
		err = called(w.settled)
	}
	return s, err
}

func (w *watched) ForeignClaim(ctx context.Context, within time.Duration) (string, time.Duration, error) {
	w.count(func() { w.looks++ })
	return w.Store.ForeignClaim(ctx, within)
}

type consumerStore = consumer.Store

// expensive is a store whose head of the index is reported as expensive, as it is while a
// long transaction holds back vacuum: lists begin where the last one has ended.
type expensive struct {
	*watched
	look time.Duration
}

func (e *expensive) List(ctx context.Context, r outbox.ListRequest) (*outbox.List, error) {
	l, err := e.watched.List(ctx, r)
	if err == nil && len(l.Ready) == r.Ready {
		l.Look = e.look
		l.Took = l.Look
	}
	return l, err
}

// aTerm is a term without an election.
type aTerm struct {
	epoch int64
	stop  chan struct{}
	lost  error
}

func (t *aTerm) Epoch() int64              { return t.epoch }
func (t *aTerm) Check() error              { return t.lost }
func (t *aTerm) Stopping() <-chan struct{} { return t.stop }

// rig is a pipeline over a real outbox.
type rig struct {
	t     *testing.T
	pool  *pgxpool.Pool // of the test
	link  *proxy.Link   // the pipeline's way to the database; nil for the straight one
	store *watched
	proj  *scripted
	pipe  *consumer.Pipeline
	reg   *prometheus.Registry
	logs  *observer.ObservedLogs
	term  *aTerm
	cfg   consumer.Config
}

// options are what a test wants otherwise.
type options struct {
	consumer.Config
	timeout time.Duration                 // of a call of the store
	dial    time.Duration                 // of a connection; 0 as pgx has it
	linked  bool                          // the pipeline reaches the database by a link
	wrap    func(*watched) consumerStore  // nil: none
	db      func(*pgxpool.Pool) outbox.DB // nil: none
}

func setup(t *testing.T, change ...func(*options)) *rig {
	t.Helper()
	dsn := testenv.Database(t)
	core, logs := observer.New(zap.InfoLevel)
	r := &rig{
		t: t, pool: testenv.Pool(t, dsn), reg: prometheus.NewRegistry(), logs: logs,
		proj: &scripted{applied: map[outbox.Key][]int64{}, flying: map[outbox.Key]bool{}},
		term: &aTerm{epoch: 1, stop: make(chan struct{})},
	}
	o := options{Config: consumer.Config{
		Group: "g", Instance: "me", BatchSize: 100, Concurrency: 3, Poll: 20 * time.Millisecond, BreakerThreshold: 20, Grace: 10 * time.Second,
		Retry: consumer.RetryPolicy{MaxAttempts: 4, BaseBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond},
	}}
	for _, f := range change {
		f(&o)
	}
	r.cfg = o.Config
	r.exec("insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('g', 1, 'me', now(), now())")
	var db outbox.DB = r.connect(dsn, o)
	if o.db != nil {
		db = o.db(db.(*pgxpool.Pool))
	}
	var store *outbox.Store
	var err error
	r.eventually(func() bool { // a short deadline is meant for what comes later
		store, err = outbox.OpenStore(t.Context(), db, outbox.StoreConfig{
			Table: outboxTable, Projection: projName, Group: "g", Owner: "me", Lease: 30 * time.Second, Timeout: o.timeout, Strict: o.Strict,
		})
		return !outbox.Slow(err)
	}, "a store that opens within its deadline")
	if err != nil {
		t.Fatal(err)
	}
	r.store = &watched{Store: store}
	var asked consumerStore = r.store
	if o.wrap != nil {
		asked = o.wrap(r.store)
	}
	m, err := observe.NewMetrics(r.reg, []string{projName})
	if err != nil {
		t.Fatal(err)
	}
	log := zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel), zaptest.WrapOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, core) })))
	if r.pipe, err = consumer.New(asked, r.proj, r.cfg, log, m); err != nil {
		t.Fatal(err)
	}
	return r
}

// connect opens the pipeline's own pool.
func (r *rig) connect(dsn string, o options) *pgxpool.Pool {
	r.t.Helper()
	if o.linked {
		u, err := url.Parse(dsn)
		if err != nil {
			r.t.Fatal(err)
		}
		if r.link, err = proxy.NewLink(u.Host); err != nil {
			r.t.Fatal(err)
		}
		if dsn, err = r.link.Through(dsn); err != nil {
			r.t.Fatal(err)
		}
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		r.t.Fatal(err)
	}
	maps.Copy(cfg.ConnConfig.RuntimeParams, outbox.SessionParams())
	if o.dial > 0 {
		cfg.ConnConfig.ConnectTimeout = o.dial
	}
	pool, err := pgxpool.NewWithConfig(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if r.link != nil {
			_ = r.link.Close() // first: it ends what is dialled through it
		}
		pool.Close()
	})
	return pool
}

// start runs the pipeline until the test ends; stop ends it gracefully and returns
// what Run returned.
func (r *rig) start() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.pipe.Run(ctx, r.term) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() {
			close(r.term.stop)
			err = <-done
			cancel()
		})
		return err
	}
	r.t.Cleanup(func() { cancel(); _ = stop() })
	return stop
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(context.Background(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func newKey() outbox.Key { return outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())} }

func (r *rig) enqueue(key outbox.Key, versions ...int64) {
	r.t.Helper()
	var events []outbox.NewEvent
	for _, v := range versions {
		events = append(events, outbox.NewEvent{Key: key, Op: outbox.Upsert, Version: v})
	}
	if err := outbox.Enqueue(context.Background(), r.pool, outboxTable, events...); err != nil {
		r.t.Fatal(err)
	}
}

// enqueueMany writes an event of each of n new entities, of versions from first on.
func (r *rig) enqueueMany(n int, first int64) {
	r.t.Helper()
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version)
		select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', $2 + n from generate_series(0, $1::int - 1) n`, n, first)
}

// enqueueLater writes events of one entity, of versions 1 to n.
func (r *rig) enqueueLater(key outbox.Key, n int) {
	r.t.Helper()
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version)
		select gen_random_uuid(), $1, $2, 'upsert', v from generate_series(1, $3::int) v`, key.Type, &key.ID, n)
}

func (r *rig) count(from string, args ...any) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), "select count(*) from "+from, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", from, err)
	}
	return n
}

// scan reads one row.
func (r *rig) scan(sql string, args []any, into ...any) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), sql, args...).Scan(into...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// counts returns how many events have each status.
func (r *rig) counts() map[string]int {
	r.t.Helper()
	out := map[string]int{}
	for _, s := range []string{"pending", "processing", "done", "failed"} {
		if n := r.count("search_outbox_events where status = $1", s); n > 0 {
			out[s] = n
		}
	}
	return out
}

// await waits until the events have these statuses.
func (r *rig) await(want map[string]int) {
	r.t.Helper()
	r.eventually(func() bool { return maps.Equal(r.counts(), want) }, fmt.Sprintf("counts %v", want))
}

func (r *rig) eventually(cond func() bool, what string) {
	r.t.Helper()
	testenv.Eventually(r.t, cond, what)
}

// noLeases waits until nothing is in flight.
func (r *rig) noLeases() {
	r.t.Helper()
	r.eventually(func() bool { return r.count("weft_lease") == 0 }, "no lease")
}

// metric returns the sum of the series that have these labels.
func (r *rig) metric(name string, labels ...string) float64 {
	r.t.Helper()
	sum, _ := testenv.Metric(r.t, r.reg, name, labels...)
	return sum
}

type logged = observer.LoggedEntry

// lines returns the log lines of an event.
func (r *rig) lines(event string) []logged {
	return r.logs.Filter(func(e logged) bool { return e.ContextMap()["event"] == event }).All()
}

// notePassed lets the database note in the table passed each event that is open when a
// later one of its entity is done.
func (r *rig) notePassed() {
	r.t.Helper()
	r.exec("create table passed (version bigint)")
	r.exec(`create function note() returns trigger language plpgsql as $$
		begin
			insert into passed select o.event_version from search_outbox_events o
				where o.entity_id = new.entity_id and o.event_version < new.event_version and o.status in ('pending', 'processing');
			return null;
		end $$`)
	r.exec(`create constraint trigger note after update on search_outbox_events deferrable initially deferred
		for each row when (new.status = 'done') execute function note()`)
}

// nonePassed asks what notePassed has noted.
func (r *rig) nonePassed() {
	r.t.Helper()
	if n := r.count("passed"); n != 0 {
		r.t.Errorf("%d open events were passed by later ones of their entities", n)
	}
}

// hold locks the row of a version until release is called or the test ends.
func (r *rig) hold(version int64) (release func()) {
	r.t.Helper()
	tx, err := r.pool.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	var once sync.Once
	release = func() { once.Do(func() { _ = tx.Rollback(context.Background()) }) }
	r.t.Cleanup(release)
	if _, err := tx.Exec(r.t.Context(), "select from search_outbox_events where event_version = $1 for update", version); err != nil {
		r.t.Fatal(err)
	}
	return release
}
