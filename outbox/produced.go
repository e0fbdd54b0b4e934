package outbox

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the labels of an event in outbox_produced_total, such as block.created of a
// block.
type Kind struct{ EventType, EntityType string }

// otherKind counts events of kinds that NewProduced was not given, so that the labels stay a
// closed set.
const otherKind = "other"

// Produced counts what an application enqueues, as outbox_produced_total. It is safe
// for concurrent use.
type Produced struct {
	other prometheus.Counter
	of    map[Kind]prometheus.Counter
}

// NewProduced registers the counter with a series at zero for each of kinds, and one for
// all others. reg adds the labels env and component.
func NewProduced(reg prometheus.Registerer, kinds ...Kind) (*Produced, error) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outbox_produced_total", Help: "Events that were enqueued, in transactions that have committed.",
	}, []string{"event_type", "entity_type"})
	if err := reg.Register(vec); err != nil {
		return nil, fmt.Errorf("produced events: %w", err)
	}
	p := &Produced{other: vec.WithLabelValues(otherKind, otherKind), of: map[Kind]prometheus.Counter{}}
	for _, k := range kinds {
		p.of[k] = vec.WithLabelValues(k.EventType, k.EntityType)
	}
	return p, nil
}

// Add counts n events of a kind. Call it when their transaction has committed.
func (p *Produced) Add(k Kind, n int) {
	c, ok := p.of[k]
	if !ok {
		c = p.other
	}
	c.Add(float64(n))
}
