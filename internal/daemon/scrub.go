package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/verify"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

const (
	scrubSave  = 10 * time.Second
	scrubRetry = time.Minute // after a fault
	// scrubFirst is how long a leader waits before the first comparison that ever was: the rows
	// of a new outbox may not be loaded yet.
	scrubFirst = time.Hour
	// scrubRest is the pause while more than scrubBacklog events are open.
	scrubRest    = 5 * time.Second
	scrubBacklog = 1000
	scrubSlowest = 200 // rows and documents a second: fewer would spare nobody
)

// scrubMetrics show what the leader has compared.
type scrubMetrics struct {
	documents *prometheus.CounterVec
	oldest    *prometheus.GaugeVec
}

func newScrubMetrics(reg prometheus.Registerer, names []string) (*scrubMetrics, error) {
	m := &scrubMetrics{
		documents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_verify_documents_total", Help: "Entities that the leader has compared with their documents in the background, by result: equal, or how they differ.",
		}, []string{"projection", "result"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_verify_oldest_seconds", Help: "How long ago the oldest look at a document may have been: since the last complete comparison began, or the first one; 0 on an instance that does not lead.",
		}, []string{"projection"}),
	}
	for _, c := range []prometheus.Collector{m.documents, m.oldest} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("scrubber metrics: %w", err)
		}
	}
	for _, p := range names {
		m.oldest.WithLabelValues(p)
		for _, result := range verify.Results() {
			m.documents.WithLabelValues(p, result)
		}
	}
	return m, nil
}

// scrub compares a projector's source and destination, a little at a time, until ctx ends.
// Its faults do not end the term.
func (d *daemon) scrub(ctx context.Context, l projector) {
	sides, ok := l.proj.(projections.Sides)
	if !ok || !d.cfg.Verify.Runs() {
		return
	}
	s := &scrubber{d: d, projector: l, sides: sides, began: time.Now(), log: d.log.Named("scrub").With(zap.String("projection", l.proj.Name()))}
	defer d.scrubbed.oldest.WithLabelValues(l.proj.Name()).Set(0) // the next leader has it
	failed := false
	for ctx.Err() == nil {
		pause, err := s.cycle(ctx)
		if err != nil {
			pause = scrubRetry
			if ctx.Err() == nil && !failed {
				s.log.Warn("the comparison of source and destination stopped; weft goes on with it in a minute", zap.String("event", "verify.stopped"), zap.Error(err))
			}
		}
		failed = err != nil
		sleep(ctx, pause)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

type scrubber struct {
	d         *daemon
	projector projector
	sides     projections.Sides
	log       *zap.Logger
	began     time.Time // of the term; monotonic
	kept      *outbox.Verified
	told      map[string]int64 // what the metrics have
}

// cycle goes on with a comparison, or begins one when it is time. It returns how long to wait.
func (s *scrubber) cycle(ctx context.Context) (time.Duration, error) {
	if away, err := migrations.ReadAway(ctx, s.d.pool, ""); err != nil || away != nil {
		return scrubRetry, err // a shard that is elsewhere has no rows here
	}
	cfg := s.d.cfg
	name, table := s.projector.proj.Name(), s.projector.proj.Table()
	mender, err := outbox.OpenMender(ctx, s.d.pool, table, name, cfg.Database.Timeout)
	if err != nil {
		return 0, err
	}
	all, err := outbox.ReadVerify(ctx, s.d.pool, name, cfg.Database.Timeout)
	if err != nil {
		return 0, err
	}
	var last outbox.VerifyProgress
	if i := slices.IndexFunc(all, func(v outbox.VerifyProgress) bool { return v.Part == outbox.VerifyScrub }); i >= 0 {
		last = all[i]
	}
	s.d.scrubbed.oldest.WithLabelValues(name).Set(last.Covered.Seconds())
	if first := min(scrubFirst, cfg.Verify.Every) - time.Since(s.began); last.Part == "" && first > 0 {
		return min(first, scrubRetry), nil
	}
	if last.FinishedAt != nil && last.Begun < cfg.Verify.Every {
		return min(cfg.Verify.Every-last.Begun, scrubRetry), nil
	}
	if s.kept, err = outbox.BeginVerify(ctx, s.d.pool, name, outbox.VerifyScrub, true, cfg.Database.Timeout); err != nil {
		return 0, err
	}
	o, err := s.options(ctx, mender)
	if err != nil {
		return 0, err
	}
	report, err := verify.Run(ctx, o)
	s.count(report)
	save, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(withdrawTimeout, cancel) })() // a stop does not wait for it for long
	err = errors.Join(err, s.kept.Save(save, report.Last, report, err == nil))
	if err == nil {
		s.log.Info("source and destination have been compared", zap.String("event", "verify.finished"), zap.Int64("rows", report.Rows),
			zap.Int64("documents", report.Documents), zap.Int64("differ", report.Differs()), zap.Int64("repaired", report.Repaired))
	}
	return 0, err
}

func (s *scrubber) options(ctx context.Context, mender *outbox.Mender) (o verify.Options, err error) {
	cfg := s.d.cfg
	rows, documents, err := s.sides.Size(ctx)
	if err != nil {
		return o, err
	}
	o = verify.Options{Sides: s.sides, Events: mender, Rate: max(int(float64(rows+documents)/cfg.Verify.Every.Seconds()), scrubSlowest)}
	if cfg.Verify.Repairs() {
		o.Repair = &verify.Repair{Actor: cfg.Instance, Why: "found by the scrubber"}
	}
	if err := o.Resume(mender, s.kept); err != nil {
		return o, err
	}
	s.told = o.Before.Counts()
	saved := time.Now()
	o.Progress = func(r verify.Report) {
		s.count(r)
		if time.Since(saved) < scrubSave {
			return
		}
		saved = time.Now()
		if err := s.kept.Save(ctx, r.Last, r, false); err != nil && ctx.Err() == nil {
			s.log.Warn("how far the comparison has come could not be recorded", zap.String("event", "verify.unrecorded"), zap.Error(err))
		}
	}
	o.Rest = func(ctx context.Context) error {
		for {
			open, err := mender.Open(ctx, scrubBacklog)
			if err != nil || open < scrubBacklog {
				return err
			}
			if sleep(ctx, scrubRest); ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return o, nil
}

// count brings the metrics up to a report, and names what differs.
func (s *scrubber) count(r verify.Report) {
	for result, n := range r.Counts() {
		if n < s.told[result] { // it has begun anew
			s.told[result] = 0
		}
		if more := n - s.told[result]; more > 0 {
			s.d.scrubbed.documents.WithLabelValues(s.projector.proj.Name(), result).Add(float64(more))
			s.told[result] = n
			if result != "equal" {
				s.log.Error("documents differ from their rows", zap.String("event", "verify.differs"), zap.String("result", result), zap.Int64("documents", more),
					zap.Any("examples", r.Examples))
			}
		}
	}
}
