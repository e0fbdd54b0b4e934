package weft

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// registration remembers the metrics of one Run, to unregister them when it ends.
type registration struct {
	prometheus.Registerer

	mu  sync.Mutex
	all []prometheus.Collector
}

// Register implements [prometheus.Registerer].
func (r *registration) Register(c prometheus.Collector) error {
	err := r.Registerer.Register(c)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, c)
	}
	return err
}

// MustRegister implements [prometheus.Registerer].
func (r *registration) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

func (r *registration) end() {
	for _, c := range r.all {
		r.Unregister(c)
	}
}
