package traffic

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/outbox"
)

// produced serves outbox_produced_total.
type produced struct {
	address string
	counter *outbox.Produced
	server  *http.Server
	ended   chan struct{}
}

// kindOf is the kind of an event: the load has no event types of an application.
func kindOf(entityType string, op outbox.Op) outbox.Kind {
	return outbox.Kind{EventType: entityType + "." + string(op), EntityType: entityType}
}

// produce listens on address until close.
func produce(address, environment string) (*produced, error) {
	reg := prometheus.NewRegistry()
	entity := NewKey().Type
	counter, err := outbox.NewProduced(telemetry.Contract(reg, environment), kindOf(entity, outbox.Upsert), kindOf(entity, outbox.Delete))
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("load: metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	p := &produced{address: listener.Addr().String(), counter: counter, server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = p.server.Serve(listener) // close ends it
	}()
	return p, nil
}

// committed counts the events of a transaction.
func (p *produced) committed(events []outbox.NewEvent) {
	for _, e := range events {
		p.counter.Add(kindOf(e.Key.Type, e.Op), 1)
	}
}

func (p *produced) close() {
	_ = p.server.Close() // nobody waits for an answer
	<-p.ended
}
