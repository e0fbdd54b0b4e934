package leader

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	isLeader      prometheus.Gauge
	draining      prometheus.Gauge
	epoch         prometheus.Gauge
	transitions   *prometheus.CounterVec
	stepDowns     *prometheus.CounterVec
	heartbeat     prometheus.Histogram
	sessionsEnded *prometheus.CounterVec
}

// newMetrics registers every series at 0. A nil reg leaves them unregistered.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		isLeader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weft_leader_is_leader",
			Help: "1 while this instance leads, else 0.",
		}),
		draining: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weft_leader_draining",
			Help: "1 while this instance still leads but finishes its work to hand over, else 0.",
		}),
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weft_leader_epoch",
			Help: "Newest epoch that this instance has led or seen; 0 before it has seen one.",
		}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_leader_transitions_total",
			Help: "Changes of this instance's role, by the new role.",
		}, []string{"to"}),
		stepDowns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_leader_step_downs_total",
			Help: "Terms of this instance that ended, by reason.",
		}, []string{"reason"}),
		heartbeat: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weft_leader_heartbeat_duration_seconds",
			Help:    "Duration of heartbeats of the leader, failed ones included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 3},

			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}),
		sessionsEnded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_leader_sessions_ended_total",
			Help: "Database sessions found in the way of a new term, by what became of them.",
		}, []string{"outcome"}),
	}
	for _, r := range []Role{RoleLeader, RoleDraining, RoleStandby, RoleDisconnected} {
		m.transitions.WithLabelValues(string(r))
	}
	for _, reason := range endReasons() {
		m.stepDowns.WithLabelValues(reason)
	}
	for _, outcome := range []string{outcomeEnded, outcomeRefused} {
		m.sessionsEnded.WithLabelValues(outcome)
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.isLeader, m.draining, m.epoch, m.transitions, m.stepDowns, m.heartbeat, m.sessionsEnded} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register leader metrics: %w", err)
	}
	return m, nil
}
