package projections

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Deps are the dependencies of projections. Each projection uses those that it needs.
type Deps struct {
	Pool             BatchQuerier
	Elastic          elastic.Config
	ChronicleVersion int // 1 or more
	Log              *zap.Logger
	Registerer       prometheus.Registerer
}

// constructors lists the projections.
func (r Registry) constructors() map[string]func(Deps) (Projection, error) {
	all := map[string]func(Deps) (Projection, error){
		SearchIndexToElastic: func(d Deps) (Projection, error) {
			sink, err := r.Sink(SearchIndexToElastic, d.Elastic, d.Log, d.Registerer)
			if err != nil {
				return nil, err
			}
			return NewSearch(d.Pool, sink, d.Log, d.Registerer)
		},
		ChronicleEventsToEntries: func(d Deps) (Projection, error) {
			return NewChronicle(d.Pool, d.ChronicleVersion, d.Log)
		},
	}
	for _, declared := range r.Declared {
		all[declared.Name] = func(d Deps) (Projection, error) {
			sink, err := r.Sink(declared.Name, d.Elastic, d.Log, d.Registerer)
			if err != nil {
				return nil, err
			}
			return NewDeclared(declared, d.Pool, sink, d.Log, d.Registerer)
		}
	}
	return all
}

// Registry builds projections by name: those of this package, and declared ones. Its zero
// value is ready for use.
type Registry struct{ Declared []Declaration }

// Names lists the projections that can be built, sorted.
func (r Registry) Names() []string {
	var names []string
	for name := range r.constructors() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Table returns the outbox table of a projection, or "" when there is none of that
// name.
func (r Registry) Table(name string) string {
	if d, ok := r.declared(name); ok {
		return d.Table
	}
	return map[string]string{SearchIndexToElastic: searchTable, ChronicleEventsToEntries: chronicleTable}[name]
}

// Sink returns the sink of a projection that writes to Elasticsearch. Its metrics are
// registered with reg.
func (r Registry) Sink(name string, base elastic.Config, log *zap.Logger, reg prometheus.Registerer) (*elastic.Sink, error) {
	if d, ok := r.declared(name); ok {
		base = d.target(base)
	}
	return elastic.New(base, log, reg, name)
}

// Build makes the projections of names, each at most once, in that order. Nothing is
// sent to a server. An unknown name is an error that lists the known ones.
func (r Registry) Build(names []string, d Deps) ([]Projection, error) {
	var (
		out  []Projection
		errs []error
		seen = map[string]bool{}
	)
	for _, name := range names {
		build, ok := r.constructors()[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("unknown projection %q: want one of %s", name, strings.Join(r.Names(), ", ")))
			continue
		case seen[name]:
			errs = append(errs, fmt.Errorf("projection %q is named twice", name))
			continue
		}
		seen[name] = true
		p, err := build(d)
		if err != nil {
			errs = append(errs, fmt.Errorf("projection %s: %w", name, err))
			continue
		}
		out = append(out, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// Preparer is a projection that can create its destination, such as an index. Call Prepare
// before the first Project of a process; it does nothing when the destination exists.
type Preparer interface {
	Prepare(ctx context.Context) error
}
