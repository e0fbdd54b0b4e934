package traffic

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	quietPeriod  = 2 * time.Second
	statusPeriod = 500 * time.Millisecond
	waitPeriod   = 100 * time.Millisecond
)

// Options of [Run].
type Options struct {
	Settings
	App         *Application // required: that carries out the operations, with a pool of at least Concurrency connections
	Environment string       // that is expected; empty for either of test and dev
	Out         io.Writer    // progress and summary; nil for neither
	// Committed is told of the events of each transaction whose commit was confirmed, from
	// several goroutines; nil for nobody.
	Committed func([]outbox.NewEvent)
	// Wait is how long to wait in the end until the events are done; 0 is not at all.
	Wait time.Duration
}

// Result is what a load has done. Names and units stay; fields may be added.
type Result struct {
	Scenario Scenario         `json:"scenario"`
	Ops      int              `json:"ops"` // carried out
	Asked    int              `json:"asked"`
	Errors   int              `json:"errors"`
	Error    string           `json:"error,omitempty"` // the first one
	Seconds  float64          `json:"seconds"`
	Rate     float64          `json:"rate_per_sec"`            // in fact
	Wanted   float64          `json:"rate_wanted"`             // 0: as fast as possible
	Latency  verdict.Latency  `json:"latency_ms"`              // from when an operation was due to its commit
	Late     verdict.Latency  `json:"late_ms"`                 // from when it was due to its begin
	Done     int              `json:"done,omitempty"`          // events that weft has settled, with Wait
	EndToEnd *verdict.Latency `json:"end_to_end_ms,omitempty"` // from the event's row to its settle, by the database's clock
}

// tally counts what comes of operations.
type tally struct {
	mu      sync.Mutex
	latency []time.Duration
	late    []time.Duration
	events  []outbox.ID
	first   error
	failed  int
}

func (t *tally) note(events []outbox.NewEvent, due, began, ended time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = append(t.late, max(0, began.Sub(due)))
	if err != nil {
		t.failed++
		if t.first == nil {
			t.first = err
		}
		return
	}
	t.latency = append(t.latency, ended.Sub(due))
	for _, e := range events {
		t.events = append(t.events, e.ID)
	}
}

func (t *tally) counts() (done, failed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.latency), t.failed
}

// Run writes. The end of ctx ends the load early, which is no error; what is under way is
// brought to its end.
func Run(ctx context.Context, opts Options) (*Result, error) {
	if opts.Out == nil {
		opts.Out = io.Discard
	}
	limited, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	environment, err := rig.CheckEnvironment(limited, opts.App.Pool, opts.Environment)
	if err == nil {
		_, err = opts.App.Pool.Exec(limited, `select 'search_index'::regclass, '`+rig.Outbox+`'::regclass`)
	}
	cancel()
	if err != nil {
		return nil, err
	}
	screen := rig.NewScreen(opts.Out, quietPeriod)
	defer screen.Refresh("")
	w := &work{Settings: opts.Settings, app: opts.App}
	pace := "as fast as possible"
	if opts.Rate > 0 {
		pace = fmt.Sprintf("%g a second", opts.Rate)
	}
	what := string(opts.Scenario)
	if opts.Missing != "" {
		what = fmt.Sprintf("%s of entities that never existed", opts.Missing)
	}
	screen.Line("%s: %s operations with %d bytes, %s, at most %d at once, environment %s",
		what, rig.Number(opts.Ops), opts.Bytes, pace, opts.Concurrency, environment)
	if err := w.prepare(ctx, func(n int) { screen.Refresh(fmt.Sprintf("made %s entities", rig.Number(n))) }); err != nil {
		return nil, err
	}
	t := &tally{}
	began := time.Now()
	err = w.all(ctx, opts, t, func() {
		done, failed := t.counts()
		screen.Refresh(fmt.Sprintf("%6.1f s  %s of %s  %.0f a second  %d failed",
			time.Since(began).Seconds(), rig.Number(done), rig.Number(opts.Ops), float64(done)/time.Since(began).Seconds(), failed))
	})
	screen.Refresh("")
	if err != nil {
		return nil, err
	}
	result := t.result(opts.Settings, time.Since(began))
	if opts.Wait > 0 {
		if err := result.await(ctx, opts, t.events, screen); err != nil {
			return result, err
		}
	}
	result.write(screen)
	return result, nil
}

// all carries out the operations, each when it is due.
func (w *work) all(ctx context.Context, opts Options, t *tally, show func()) error {
	defer rig.During(ctx, func(ctx context.Context) {
		for rig.Sleep(ctx, statusPeriod) == nil {
			show()
		}
	})()
	loop := Loop{Ops: w.Ops, Rate: w.Rate, Concurrency: min(w.Concurrency, w.Ops)}
	return loop.Run(ctx, func(ctx context.Context, n int, due time.Time) error {
		start := time.Now()
		events, err := w.operation(ctx, n)
		t.note(events, due, start, time.Now(), err)
		if err == nil && opts.Committed != nil {
			opts.Committed(events)
		}
		return nil // counted
	})
}

func (t *tally) result(s Settings, took time.Duration) *Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &Result{
		Scenario: s.Scenario, Ops: len(t.latency), Asked: s.Ops, Errors: t.failed, Seconds: math.Round(took.Seconds()*10) / 10,
		Rate: math.Round(float64(len(t.latency))/took.Seconds()*10) / 10, Wanted: s.Rate, Latency: verdict.Millis(t.latency).Latency(), Late: verdict.Millis(t.late).Latency(),
	}
	if t.first != nil {
		r.Error = t.first.Error()
	}
	return r
}

// settled counts the events that are done or failed, and says how long the done ones took.
const settled = `
select count(*) filter (where status = 'done'), count(*) filter (where status = 'failed'),
       coalesce(array_agg(extract(epoch from processed_at - created_at)::float8) filter (where status = 'done'), '{}')
from ` + rig.Outbox + ` where id = any ($1)`

func (r *Result) await(ctx context.Context, opts Options, events []outbox.ID, screen *rig.Screen) error {
	ids := outbox.IDs(events, func(id *outbox.ID) *outbox.ID { return id })
	return rig.Await(ctx, opts.Wait, waitPeriod, "end of all events", func(ctx context.Context) error {
		var failed int
		var seconds []float64
		if err := opts.App.Pool.QueryRow(ctx, settled, ids).Scan(&r.Done, &failed, &seconds); err != nil {
			return err
		}
		took := rig.Map(seconds, func(s float64) float64 { return verdict.InMillis(time.Duration(s * float64(time.Second))) })
		s := verdict.Distribution(took).Latency()
		r.EndToEnd = &s
		screen.Refresh(fmt.Sprintf("done %s of %s, %d failed", rig.Number(r.Done), rig.Number(len(events)), failed))
		if left := len(events) - r.Done - failed; left > 0 {
			return fmt.Errorf("%s are neither done nor failed", rig.Number(left))
		}
		return nil
	})
}

func (r *Result) write(w *rig.Screen) {
	w.Line("%s of %s operations in %.1f s, %g a second, %d failed", rig.Number(r.Ops), rig.Number(r.Asked), r.Seconds, r.Rate, r.Errors)
	line := func(what string, s verdict.Latency) {
		w.Line("%-34s p50 %8.1f ms   p99 %8.1f ms   max %8.1f ms", what, s.P50, s.P99, s.Max)
	}
	line("committed after it was due", r.Latency)
	line("begun after it was due", r.Late)
	if r.EndToEnd != nil {
		line("done after the event was written", *r.EndToEnd)
	}
	if r.Wanted > 0 && r.Late.P99 > 1000 {
		w.Line("the rate was not kept: the database takes too long for %g a second; more concurrency may help", r.Wanted)
	}
	if r.Error != "" {
		w.Line("the first error: %s", r.Error)
	}
}

// produced serves outbox_produced_total.
type produced struct {
	address string
	counter *outbox.Produced
	server  *http.Server
	serving sync.WaitGroup
}

// kindOf is the kind of an event: the load has no event types of an application.
func kindOf(entityType string, op outbox.Op) outbox.Kind {
	return outbox.Kind{EventType: entityType + "." + string(op), EntityType: entityType}
}

// produce listens on address until close.
func produce(address, environment string) (*produced, error) {
	reg := prometheus.NewRegistry()
	entity := NewKey().Type
	counter, err := outbox.NewProduced(telemetry.Contract(reg, environment), kindOf(entity, outbox.Upsert), kindOf(entity, outbox.Delete))
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("load: metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	p := &produced{address: listener.Addr().String(), counter: counter, server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}
	p.serving.Go(func() { _ = p.server.Serve(listener) }) // close ends it
	return p, nil
}

func (p *produced) committed(events []outbox.NewEvent) {
	for _, e := range events {
		p.counter.Add(kindOf(e.Key.Type, e.Op), 1)
	}
}

func (p *produced) close() {
	_ = p.server.Close() // nobody waits for an answer
	p.serving.Wait()
}

const (
	// known is how many entities there are to be changed, unless each is to be removed.
	known     = 1000
	hot       = 10
	fillBatch = 200
)

// work carries out the operations of a load. Its fields do not change after prepare.
type work struct {
	Settings
	app      *Application
	entities []outbox.Key
}

// prepare makes the entities that the scenario changes, which are no operations and not in the ledger.
func (w *work) prepare(ctx context.Context, made func(int)) error {
	filler := &Application{Pool: w.app.Pool}
	n := 0
	switch {
	case w.Missing != "", w.Scenario == CreateScenario:
	case w.Scenario == DeleteScenario:
		n = w.Ops
	default:
		n = known
	}
	for len(w.entities) < n {
		random := rand.New(rand.NewPCG(w.Seed, uint64(len(w.entities))))
		var changes []Change
		for range min(fillBatch, n-len(w.entities)) {
			key := NewKey()
			changes = append(changes, w.upsert(key, random))
			w.entities = append(w.entities, key)
		}
		if _, err := filler.Write(ctx, changes...); err != nil {
			return fmt.Errorf("make the entities: %w", err)
		}
		made(len(w.entities))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// operation n is the same for a seed, apart from what others do to its entity.
func (w *work) operation(ctx context.Context, n int) ([]outbox.NewEvent, error) {
	if w.Missing != "" {
		return w.app.WriteMissing(ctx, w.Missing)
	}
	random := rand.New(rand.NewPCG(w.Seed, uint64(n)|1<<63))
	scenario := w.Scenario
	if scenario == MixedScenario {
		switch d := random.IntN(10); {
		case d < 3:
			scenario = CreateScenario
		case d < 8:
			scenario = UpdateScenario
		default:
			scenario = DeleteScenario
		}
	}
	var key outbox.Key
	switch {
	case scenario == CreateScenario:
		key = NewKey()
	case w.Scenario == DeleteScenario:
		key = w.entities[n]
	case w.Scenario == HotScenario && random.IntN(5) > 0:
		key = w.entities[random.IntN(hot)]
	default:
		key = w.entities[random.IntN(len(w.entities))]
	}
	if scenario == DeleteScenario {
		events, err := w.app.Write(ctx, Change{Key: key, Op: outbox.Delete, If: IfPresent})
		if err != nil || len(events) > 0 {
			return events, err
		}
		// A mixed load has removed it before: it comes back.
	}
	return w.app.Write(ctx, w.upsert(key, random))
}

func (w *work) upsert(key outbox.Key, random *rand.Rand) Change {
	return Change{Key: key, Op: outbox.Upsert, Row: Row{Text: words(random, w.Bytes), Rank: random.Float64()}}
}

func words(random *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%07x ", random.Uint32()>>4)
	}
	return b.String()[:n]
}
