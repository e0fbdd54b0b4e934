package elastic

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// itemResult is the result label of items: a closed set.
type itemResult uint8

const (
	itemSuccess itemResult = iota
	itemFailed
	itemResults
)

func (r itemResult) String() string { return [itemResults]string{"success", "failed"}[r] }

func resultOf(o *outbox.Outcome) itemResult {
	if o.Verdict == outbox.Done {
		return itemSuccess
	}
	return itemFailed
}

const opKinds = 2

// opNames are the values of the op label, in the order of opOf.
func opNames() [opKinds]outbox.Op { return [opKinds]outbox.Op{outbox.Upsert, outbox.Delete} }

func opOf(a *Action) int {
	if a.Delete {
		return 1
	}
	return 0
}

type metrics struct {
	success, partial, failed prometheus.Counter
	items                    [opKinds][itemResults]prometheus.Counter
	failures                 [opKinds][classes]prometheus.Counter
	duration                 prometheus.Observer
}

func newMetrics(reg prometheus.Registerer, projection string) (*metrics, error) {
	labels := prometheus.Labels{"projection": projection}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "outbox_es_bulk_requests_total",
		Help:        "Bulk requests sent: success (every item done), partial, failed (no item done, or no answer).",
		ConstLabels: labels,
	}, []string{"result"})
	items := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "outbox_es_bulk_items_total",
		Help:        "Items of bulk writes: success (in effect, also where there was nothing left to do), failed (for good, or to be tried again).",
		ConstLabels: labels,
	}, []string{"op", "result"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "outbox_es_bulk_item_failures_total",
		Help:        "Items of bulk writes that Elasticsearch did not apply, by class of failure; conflict is harmless.",
		ConstLabels: labels,
	}, []string{"op", "failure_class"})
	duration := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "outbox_es_bulk_request_duration_seconds",
		Help:        "Time from sending a bulk request to the end of its answer or its failure.",
		ConstLabels: labels,
		Buckets:     []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},

		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	})
	var errs []error
	for _, c := range []prometheus.Collector{requests, items, failures, duration} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	m := &metrics{
		success:  requests.WithLabelValues("success"),
		partial:  requests.WithLabelValues("partial"),
		failed:   requests.WithLabelValues("failed"),
		duration: duration,
	}
	for i, op := range opNames() {
		for r := range itemResults {
			m.items[i][r] = items.WithLabelValues(string(op), r.String())
		}
		for c := classNone + 1; c < classes; c++ {
			m.failures[i][c] = failures.WithLabelValues(string(op), c.String())
		}
	}
	return m, nil
}

func (m *metrics) observe(ctx context.Context, start time.Time) {
	spanlog.Observe(ctx, m.duration, time.Since(start).Seconds())
}

// request counts one answered request.
func (m *metrics) request(done, total int) {
	switch done {
	case total:
		m.success.Inc()
	case 0:
		m.failed.Inc()
	default:
		m.partial.Inc()
	}
}

func (m *metrics) failure(a *Action, c class) {
	if c != classNone {
		m.failures[opOf(a)][c].Inc()
	}
}
