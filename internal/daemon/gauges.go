package daemon

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/outbox"
)

// gauges are the metrics over the tables and the server they are on.
type gauges struct {
	lag, lagSeconds, oldest, unquarantined, stuck, failed, discarded, waiting, paused *prometheus.GaugeVec
	throttled, throttledFor, quarantined, quarantinedEvents, quarantinedFor           *prometheus.GaugeVec
	atLeast, dead, lastSettle                                                         *prometheus.GaugeVec
	rebuilt, rebuildTook, rebuildGood                                                 *prometheus.GaugeVec
	readings                                                                          *prometheus.CounterVec
	skew, snapshot, snapshotXIDs, away                                                prometheus.Gauge
	clocks                                                                            map[string]*clocks // by projection
}

// clocks hold the moments whose ages grow between two readings.
type clocks struct{ settled, counted moment }

// moment is a point of the monotonic clock.
type moment struct{ at atomic.Pointer[time.Time] }

func (m *moment) set(ago time.Duration) {
	t := time.Now().Add(-ago)
	m.at.Store(&t)
}

func (m *moment) age() float64 { return time.Since(*m.at.Load()).Seconds() }

const (
	readingOK     = "ok"
	readingFailed = "failed"
)

func newGauges(reg prometheus.Registerer, projections []string) (*gauges, error) {
	vec := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"projection"})
	}
	one := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	g := &gauges{
		lag: vec("outbox_lag_events", fmt.Sprintf("Events that are not finished. More than %d of a kind are counted less often, "+
			"so that counting takes at most 1%% of the time: see weft_lag_count_age_seconds and weft_lag_at_least.", glanceLimit)),
		lagSeconds: vec("outbox_lag_seconds", "Age of the oldest event that is not finished, in seconds; the same as outbox_oldest_age_seconds."),
		oldest:     vec("outbox_oldest_age_seconds", "Age of the oldest event that is not finished, in seconds; it goes on growing while the table cannot be read."),
		unquarantined: vec("weft_oldest_unquarantined_age_seconds", "Age of the oldest event that is not finished and whose entity is not in quarantine, in seconds; "+
			"it goes on growing while the table cannot be read. While 10,000 events in quarantine are ready before all others, it is that of the next one."),
		stuck:             vec("outbox_stuck_processing_events", "Events in processing with an expired lease, or for too long."),
		failed:            vec("weft_dead_letters", "Events in failed that were not discarded; counted as outbox_lag_events is."),
		discarded:         vec("weft_discarded_letters", "Events in failed that somebody has discarded; counted as outbox_lag_events is."),
		paused:            vec("weft_projection_paused_seconds", "For how long the projection has been paused by somebody, at the last reading; 0 while it is not."),
		throttled:         vec("weft_projection_throttle_events_per_second", "Events a second that somebody has throttled the projection to, at the last reading; 0 without a throttle."),
		throttledFor:      vec("weft_projection_throttled_seconds", "For how long the projection has been throttled to this rate, at the last reading; 0 while it is not."),
		quarantined:       vec("weft_quarantined_entities", "Entities that somebody has put into quarantine, at the last reading."),
		quarantinedEvents: vec("weft_quarantined_events", "Events that wait because somebody has put their entities into quarantine, at the last reading; at most 10,000 of an entity are counted."),
		quarantinedFor:    vec("weft_quarantine_oldest_seconds", "For how long the entity that has been in quarantine longest has been there, at the last reading; 0 without one."),
		waiting:           vec("weft_waiting_events", "Events that wait for their retry time, or behind one that does; counted as outbox_lag_events is."),
		atLeast:           vec("weft_lag_at_least", "1 while outbox_lag_events is a lower bound, because a long backlog has not been counted yet; else 0."),
		dead:              vec("weft_outbox_dead_tuples", "Row versions of the outbox table that vacuum has not removed yet, by the server's statistics."),
		lastSettle:        vec("weft_last_settle_timestamp_seconds", "When an event was last done by any instance, by the database clock; 0 before the first."),
		rebuilt: vec("projection_rebuild_last_finished_timestamp_seconds",
			"When a rebuild of the projection last ended, by weft rebuild or the application's table projection_status; 0 when there was none."),
		rebuildTook: vec("projection_rebuild_duration_seconds", "How long that rebuild took."),
		rebuildGood: vec("projection_rebuild_last_success", "1 when that rebuild succeeded."),
		readings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_table_readings_total", Help: "Readings of the outbox table for these gauges, by result; they keep their values when one fails.",
		}, []string{"projection", "result"}),
		skew: one("weft_database_clock_skew_seconds", "Clock of the database minus clock of this host, at the last reading."),
		snapshot: one("weft_oldest_snapshot_age_seconds", "Age of the oldest transaction that holds back vacuum in this database; "+
			"without pg_read_all_stats only weft's own sessions and prepared transactions are seen."),
		snapshotXIDs: one("weft_oldest_snapshot_age_transactions", "Transactions begun since the oldest snapshot that holds back vacuum, those of replication slots and standbys included."),
		away:         one("weft_shard_away", "1 while the settings lead to a database where the shard is not at home, at the last reading; else 0."),
		clocks:       map[string]*clocks{},
	}
	var errs []error
	for _, c := range []prometheus.Collector{g.readings, g.skew, g.snapshot, g.snapshotXIDs, g.away} {
		errs = append(errs, reg.Register(c))
	}
	for _, v := range []*prometheus.GaugeVec{
		g.lag, g.lagSeconds, g.oldest, g.unquarantined, g.stuck, g.failed, g.discarded, g.waiting, g.paused, g.throttled, g.throttledFor, g.quarantined, g.quarantinedEvents, g.quarantinedFor, g.atLeast, g.dead, g.lastSettle, g.rebuilt, g.rebuildTook, g.rebuildGood,
	} {
		errs = append(errs, reg.Register(v))
		for _, p := range projections {
			v.WithLabelValues(p)
		}
	}
	for _, p := range projections {
		for _, result := range []string{readingOK, readingFailed} {
			g.readings.WithLabelValues(p, result)
		}
		c := &clocks{}
		g.clocks[p] = c
		since := func(name, help string, m *moment) {
			m.set(0)
			errs = append(errs, reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: name, Help: help, ConstLabels: prometheus.Labels{"projection": p},
			}, m.age)))
		}
		since("weft_last_settle_age_seconds", "Time since an event was last done by any instance, as last read; before the first one, since this process began.", &c.settled)
		since("weft_lag_count_age_seconds", "Age of the count behind outbox_lag_events.", &c.counted)
	}
	return g, errors.Join(errs...)
}

func (g *gauges) server(v postgres.Vitals) {
	if v.Uncertain < time.Second { // else the pool was busy, and the answer is of no use
		g.skew.Set(v.ClockSkew.Seconds())
	}
	g.snapshot.Set(v.OldestSnapshot.Seconds())
	g.snapshotXIDs.Set(float64(v.OldestSnapshotXIDs))
}

func (g *gauges) table(projection string, s outbox.Stats) {
	g.lag.WithLabelValues(projection).Set(float64(s.Lag()))
	g.stuck.WithLabelValues(projection).Set(float64(s.Stuck))
	g.failed.WithLabelValues(projection).Set(float64(s.Failed))
	g.discarded.WithLabelValues(projection).Set(float64(s.Discarded))
	g.waiting.WithLabelValues(projection).Set(float64(s.Retrying))
	g.dead.WithLabelValues(projection).Set(float64(s.DeadTuples))
	g.atLeast.WithLabelValues(projection).Set(0)
	if s.Capped {
		g.atLeast.WithLabelValues(projection).Set(1)
	}
	if s.LastSettle != nil {
		g.lastSettle.WithLabelValues(projection).Set(float64(s.LastSettle.UnixMicro()) / 1e6)
		g.clocks[projection].settled.set(s.Now.Sub(*s.LastSettle))
	}
}

// holds sets what operators hold back; waiting are the events in quarantine. A pause lasts at
// least a second, so that the alerts that ask for a value above 0 see one that has just begun.
func (g *gauges) holds(projection string, h outbox.Holds, waiting int64) {
	var paused, rate, throttled, oldest float64
	if h.Pause != nil {
		paused = max(1, h.Pause.For.Seconds())
	}
	if h.Throttle != nil {
		rate, throttled = h.Throttle.Rate, h.Throttle.For.Seconds()
	}
	if len(h.Quarantines) > 0 {
		oldest = h.Quarantines[0].For.Seconds()
	}
	g.paused.WithLabelValues(projection).Set(paused)
	g.throttled.WithLabelValues(projection).Set(rate)
	g.throttledFor.WithLabelValues(projection).Set(throttled)
	g.quarantined.WithLabelValues(projection).Set(float64(len(h.Quarantines)))
	g.quarantinedEvents.WithLabelValues(projection).Set(float64(waiting))
	g.quarantinedFor.WithLabelValues(projection).Set(oldest)
}

func (g *gauges) rebuild(projection string, r postgres.Rebuild) {
	if r.Finished.IsZero() {
		return
	}
	g.rebuilt.WithLabelValues(projection).Set(float64(r.Finished.UnixMicro()) / 1e6)
	g.rebuildTook.WithLabelValues(projection).Set(r.Duration.Seconds())
	good := 0.0
	if r.Success {
		good = 1
	}
	g.rebuildGood.WithLabelValues(projection).Set(good)
}

// old sets the age of the oldest event, and of the oldest whose entity is not in quarantine.
func (g *gauges) old(projection string, age, unquarantined time.Duration) {
	g.unquarantined.WithLabelValues(projection).Set(unquarantined.Seconds())
	g.lagSeconds.WithLabelValues(projection).Set(age.Seconds())
	g.oldest.WithLabelValues(projection).Set(age.Seconds())
}
