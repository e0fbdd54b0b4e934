package weft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/projections"
)

// Options are what a program hands to an instance.
type Options struct {
	// Settings come from [DefaultSettings] or [LoadSettings]. Database.URL is required. With
	// no Projections, all run that are declared or registered. Those of HTTP, Log and Tracing
	// are for the program weft and have no effect here.
	Settings Settings
	// Logger gets what `weft run` logs, with the fields group and instance. Nil logs nothing.
	Logger *zap.Logger
	// TracerProvider makes the spans and decides which are kept; its owner shuts it down. Nil
	// makes none.
	TracerProvider trace.TracerProvider
	// Registerer gets the metrics while Run runs, with the labels env and component. Two
	// instances of one process need two registries, or one wrapped with different labels. Nil
	// keeps no metrics.
	Registerer prometheus.Registerer
}

// Weft is one instance. It is safe for concurrent use.
type Weft struct {
	cfg        config.Config
	log        *zap.Logger
	tracing    *telemetry.Tracing
	registerer prometheus.Registerer
	health     *admin.Health
	registry   projections.Registry
	running    atomic.Bool
}

// New returns an instance. Run says what is wrong with o.
func New(o Options) *Weft {
	cfg := o.Settings
	log := cmp.Or(o.Logger, zap.NewNop()).With(
		zap.String("instance", cfg.Instance), zap.String("group", cfg.Group), zap.String("obs_schema", telemetry.Schema))
	w := &Weft{
		cfg: cfg, log: log, tracing: telemetry.TracingWith(o.TracerProvider), registerer: o.Registerer,
		health: admin.NewHealth(cfg.Group, cfg.Instance), registry: cfg.Registry(),
	}
	if w.registerer == nil {
		w.registerer = prometheus.NewRegistry()
	}
	return w
}

// Register adds a projection that is written in Go, before Run. It returns an error when
// there is one of that name already: registered, declared or built in.
func (w *Weft) Register(name string, build projections.Constructor) error {
	if w.running.Load() {
		return fmt.Errorf("register projection %s: the instance runs already; register before Run", name)
	}
	return w.registry.Register(name, build)
}

// Health serves the state of the instance under /health/live and /health/ready.
func (w *Weft) Health() http.Handler { return admin.HealthHandler(w.health) }

// Run runs the instance until ctx ends. It returns all that is wrong with the settings before
// it sends anything to a server.
func (w *Weft) Run(ctx context.Context) error {
	if !w.running.CompareAndSwap(false, true) {
		return errors.New("weft: the instance runs already; make another one with New")
	}
	defer w.running.Store(false)
	cfg := w.cfg
	cfg.Registered = w.registry.Own()
	if len(cfg.Projections) == 0 {
		for _, d := range cfg.Declared {
			cfg.Projections = append(cfg.Projections, d.Name)
		}
		cfg.Projections = append(cfg.Projections, cfg.Registered...)
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("weft settings: %w", err)
	}
	metrics := &registration{Registerer: w.registerer}
	defer metrics.end()
	err := daemon.Embed(ctx, cfg, daemon.Host{
		Log: w.log, Registerer: telemetry.Contract(metrics, cfg.Env), Tracing: w.tracing,
		Health: w.health, Registry: w.registry, Version: version(),
	})
	if errors.As(err, &prometheus.AlreadyRegisteredError{}) {
		return fmt.Errorf("weft: another instance uses the same Registerer; wrap it with a label of this one: %w", err)
	}
	if err = daemon.Cause(err); err != nil {
		if kind, text := postgres.Diagnose(postgres.In(cfg.Database.URL.Reveal(), err)); kind != postgres.Unknown {
			return &diagnosed{text, err}
		}
	}
	return err
}

// diagnosed is an error of Postgres with its remedy.
type diagnosed struct {
	text  string
	cause error
}

func (e *diagnosed) Error() string { return e.text }
func (e *diagnosed) Unwrap() error { return e.cause }

// version returns the version of this module in the running program.
func version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(b.Deps, &b.Main) {
		if m.Path == modulePath {
			return cmp.Or(m.Version, "unknown")
		}
	}
	return "unknown"
}

const modulePath = "github.com/samuelhu324-dev/weft"
