package reclaim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

// page bounds one statement, so that a large reclaim does not hold many locks at once.
const page = 2000

// Store is the part of the outbox that a Reclaimer uses; *outbox.Store implements it.
type Store interface {
	ReclaimLeases(ctx context.Context, r outbox.ReclaimRequest) ([]outbox.Reclaimed, error)
	ReclaimRows(ctx context.Context, r outbox.ReclaimRequest) ([]outbox.Reclaimed, error)
}

// Config sets the interval of a Reclaimer and the limits after which rows count as lost.
type Config struct {
	Projection    string        // value of the projection label
	Interval      time.Duration // between two looks; > 0
	MaxProcessing time.Duration // how long another worker's row without a lease may be processing; > 0
	MaxReclaims   int           // reclaims in a row that end an event in failed; > 1
}

// NewMetrics registers the counter of reclaimed rows of all projections of a process, by projection and cause, all
// at zero.
func NewMetrics(reg prometheus.Registerer, projections []string) (*prometheus.CounterVec, error) {
	reclaimed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weft_reclaimed_events_total",
		Help: "Events that were taken back from another term or worker, by cause.",
	}, []string{"projection", "cause"})
	for _, p := range projections {
		for _, c := range outbox.Causes() {
			reclaimed.WithLabelValues(p, string(c))
		}
	}
	return reclaimed, reg.Register(reclaimed)
}

// Reclaimer takes back the events of one outbox table that their holders can no longer
// settle. It makes one call at a time.
type Reclaimer struct {
	store     Store
	cfg       Config
	log       *zap.Logger
	reclaimed *prometheus.CounterVec // rows
	limit     int                    // rows of the next statement
}

// New returns a Reclaimer, or every problem of cfg.
func New(store Store, cfg Config, log *zap.Logger, reclaimed *prometheus.CounterVec) (*Reclaimer, error) {
	var errs []error
	if cfg.Interval <= 0 {
		errs = append(errs, fmt.Errorf("reclaim interval %v: want more than 0", cfg.Interval))
	}
	if cfg.MaxProcessing <= 0 {
		errs = append(errs, fmt.Errorf("max processing %v: want more than 0", cfg.MaxProcessing))
	}
	if cfg.MaxReclaims < 2 {
		errs = append(errs, fmt.Errorf("max reclaims %d: want 2 or more", cfg.MaxReclaims))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("reclaimer of %s: %w", cfg.Projection, errors.Join(errs...))
	}
	return &Reclaimer{store: store, cfg: cfg, log: log.Named("reclaim").With(zap.String("projection", cfg.Projection)), reclaimed: reclaimed, limit: page}, nil
}

// Run calls [Reclaimer.RunOnce] once per interval until ctx ends, and then returns
// nil. It returns [outbox.ErrFenced] when a newer epoch has taken over. A fault of
// the database is logged once until a call succeeds again.
func (r *Reclaimer) Run(ctx context.Context, epoch int64) error {
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	faulty := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		_, err := r.RunOnce(ctx, epoch)
		switch {
		case err == nil:
			faulty = false
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, outbox.ErrFenced):
			return err
		case !faulty:
			faulty = true
			r.log.Warn("reclaim fails; weft tries again every interval", zap.String("event", "reclaim.fault"), zap.Error(err))
		}
	}
}

// RunOnce reclaims all rows that are lost now and returns their number. Each term begins with
// it, so that an event that crashes the process is counted before its next attempt. A statement
// that was too slow is half as large the next time.
func (r *Reclaimer) RunOnce(ctx context.Context, epoch int64) (total int, err error) {
	request := outbox.ReclaimRequest{Epoch: epoch, Limit: r.limit, MaxProcessing: r.cfg.MaxProcessing, MaxReclaims: r.cfg.MaxReclaims}
	defer func() {
		switch {
		case err == nil:
			r.limit = page
		case outbox.Slow(err):
			r.limit = max(1, r.limit/2)
		}
	}()
	for _, step := range []struct {
		take func(context.Context, outbox.ReclaimRequest) ([]outbox.Reclaimed, error)
		full int // as many may not be all
	}{{r.store.ReclaimLeases, outbox.LeasesAtOnce}, {r.store.ReclaimRows, 1}} {
		for more := true; more; {
			got, err := step.take(ctx, request)
			if err != nil {
				return total, err
			}
			total += r.tell(got, epoch)
			more = len(got) >= step.full
		}
	}
	return total, nil
}

// tell counts and logs reclaimed rows, and returns their number.
func (r *Reclaimer) tell(got []outbox.Reclaimed, epoch int64) (rows int) {
	for _, g := range got {
		if g.Rows == 0 {
			continue
		}
		rows += g.Rows
		r.reclaimed.WithLabelValues(r.cfg.Projection, string(g.Cause)).Add(float64(g.Rows))
		level := r.log.Info
		if g.Failed {
			level = r.log.Error
		}
		level("leases taken back", zap.String("event", "reclaim.rows"), zap.Int("rows", g.Rows),
			zap.String("cause", string(g.Cause)), zap.String("from_owner", g.Owner), zap.Int64("from_epoch", g.Epoch),
			zap.Int64("by_epoch", epoch), zap.Bool("failed", g.Failed))
	}
	return rows
}
