package daemon

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	measureEvery        = 5 * time.Second
	measureEveryStandby = 15 * time.Second // so that lag does not vanish when nobody leads
	// measureShare bounds the cost of counting a long backlog: after a reading that
	// took t, the next comes no sooner than measureShare*t later.
	measureShare = 50
)

// gauges are the contract's metrics over the tables.
type gauges struct {
	lag, lagSeconds, oldest, stuck, failed, lastSettle *prometheus.GaugeVec
}

func newGauges(reg prometheus.Registerer, projections []string) (*gauges, error) {
	vec := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"projection"})
	}
	g := &gauges{
		lag:        vec("outbox_lag_events", "Events that are not finished."),
		lagSeconds: vec("outbox_lag_seconds", "Age of the oldest event that is not finished, in seconds."),
		oldest:     vec("outbox_oldest_age_seconds", "Age of the oldest event that is not finished, in seconds."),
		stuck:      vec("outbox_stuck_processing_events", "Events in processing with an expired lease, or for too long."),
		failed:     vec("weft_dead_letters", "Events in failed."),
		lastSettle: vec("weft_last_settle_timestamp_seconds", "When an event was last done by any instance, by the database clock; 0 before the first."),
	}
	for _, v := range []*prometheus.GaugeVec{g.lag, g.lagSeconds, g.oldest, g.stuck, g.failed, g.lastSettle} {
		if err := reg.Register(v); err != nil {
			return nil, err
		}
		for _, p := range projections {
			v.WithLabelValues(p)
		}
	}
	return g, nil
}

func (g *gauges) set(projection string, s outbox.Stats) {
	g.lag.WithLabelValues(projection).Set(float64(s.Lag()))
	g.lagSeconds.WithLabelValues(projection).Set(s.Oldest.Seconds())
	g.oldest.WithLabelValues(projection).Set(s.Oldest.Seconds())
	g.stuck.WithLabelValues(projection).Set(float64(s.Stuck))
	g.failed.WithLabelValues(projection).Set(float64(s.Failed))
	if s.LastSettle != nil {
		g.lastSettle.WithLabelValues(projection).Set(float64(s.LastSettle.UnixMicro()) / 1e6)
	}
}

// measure reads the tables until ctx ends.
func (d *daemon) measure(ctx context.Context) error {
	faulty := false
	for {
		start := time.Now()
		var err error
		for _, l := range d.lanes {
			s, serr := l.store.Stats(ctx, d.cfg.Outbox.MaxProcessing)
			if serr != nil {
				err = serr
				continue
			}
			d.gauges.set(l.proj.Name(), s)
		}
		if err != nil && ctx.Err() == nil && !faulty {
			d.log.Warn("tables not measured", zap.String("event", "gauges.fault"), zap.Error(err))
		}
		faulty = err != nil
		pause := measureEvery
		if d.elector.Status().Role != leader.RoleLeader {
			pause = measureEveryStandby
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(pause, measureShare*time.Since(start))):
		}
	}
}
