package projections

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Constructor makes a projection. It sends nothing to a server.
type Constructor func(Deps) (Projection, error)

// constructors lists the projections.
func (r Registry) constructors() map[string]Constructor {
	all := map[string]Constructor{
		ChronicleEventsToEntries: func(d Deps) (Projection, error) {
			return NewChronicle(d.Pool, d.ChronicleVersion, d.Log)
		},
	}
	for _, name := range r.declaredNames() {
		all[name] = func(d Deps) (Projection, error) {
			declared, _ := r.declared(name, d.Elastic)
			if err := declared.Validate(); err != nil {
				return nil, err
			}
			if declared.Destination != "" {
				return declared.build(d.Pool, nil, d.Log, d.Registerer)
			}
			sink, err := r.Sink(name, d.Elastic, d.Log, d.Registerer)
			if err != nil {
				return nil, err
			}
			return declared.build(d.Pool, sink, d.Log, d.Registerer)
		}
	}
	maps.Copy(all, r.own)
	return all
}

// declared returns a projection that is declared: the one of search_index, into the index of
// base, or one of the configuration.
func (r Registry) declared(name string, base elastic.Config) (Declaration, bool) {
	if name == SearchIndexToElastic {
		return searchIndex(base), true
	}
	i := slices.IndexFunc(r.Declared, func(d Declaration) bool { return d.Name == name })
	if i < 0 {
		return Declaration{}, false
	}
	return r.Declared[i], true
}

func (r Registry) declaredNames() []string {
	names := []string{SearchIndexToElastic}
	for _, d := range r.Declared {
		names = append(names, d.Name)
	}
	return names
}

// Registry builds projections by name: those of this package, those of the configuration, and
// those that an embedding program has registered. Its zero value is ready for use.
type Registry struct {
	Declared []Declaration

	own map[string]Constructor
}

// Register adds a projection that is written in Go. Its name is the value of the projection
// label, and what Name of the projection returns.
func (r *Registry) Register(name string, build Constructor) error {
	switch {
	case !declaredName.MatchString(name):
		return fmt.Errorf("register projection %q: want a lower-case letter and then at most 62 of a-z, 0-9 and _", name)
	case build == nil:
		return fmt.Errorf("register projection %s: its constructor is nil", name)
	case r.constructors()[name] != nil:
		return fmt.Errorf("register projection %s: there is one of that name already; take another name", name)
	}
	if r.own == nil {
		r.own = map[string]Constructor{}
	}
	r.own[name] = build
	return nil
}

// Own lists the projections that were registered, sorted.
func (r *Registry) Own() []string { return slices.Sorted(maps.Keys(r.own)) }

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
	if d, ok := r.declared(name, elastic.Config{}); ok {
		return d.Table
	}
	return map[string]string{ChronicleEventsToEntries: chronicleTable}[name]
}

// Indexed reports whether a projection writes to Elasticsearch by a sink.
func (r Registry) Indexed(name string) bool {
	d, ok := r.declared(name, elastic.Config{})
	return ok && d.Destination == ""
}

// Sink returns the sink of a projection that writes to Elasticsearch. Its metrics are
// registered with reg.
func (r Registry) Sink(name string, base elastic.Config, log *zap.Logger, reg prometheus.Registerer) (*elastic.Sink, error) {
	if d, ok := r.declared(name, base); ok {
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
		of   = map[string]string{} // by outbox table
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
		other := of[p.Table()]
		switch of[p.Table()] = name; {
		case p.Name() != name:
			errs = append(errs, fmt.Errorf("projection %s: its method Name returns %q; want the name that it is registered under", name, p.Name()))
		case other != "":
			errs = append(errs, fmt.Errorf("projection %s: reads outbox table %s, as %s does: an event is worked off once; make an outbox table for each projection", name, p.Table(), other))
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, p := range out {
			p.Close()
		}
		return nil, err
	}
	return out, nil
}

// Preparer is a projection that can create its destination, such as an index. Call Prepare
// before the first Project of a process; it does nothing when the destination exists.
type Preparer interface {
	Prepare(ctx context.Context) error
}
