package daemon

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/outbox"
)

// rebuildMetrics show the rebuilds that this leader carries out.
type rebuildMetrics struct {
	rows            *prometheus.CounterVec
	active, blocked *prometheus.GaugeVec
}

func newRebuildMetrics(reg prometheus.Registerer, names []string) (*rebuildMetrics, error) {
	labels := []string{"projection"}
	m := &rebuildMetrics{
		rows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "projection_rebuild_rows_total", Help: "Rows that this leader has filled into new indexes, and loaded.",
		}, labels),
		active: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "projection_rebuild_active", Help: "1 while this leader rebuilds or loads the projection; a pause counts as well.",
		}, labels),
		blocked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "projection_rebuild_blocked", Help: "1 while something stands in the way of the rebuild or load; `weft rebuild status` says what.",
		}, labels),
	}
	for _, c := range []prometheus.Collector{m.rows, m.active, m.blocked} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("rebuild metrics: %w", err)
		}
	}
	for _, name := range names {
		m.rows.WithLabelValues(name)
		m.forget(name)
	}
	return m, nil
}

func (m *rebuildMetrics) filled(name string, rows int) {
	m.rows.WithLabelValues(name).Add(float64(rows))
}

// show brings the gauges up to a rebuild and what its last step met.
func (m *rebuildMetrics) show(name string, row outbox.Rebuild, err error) {
	m.active.WithLabelValues(name).Set(oneIf(!row.Phase.Ended()))
	m.blocked.WithLabelValues(name).Set(oneIf(err != nil && !errors.Is(err, errAsked)))
}

// forget sets the gauges to those of no rebuild.
func (m *rebuildMetrics) forget(name string) { m.show(name, outbox.Rebuild{}, nil) }

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
