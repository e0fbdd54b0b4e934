package observe

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Metrics are the counters of all pipelines of a process. Every series exists at
// zero from the start.
type Metrics struct {
	processed, failed, retried, terminal, noop *prometheus.CounterVec
	mismatch, fenced, batches, kept, looks     *prometheus.CounterVec
	inflight, inflightAlias, blocked, apart    *prometheus.GaugeVec
	lastSuccess, phase                         *prometheus.GaugeVec
	stages, latency                            *prometheus.HistogramVec
}

// The stages of a batch whose time is taken.
const (
	stageClaim   = "claim"
	stageProject = "project"
	stageSettle  = "settle"
)

// What a list has shown.
const (
	foundRows = "rows"
	foundNone = "none"
)

// NewMetrics registers the metrics for the named projections.
func NewMetrics(reg prometheus.Registerer, projections []string) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"projection"}, labels...))
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, append([]string{"projection"}, labels...))
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}, append([]string{"projection"}, labels...))
	}
	m := &Metrics{
		processed: counter("outbox_processed_total", "Events that ended in done.", "op"),
		failed:    counter("outbox_failed_total", "Events that ended in failed.", "op", "reason"),
		terminal:  counter("outbox_terminal_failed_total", "Events that ended in the dead letter.", "op", "reason"),
		retried:   counter("outbox_retry_scheduled_total", "Attempts that are to be repeated.", "op", "reason"),
		noop:      counter("outbox_idempotent_noop_total", "Events that are done and changed nothing.", "op", "reason"),
		batches:   counter("weft_batches_total", "Batches that were settled, by result: ok, partial, retry, failed.", "result"),
		mismatch:  counter("outbox_owner_mismatch_skips_total", "Events that could not be settled: somebody has changed them, holds their lock, or the database refuses."),
		fenced:    counter("weft_fenced_writes_total", "Terms that ended because a lease or settle was refused under their epoch."),
		kept:      counter("weft_finished_kept_total", "Batches whose finished events stayed in the table, because they could not be archived or deleted."),
		inflight:  gauge("outbox_inflight_events", "Events that are being projected by this instance."),
		// The name of the first sketch of the worker.
		inflightAlias: gauge("outbox_inflight", "The same as outbox_inflight_events."),
		looks:         counter("weft_looks_total", "Questions to the outbox for open events, by what they found: rows, or none.", "found"),
		blocked:       gauge("weft_blocked_entities", "Entities that the latest lists showed and whose events wait behind an earlier one."),
		apart:         gauge("weft_isolated_entities", "Entities that are tried in requests of their own, because whole requests have failed with them."),
		lastSuccess:   gauge("outbox_last_success_timestamp_seconds", "When an event was last done, by the database clock; 0 before the first."),
		phase:         gauge("weft_pipeline_phase", "1 for the phase that the pipeline of this instance is in, 0 for the others.", "phase"),
		stages: histogram("weft_stage_duration_seconds",
			"Time of one lease that took events, of one call of the projection, of one settle of a batch.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "stage"),
		latency: histogram("weft_event_latency_seconds",
			"Time from the creation of an event to its settle as done, both by the database clock.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}),
	}
	for _, c := range []prometheus.Collector{
		m.processed, m.failed, m.terminal, m.retried, m.noop, m.batches, m.mismatch, m.fenced, m.kept, m.looks,
		m.inflight, m.inflightAlias, m.blocked, m.apart, m.lastSuccess, m.phase, m.stages, m.latency,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	for _, p := range projections {
		m.mismatch.WithLabelValues(p)
		m.fenced.WithLabelValues(p)
		m.kept.WithLabelValues(p)
		m.flying(p, 0)
		for _, found := range []string{foundRows, foundNone} {
			m.looks.WithLabelValues(p, found)
		}
		m.blocked.WithLabelValues(p)
		m.apart.WithLabelValues(p)
		m.lastSuccess.WithLabelValues(p)
		m.latency.WithLabelValues(p)
		for _, phase := range schedule.Phases() {
			m.phase.WithLabelValues(p, string(phase))
		}
		for _, s := range []string{stageClaim, stageProject, stageSettle} {
			m.stages.WithLabelValues(p, s)
		}
		for _, r := range []string{resultOK, resultPartial, resultRetry, resultFailed} {
			m.batches.WithLabelValues(p, r)
		}
		for _, op := range []string{string(outbox.Upsert), string(outbox.Delete), otherOp} {
			m.processed.WithLabelValues(p, op)
			for _, r := range outbox.Reasons() {
				m.failed.WithLabelValues(p, op, string(r))
				m.terminal.WithLabelValues(p, op, string(r))
				m.retried.WithLabelValues(p, op, string(r))
			}
			for _, n := range outbox.Noops() {
				m.noop.WithLabelValues(p, op, string(n))
			}
		}
	}
	return m, nil
}

// otherOp stands for every op that is not the contract's: a label's values are a
// closed set whatever a producer writes.
const otherOp = "other"

func opLabel(op outbox.Op) string {
	if op == outbox.Upsert || op == outbox.Delete {
		return string(op)
	}
	return otherOp
}

// flying adds n events to those in flight.
func (m *Metrics) flying(projection string, n int) {
	m.inflight.WithLabelValues(projection).Add(float64(n))
	m.inflightAlias.WithLabelValues(projection).Add(float64(n))
}

// show shows the phase of a projection's pipeline.
func (m *Metrics) show(projection string, now schedule.Phase) {
	m.phase.WithLabelValues(projection, string(now)).Set(1) // first: at no time is there none
	for _, p := range schedule.Phases() {
		if p != now {
			m.phase.WithLabelValues(projection, string(p)).Set(0)
		}
	}
}

// stage records how long a stage took that began at start.
func (m *Metrics) stage(ctx context.Context, projection, stage string, start time.Time) {
	spanlog.Observe(ctx, m.stages.WithLabelValues(projection, stage), time.Since(start).Seconds())
}

// batch counts a settled batch: what the database has changed.
func (m *Metrics) batch(ctx context.Context, projection string, s *summary) {
	m.batches.WithLabelValues(projection, s.result()).Inc()
	m.mismatch.WithLabelValues(projection).Add(float64(s.mismatch))
	if s.count[outbox.Done] > 0 {
		m.lastSuccess.WithLabelValues(projection).Set(float64(s.At.UnixMicro()) / 1e6)
	}
	// Nearly all events of a batch share a label: count first, look series up once.
	type series struct {
		vec    *prometheus.CounterVec
		op     outbox.Op
		reason string
	}
	n := map[series]int{}
	latency, slowest := m.latency.WithLabelValues(projection), time.Duration(-1)
	done := func(e *outbox.Event) {
		n[series{vec: m.processed, op: e.Op}]++
		if e.CreatedAt.Unix() <= 0 {
			return // no time that a clock has shown
		}
		took := max(0, s.At.Sub(e.CreatedAt))
		if slowest >= 0 {
			latency.Observe(min(took, slowest).Seconds())
		}
		slowest = max(took, slowest)
	}
	for i := range s.settlements {
		st := &s.settlements[i]
		op, reason := st.Event.Op, reasonOf(st)
		switch st.Verdict {
		case outbox.Done, outbox.Superseded:
			done(st.Event)
			if reason != "" {
				n[series{m.noop, op, reason}]++
			}
		case outbox.Retry:
			n[series{m.retried, op, reason}]++
		case outbox.Failed:
			n[series{m.failed, op, reason}]++
			n[series{m.terminal, op, reason}]++
		}
	}
	if slowest >= 0 { // it comes last, and has the exemplar
		spanlog.Observe(ctx, latency, slowest.Seconds())
	}
	for k, count := range n {
		labels := []string{projection, opLabel(k.op)}
		if k.reason != "" {
			labels = append(labels, k.reason)
		}
		k.vec.WithLabelValues(labels...).Add(float64(count))
	}
}
