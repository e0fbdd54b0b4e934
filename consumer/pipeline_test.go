package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { labtest.Main(m) }

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
	s.calls = append(s.calls, events)
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
	return append([]int64(nil), s.applied[k]...)
}

func (s *scripted) set(f func(*scripted)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
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
	pool  *pgxpool.Pool
	store *outbox.Store
	proj  *scripted
	pipe  *Pipeline
	reg   *prometheus.Registry
	term  *aTerm
	cfg   Config
}

func setup(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, pool: labtest.Pool(t, labtest.Database(t)), reg: prometheus.NewRegistry(),
		proj: &scripted{applied: map[outbox.Key][]int64{}, flying: map[outbox.Key]bool{}},
		term: &aTerm{epoch: 1, stop: make(chan struct{})},
		cfg: Config{
			Group: "g", BatchSize: 100, Concurrency: 3, Poll: 20 * time.Millisecond, BreakerThreshold: 20, Grace: 10 * time.Second,
			Retry: RetryPolicy{MaxAttempts: 4, BaseBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond},
		},
	}
	for _, f := range change {
		f(&r.cfg)
	}
	r.exec("insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('g', 1, 'x', now(), now())")
	var err error
	r.store, err = outbox.NewStore(r.pool, outbox.StoreConfig{Table: outboxTable, Projection: projName, Group: "g", Owner: "me", Lease: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMetrics(r.reg, []string{projName})
	if err != nil {
		t.Fatal(err)
	}
	r.pipe, err = New(r.store, r.proj, r.cfg, zaptest.NewLogger(t), m)
	if err != nil {
		t.Fatal(err)
	}
	return r
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

func (r *rig) counts() map[string]int {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), "select status, count(*) from search_outbox_events group by 1")
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var s string
		var n int
		if err := rows.Scan(&s, &n); err != nil {
			r.t.Fatal(err)
		}
		out[s] = n
	}
	return out
}

func (r *rig) await(want map[string]int) {
	r.t.Helper()
	labtest.Eventually(r.t, 20*time.Second, func() bool { return maps.Equal(r.counts(), want) }, fmt.Sprintf("counts %v", want))
}

func (r *rig) metric(name string, labels ...string) float64 {
	r.t.Helper()
	m := r.pipe.metrics
	vec := map[string]*prometheus.CounterVec{
		"processed": m.processed, "failed": m.failed, "retried": m.retried, "noop": m.noop, "mismatch": m.mismatch,
	}[name]
	return testutil.ToFloat64(vec.WithLabelValues(append([]string{projName}, labels...)...))
}

func TestPipelineSettlesEveryEvent(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var keys []outbox.Key
	for i := range 500 {
		k := newKey()
		keys = append(keys, k)
		r.enqueue(k, int64(10*i+1), int64(10*i+2))
	}
	stop := r.start()
	r.await(map[string]int{"done": 1000})
	for _, k := range keys {
		got := r.proj.versions(k)
		if len(got) == 0 || got[len(got)-1]%10 != 2 {
			t.Fatalf("%v was projected at %v, want the newest last", k, got)
		}
	}
	if r.proj.overlap {
		t.Error("an entity was in two batches at once")
	}
	if got := r.metric("processed", "upsert"); got != 1000 {
		t.Errorf("processed %v, want 1000", got)
	}
	if got := r.metric("noop", "upsert", "superseded"); got == 0 {
		t.Error("no event was superseded: nothing is coalesced")
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestPipelineHotEntityKeepsOrder(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.BatchSize = 10 })
	k := newKey()
	r.start()
	for v := int64(1); v <= 200; v++ {
		r.enqueue(k, v)
	}
	r.await(map[string]int{"done": 200})
	got := r.proj.versions(k)
	for i := 1; i < len(got); i++ {
		if got[i] <= got[i-1] {
			t.Fatalf("version %d was projected after %d", got[i], got[i-1])
		}
	}
	if got[len(got)-1] != 200 || r.proj.overlap {
		t.Errorf("last projected %d, overlap %v", got[len(got)-1], r.proj.overlap)
	}
}

func TestPipelineLaterEventsDoNotPassARetry(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.Retry.BaseBackoff, c.Retry.MaxBackoff = 300*time.Millisecond, 300*time.Millisecond })
	stuck, free := newKey(), newKey()
	refuse := true
	r.proj.answer = func(e outbox.Event) outbox.Outcome {
		if e.Key == stuck && refuse {
			return outbox.Reject(outbox.ReasonES429, "busy")
		}
		return outbox.OK()
	}
	r.enqueue(stuck, 1)
	r.start()
	labtest.Eventually(t, 10*time.Second, func() bool { return r.metric("retried", "upsert", "es_429") > 0 }, "a retry")
	r.enqueue(stuck, 2)
	r.enqueue(free, 3)
	labtest.Eventually(t, 10*time.Second, func() bool { return len(r.proj.versions(free)) == 1 }, "the free entity to go on")
	r.proj.set(func(*scripted) { refuse = false })
	r.await(map[string]int{"done": 3})
	for _, v := range r.proj.versions(stuck) {
		if v == 1 {
			t.Error("version 1 was projected though 2 was there to supersede it")
		}
	}
	if got := r.counts()["failed"]; got != 0 {
		t.Errorf("%d failed", got)
	}
}

func TestPipelineBisectsAFaultOfTheWholeBatch(t *testing.T) {
	t.Parallel()
	r := setup(t)
	poison := newKey()
	r.proj.fault = func(events []outbox.Event) error {
		for _, e := range events {
			if e.Key == poison {
				panic("cannot handle this one")
			}
		}
		return nil
	}
	for i := range 40 {
		r.enqueue(newKey(), int64(i))
	}
	r.enqueue(poison, 20)
	r.start()
	r.await(map[string]int{"done": 40, "failed": 1})
	var reason, detail string
	var attempts int
	if err := r.pool.QueryRow(t.Context(), "select error_reason, error, attempts from search_outbox_events where status = 'failed'").Scan(&reason, &detail, &attempts); err != nil {
		t.Fatal(err)
	}
	if reason != "unknown_exception" || !strings.Contains(detail, "cannot handle this one") || attempts != r.cfg.Retry.MaxAttempts {
		t.Errorf("failed for %s (%s) after %d attempts", reason, detail, attempts)
	}
}

func TestPipelineOutageEndsNoEventInFailed(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) {
		c.Retry.MaxAttempts = 2
		c.Retry.MaxBackoff = time.Hour
		c.Retry.BaseBackoff = time.Hour
	})
	away := true
	r.proj.fault = func([]outbox.Event) error {
		if away {
			return &outbox.Fault{Reason: outbox.ReasonESConnect, Shared: true, Err: errors.New("connection refused")}
		}
		return nil
	}
	probes := 0
	r.proj.ready = func() error {
		probes++
		if away {
			return errors.New("connection refused")
		}
		return nil
	}
	for i := range 300 {
		r.enqueue(newKey(), int64(i))
	}
	r.start()
	labtest.Eventually(t, 10*time.Second, func() bool { return r.pipe.State().Phase == PhaseOutage }, "the outage")
	labtest.Eventually(t, 10*time.Second, func() bool {
		r.proj.mu.Lock()
		defer r.proj.mu.Unlock()
		return probes >= 5
	}, "probes")
	if got := r.counts(); got["processing"] != 0 || got["pending"] != 300 {
		t.Errorf("during the outage the counts are %v, want all pending", got)
	}
	var tried int
	if err := r.pool.QueryRow(t.Context(), "select count(*) from search_outbox_events where attempts > 0").Scan(&tried); err != nil || tried > firstWindow*r.cfg.Concurrency {
		t.Errorf("%d events met the outage, %v, want no more than the first batches", tried, err)
	}
	r.proj.set(func(*scripted) { away = false })
	r.await(map[string]int{"done": 300}) // in spite of a backoff of an hour
	if s := r.pipe.State(); s.Phase != PhaseOpen {
		t.Errorf("phase %s after recovery", s.Phase)
	}
}

// Nor does one that fits no transient reason, as where a right has been taken away.
func TestPipelineOutageOfUnknownReasonEndsNoEventInFailed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	away := true
	r.proj.fault = func([]outbox.Event) error {
		if away {
			return &outbox.Fault{Reason: outbox.ReasonUnknown, Shared: true, Err: errors.New("permission denied")}
		}
		return nil
	}
	r.enqueue(newKey(), 1)
	r.start()
	labtest.Eventually(t, 15*time.Second, func() bool {
		return r.count("search_outbox_events where attempts > 4 or status = 'failed'") == 1
	}, "more attempts than are allowed")
	r.proj.set(func(*scripted) { away = false })
	r.await(map[string]int{"done": 1})
}

func TestPipelineBreakerStopsAMassDeadLetter(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.BreakerThreshold = 5 })
	bad := true
	r.proj.answer = func(outbox.Event) outbox.Outcome {
		if bad {
			return outbox.Reject(outbox.ReasonES4xx, "strict mapping")
		}
		return outbox.OK()
	}
	for i := range 200 {
		r.enqueue(newKey(), int64(i))
	}
	r.start()
	labtest.Eventually(t, 10*time.Second, func() bool { return r.pipe.State().Phase == PhaseBroken }, "the breaker")
	r.proj.set(func(*scripted) { bad = false })
	r.await(map[string]int{"failed": 5, "done": 195})
	if s := r.pipe.State(); s.Phase != PhaseOpen {
		t.Errorf("phase %s afterwards, want open", s.Phase)
	}
}

func TestPipelineASuspectIsTriedAlone(t *testing.T) {
	t.Parallel()
	r := setup(t)
	suspect := newKey()
	for i := range 50 {
		r.enqueue(newKey(), int64(i))
	}
	r.enqueue(suspect, 25)
	r.exec("update search_outbox_events set reclaims = 3 where entity_id = $1", [16]byte(suspect.ID))
	r.start()
	r.await(map[string]int{"done": 51})
	r.proj.mu.Lock()
	defer r.proj.mu.Unlock()
	for _, call := range r.proj.calls {
		for _, e := range call {
			if e.Key == suspect && len(call) != 1 {
				t.Errorf("the suspect was tried among %d events", len(call))
			}
		}
	}
}

func TestPipelineGracefulStop(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.BatchSize, c.Concurrency = 5, 1 })
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	for i := range 50 {
		r.enqueue(newKey(), int64(i))
	}
	stop := r.start()
	<-r.proj.entering // one batch is out
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	<-r.term.stop
	close(r.proj.leave)
	if err := <-stopped; err != nil {
		t.Fatalf("stop: %v", err)
	}
	if got := r.counts(); got["processing"] != 0 || got["done"] != 5 || got["pending"] != 45 {
		t.Errorf("after the stop the counts are %v, want what was sent done and the rest pending", got)
	}
}

func TestPipelineStopsWhenFenced(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec("update weft_leader set epoch = 2 where group_name = 'g'")
	r.enqueue(newKey(), 1)
	if err := r.pipe.Run(t.Context(), r.term); !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("Run returned %v, want ErrFenced", err)
	}
	if got := r.counts(); got["pending"] != 1 {
		t.Errorf("counts %v, want the event untouched", got)
	}
}

func TestPipelineDoesNotProjectWithoutTrust(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.term.lost = errors.New("no proof for too long")
	r.enqueue(newKey(), 1)
	if err := r.pipe.Run(t.Context(), r.term); !errors.Is(err, r.term.lost) {
		t.Errorf("Run returned %v, want the refusal", err)
	}
	if got := r.counts(); got["done"] != 0 {
		t.Errorf("counts %v, want nothing done", got)
	}
}

// A store that loses the answers of some claims and settles, as a cut connection
// does: nothing may be lost, nothing may be passed.
type leaky struct {
	*outbox.Store
	mu sync.Mutex
	n  int
}

func (l *leaky) lose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	return l.n%3 == 0
}

func (l *leaky) Claim(ctx context.Context, req outbox.ClaimRequest) (*outbox.Claimed, error) {
	c, err := l.Store.Claim(ctx, req)
	if err == nil && c.Events() > 0 && l.lose() {
		return nil, errors.New("answer lost")
	}
	return c, err
}

func (l *leaky) Settle(ctx context.Context, epoch int64, in []outbox.Settlement) (outbox.Settled, error) {
	s, err := l.Store.Settle(ctx, epoch, in)
	if err == nil && l.lose() {
		return outbox.Settled{}, errors.New("answer lost")
	}
	return s, err
}

func TestPipelineSurvivesLostAnswers(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.BatchSize = 20 })
	r.pipe.store = &leaky{Store: r.store}
	keys := make([]outbox.Key, 20)
	for i := range keys {
		keys[i] = newKey()
	}
	r.start()
	for v := range 300 {
		r.enqueue(keys[v%len(keys)], int64(v+1))
	}
	r.await(map[string]int{"done": 300})
	for i, k := range keys {
		got := r.proj.versions(k)
		for j := 1; j < len(got); j++ {
			if got[j] < got[j-1] {
				t.Errorf("entity %d went from version %d to %d", i, got[j-1], got[j])
			}
		}
	}
}

func TestConfigNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := New(nil, &scripted{}, Config{BatchSize: 20_000, Concurrency: 99}, zaptest.NewLogger(t), nil)
	for _, want := range []string{"group is empty", "batch size 20000", "concurrency 99", "poll interval", "max attempts", "backoff", "breaker threshold"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

// An event that ends its process must not take those along that were claimed with
// it: they go on being tried, and are settled, while it is tried alone.
func TestPipelineManySuspectsAreTriedOneByOne(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 30 {
		r.enqueue(newKey(), int64(i))
	}
	r.exec("update search_outbox_events set reclaims = 3")
	held := 0
	r.proj.answer = func(outbox.Event) outbox.Outcome {
		var n int
		if err := r.pool.QueryRow(context.Background(), "select count(*) from search_outbox_events where status = 'processing'").Scan(&n); err != nil || n != 1 {
			held = max(held, n)
		}
		return outbox.OK()
	}
	r.start()
	r.await(map[string]int{"done": 30})
	if held > 0 {
		t.Errorf("%d events were claimed while a suspect was tried", held)
	}
}
