package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Projection is the part of a projection that the pipeline uses, with what [projections.Projection]
// promises. Calls may overlap. The ctx of Project has its deadline and the authority of the term; one
// that does not heed ctx holds up the end of the term. Ready has three seconds.
type Projection interface {
	Name() string
	Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error)
	Ready(ctx context.Context) error
}

// Store is the part of the outbox that the pipeline uses; *outbox.Store implements it.
type Store interface {
	List(ctx context.Context, r outbox.ListRequest) (*outbox.List, error)
	Lease(ctx context.Context, epoch int64, batch uuid.UUID, groups []outbox.Group) (*outbox.Lease, error)
	Settle(ctx context.Context, epoch int64, batch uuid.UUID, in []outbox.Settlement) (outbox.Settled, error)
	Split(ctx context.Context, epoch int64, batch uuid.UUID, halves [2]outbox.Half) error
	Resolve(ctx context.Context, epoch int64, batch uuid.UUID, in []outbox.Settlement) (outbox.Settled, bool, error)
	Abandon(ctx context.Context, epoch int64, lost []uuid.UUID) (int, error)
	PutOff(ctx context.Context, epoch int64, key outbox.Key, behind outbox.Position, limit int) (int, error)
	PutOffEntities(ctx context.Context, limit int, after outbox.ID) (free, waiting []outbox.Key, next outbox.ID, err error)
	Wake(ctx context.Context, epoch int64, reasons []outbox.Reason, limit int) (int, error)
	ForeignClaim(ctx context.Context, within time.Duration) (string, time.Duration, error)
	RecordProgress(ctx context.Context, epoch int64, lastSettle time.Time) error
	Holds(ctx context.Context) (outbox.Holds, []outbox.Key, error)
}

// Term is the part of a term of leadership that the pipeline uses; *leader.Term implements it.
type Term interface {
	Epoch() int64
	Check() error              // an error when leadership is not proven any more
	Stopping() <-chan struct{} // closed when the term is to end gracefully
}

// RetryPolicy decides when an event is tried again, and when no more.
type RetryPolicy = schedule.RetryPolicy

// DefaultCutOff is [Config].CutOff where that is 0.
const DefaultCutOff = 30 * time.Second

// Config are the limits of a pipeline.
type Config struct {
	Group, Instance  string        // leader group, and this instance of it
	BatchSize        int           // most entities of a batch; 1 to 10,000
	Concurrency      int           // batches in flight; 1 to 32
	Poll             time.Duration // longest pause of an idle leader; > 0
	Retry            RetryPolicy
	BreakerThreshold int           // entities in a row that end in failed before the breaker opens; > 0
	ProjectTimeout   time.Duration // deadline of one call of the projection; 0 means 60 s
	Grace            time.Duration // how long a graceful end waits for what is in flight
	Strict           bool          // see [schedule.Config]; the store must be strict, too
	// CutOff ends a term that has had no answer from the outbox for this long, although the
	// lock session lives: another instance may get through. 0 means [DefaultCutOff].
	CutOff time.Duration

	Tracing observe.Tracing // optional
}

func (c *Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Group != "" && c.Instance != "", "group %q, instance %q: want both", c.Group, c.Instance)
	check(c.BatchSize >= 1 && c.BatchSize <= 10_000, "batch size %d: want 1 to 10000", c.BatchSize)
	check(c.Concurrency >= 1 && c.Concurrency <= 32, "concurrency %d: want 1 to 32", c.Concurrency)
	check(c.Poll > 0, "poll interval %v: want more than 0", c.Poll)
	check(c.Retry.MaxAttempts > 0, "max attempts %d: want more than 0", c.Retry.MaxAttempts)
	check(c.Retry.BaseBackoff > 0 && c.Retry.BaseBackoff <= c.Retry.MaxBackoff,
		"backoff %v to %v: want 0 < base <= max", c.Retry.BaseBackoff, c.Retry.MaxBackoff)
	check(c.BreakerThreshold > 0, "breaker threshold %d: want more than 0", c.BreakerThreshold)
	check(c.ProjectTimeout > 0 && c.CutOff > 0 && c.Grace >= 0, "project timeout %v, cut off %v, grace %v: want no negative ones",
		c.ProjectTimeout, c.CutOff, c.Grace)
	return errors.Join(errs...)
}

// Pipeline carries the events of one outbox table through one projection while a
// term lasts. It may run one term after another, never two at once.
type Pipeline struct {
	store Store
	proj  Projection
	cfg   Config
	tell  *observe.Observer
	pulse pulse

	mu    sync.Mutex
	state State
}

// State is a pipeline's phase for readiness, status and metrics.
type State struct {
	schedule.State
	Since  time.Time    // local clock; for reading only
	Outbox string       // why the pipeline cannot work on the table; empty when it can
	Fault  error        // of the outbox, which Outbox tells; nil for another reason
	Holds  outbox.Holds // what operators hold back
}

// New returns a pipeline, or every problem of cfg.
func New(store Store, proj Projection, cfg Config, log *zap.Logger, m *observe.Metrics) (*Pipeline, error) {
	if cfg.ProjectTimeout == 0 {
		cfg.ProjectTimeout = time.Minute
	}
	if cfg.CutOff == 0 {
		cfg.CutOff = DefaultCutOff
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("pipeline of %s: %w", proj.Name(), err)
	}
	version := 0
	if v, ok := proj.(interface{ Version() int }); ok {
		version = v.Version()
	}
	log = log.Named("consumer").With(zap.String("projection", proj.Name()))
	p := &Pipeline{store: store, proj: proj, cfg: cfg, tell: observe.New(proj.Name(), version, log, m, cfg.Tracing)}
	p.show(schedule.State{Phase: schedule.Idle}, nil)
	return p, nil
}

// State returns the current state of the pipeline.
func (p *Pipeline) State() State { return p.change(func(*State) {}) }

// change changes the state, and returns what it was.
func (p *Pipeline) change(f func(*State)) (before State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before = p.state
	f(&p.state)
	return before
}

// show publishes a phase. batch is the one that caused the change; nil for none.
func (p *Pipeline) show(now schedule.State, batch *observe.Batch) {
	before := p.change(func(s *State) {
		if now.Phase != s.Phase {
			s.Since = time.Now()
		}
		s.State = now
	})
	if now.Phase != before.Phase {
		p.tell.Phase(before.State, now, batch)
	}
}

// Silent returns for how long the pipeline has made no progress, though it runs: no answer, no
// server found to be away, no batch landed. It stays below twice the longest of the
// project timeout, the poll, half a minute and a call of the store.
func (p *Pipeline) Silent() time.Duration { return p.pulse.silent() }

// Name returns the name of the projection.
func (p *Pipeline) Name() string { return p.proj.Name() }

// Run works under term until ctx ends, which abandons what is in flight, or until
// the term is asked to stop, which drains it. It returns nil after a drain,
// [outbox.ErrFenced] when a newer epoch has taken over, and the cause of ctx
// otherwise. All goroutines have ended when it returns.
func (p *Pipeline) Run(ctx context.Context, term Term) error {
	outer := ctx
	ctx, cancel := context.WithCancelCause(outbox.WithAuthority(ctx, outbox.Authority{
		Group: p.cfg.Group, Epoch: term.Epoch(), Instance: p.cfg.Instance, Check: term.Check,
	}))
	defer cancel(nil)
	p.pulse.begin()
	defer p.pulse.end()
	r := &run{
		p: p, store: p.store, ctx: ctx, term: term, epoch: term.Epoch(), began: time.Now(),
		s: schedule.New(schedule.Config{
			BatchSize: p.cfg.BatchSize, Concurrency: p.cfg.Concurrency, Page: max(5_000, p.cfg.BatchSize), Poll: p.cfg.Poll, Retry: p.cfg.Retry,
			BreakerThreshold: p.cfg.BreakerThreshold, Strict: p.cfg.Strict, Jitter: func(d time.Duration) time.Duration { return rand.N(d + 1) },
			NewID: func() uuid.UUID { return uuid.Must(uuid.NewV7()) }, // the claim_batch_id that joins the log lines of a batch
		}),
		paused: true, answers: make(chan answer), told: map[*schedule.Batch]*observe.Batch{}, lost: map[uuid.UUID]time.Time{}, refused: map[string]refusal{},
	}
	r.s.ListOnly()                                      // until it is known what operators hold back
	r.upkeep.next = schedule.Tick(r.began, upkeepEvery) // a claim of before the term is no sign of another worker
	p.show(r.s.State(), nil)
	err := r.loop()
	cancel(err) // ends the workers that still run, and their calls
	r.workers.Wait()
	p.change(func(s *State) { s.Outbox, s.Fault, s.Holds = "", nil, outbox.Holds{} })
	p.show(schedule.State{Phase: schedule.Idle}, nil)
	p.tell.Waits(0, 0)
	for _, b := range r.told {
		b.Abandoned(err)
	}
	if errors.Is(err, outbox.ErrFenced) && outer.Err() == nil { // else another pipeline reports it
		p.tell.Fenced(term.Epoch(), err)
	}
	return err
}

// call runs the projection under its deadline, or a shorter one. A panic and a wrong
// number of outcomes are faults of unknown reason, not the end of the process.
func (p *Pipeline) call(ctx context.Context, events []outbox.Event, limit time.Duration) (out []outbox.Outcome, err error) {
	d := p.cfg.ProjectTimeout
	if limit > 0 {
		d = min(d, limit)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			p.tell.Panic(ctx, v, debug.Stack())
			out, err = nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("panic: %v", v)}
		}
	}()
	out, err = p.proj.Project(ctx, events)
	if len(out) != len(events) && (err == nil || len(out) > 0) {
		err = fmt.Errorf("%d outcomes for %d events", len(out), len(events))
		return nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: err}
	}
	return out, err
}
