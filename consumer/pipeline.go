package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Projection is what the pipeline needs of a projection: one outcome per event, in
// order, or an error that means that no event's fate is known.
type Projection interface {
	Name() string
	Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error)
	Ready(ctx context.Context) error
}

// Store is what the pipeline needs of the outbox; *outbox.Store has it.
type Store interface {
	Peek(ctx context.Context) (bool, error)
	List(ctx context.Context, limit int) ([]outbox.Listed, time.Duration, error)
	Claim(ctx context.Context, r outbox.ClaimRequest) (*outbox.Claimed, error)
	Settle(ctx context.Context, epoch int64, in []outbox.Settlement) (outbox.Settled, error)
	Renew(ctx context.Context, epoch int64, events []outbox.Event) (int, error)
	Waits(ctx context.Context, known []outbox.Event, yield func(outbox.Wait)) error
	Wake(ctx context.Context, epoch int64, reasons []outbox.Reason) (int, error)
	GiveBackUnknown(ctx context.Context, epoch int64, known []outbox.Event) (int, error)
	RecordProgress(ctx context.Context, epoch int64, lastSettle time.Time) error
	Lease() time.Duration
}

// Term is what the pipeline needs of a term of leadership; *leader.Term has it.
type Term interface {
	Epoch() int64
	Check() error              // an error when leadership is not proven any more
	Stopping() <-chan struct{} // closed when the term is to end gracefully
}

// Config are the limits of a pipeline.
type Config struct {
	Group            string        // leader group
	BatchSize        int           // most entities of a batch, and rows of a claim; 1 to 10,000
	Concurrency      int           // batches in flight; 1 to 32
	Poll             time.Duration // longest pause of an idle leader; > 0
	Retry            RetryPolicy
	BreakerThreshold int           // final failures in a row that open the breaker; > 0
	ProjectTimeout   time.Duration // deadline of one projection of one batch; 0 means 60 s
	Grace            time.Duration // how long a graceful end waits for what is in flight
	// CutOff ends a term that has had no connection to the outbox for so long, although
	// the lock session lives: another instance may have one. 0 means 30 s.
	CutOff time.Duration

	Tracing Tracing // optional
}

func (c *Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Group != "", "group is empty")
	check(c.BatchSize >= 1 && c.BatchSize <= 10_000, "batch size %d: want 1 to 10000", c.BatchSize)
	check(c.Concurrency >= 1 && c.Concurrency <= 32, "concurrency %d: want 1 to 32", c.Concurrency)
	check(c.Poll > 0, "poll interval %v: want more than 0", c.Poll)
	check(c.Retry.MaxAttempts > 0, "max attempts %d: want more than 0", c.Retry.MaxAttempts)
	check(c.Retry.BaseBackoff > 0 && c.Retry.BaseBackoff <= c.Retry.MaxBackoff,
		"backoff %v to %v: want 0 < base <= max", c.Retry.BaseBackoff, c.Retry.MaxBackoff)
	check(c.BreakerThreshold > 0, "breaker threshold %d: want more than 0", c.BreakerThreshold)
	return errors.Join(errs...)
}

// Pipeline carries the events of one outbox table through one projection while a
// term lasts. It may run one term after another, never two at once.
type Pipeline struct {
	store   Store
	proj    Projection
	cfg     Config
	log     *zap.Logger
	metrics *Metrics
	gate    *gate
	spans   *spans
	pulse   pulse
	lists   listSizes
}

// New returns a pipeline, or all that is wrong with cfg.
func New(store Store, proj Projection, cfg Config, log *zap.Logger, m *Metrics) (*Pipeline, error) {
	if cfg.ProjectTimeout == 0 {
		cfg.ProjectTimeout = time.Minute
	}
	if cfg.CutOff == 0 {
		cfg.CutOff = 30 * time.Second
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("pipeline of %s: %w", proj.Name(), err)
	}
	log = log.Named("consumer").With(zap.String("projection", proj.Name()))
	return &Pipeline{
		store: timed{store, m, proj.Name(), log}, proj: proj, cfg: cfg,
		log: log, metrics: m, gate: newGate(cfg.BreakerThreshold, m.phaseOf(proj.Name())), spans: newSpans(cfg.Tracing, proj),
		lists: listSizes{long: longList, short: shortList, sample: sampleList},
	}, nil
}

// State returns what the pipeline does at the moment.
func (p *Pipeline) State() State { return p.gate.State() }

// Silent returns for how long the pipeline has got nowhere, though it runs: no answer, no
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
		Group: p.cfg.Group, Epoch: term.Epoch(), Check: term.Check,
	}))
	defer cancel(nil)
	p.gate.begin()
	defer p.gate.end()
	p.pulse.begin()
	defer p.pulse.end()
	r := &run{
		p: p, ctx: ctx, term: term,
		lanes: newLanes(), waits: newWaits(), locked: locked{}, looks: newLooks(p.cfg.Poll, p.lists),
		results: make(chan *result, p.cfg.Concurrency),
		window:  min(firstWindow, p.cfg.BatchSize),
		renewAt: time.Now().Add(p.store.Lease() / 3),
	}
	err := r.loop()
	cancel(err) // a worker that is still out has nothing left to do
	r.workers.Wait()
	p.setBlocked(0)
	if errors.Is(err, outbox.ErrFenced) && outer.Err() == nil { // else it is another pipeline's news
		p.metrics.fenced.WithLabelValues(p.Name()).Inc()
		p.log.Warn("write refused: a newer epoch has taken over", zap.String("event", "outbox.fenced"),
			zap.Int64("epoch", term.Epoch()), zap.Error(err))
	}
	return err
}

func (p *Pipeline) setBlocked(n int) {
	p.metrics.blocked.WithLabelValues(p.Name()).Set(float64(n))
}
