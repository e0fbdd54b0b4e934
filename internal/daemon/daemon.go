package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/desk"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/systemd"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
	"github.com/samuelhu324-dev/weft/reclaim"
)

// projector is one projection with its store, pipeline and reclaimer.
type projector struct {
	proj      projections.Projection
	store     *outbox.Store
	pipeline  *consumer.Pipeline
	reclaimer *reclaim.Reclaimer
	attempted chan struct{} // closed when the destination has been made, or could not be
	prepared  chan struct{} // closed when it has been made
	takeover  *systemd.Pulse
	trouble   *atomic.Pointer[error] // what the takeover waits for the end of; nil where there is nothing
}

// Host is what the process around an instance hands to it.
type Host struct {
	Log        *zap.Logger
	Registerer prometheus.Registerer // of the metrics of the contract
	Tracing    *telemetry.Tracing    // nil when traces are off
	Health     *admin.Health
	Registry   projections.Registry
	Version    string
}

// daemon is one instance. Its fields do not change after build.
type daemon struct {
	cfg config.Config
	Host
	own     *prometheus.Registry // its own metrics, which its page reads
	log     *zap.Logger
	started time.Time // monotonic
	manager *systemd.Manager
	start   systemd.Pulse
	// ends is told of a fault, or nil where there is none any more, and reports whether one that only a person can fix
	// ends the instance. Of several shards the process decides.
	ends func(error) bool

	server     *admin.Server // nil inside another program
	shared     bool          // the server is run for several shards
	desk       *desk.Server  // nil without a page
	deskPools  []*pgxpool.Pool
	deskSocket *sockets // of deskPools
	pool       *pgxpool.Pool
	sockets    *sockets // of pool
	login      *postgres.Login
	target     elastic.Config
	elastic    *elastic.Transport
	elector    *leader.Elector
	projectors []projector
	gauges     *gauges
	unreached  atomic.Pointer[unreached] // nil while the pool gets connections

	upkeepMetrics *upkeepMetrics
	scrubbed      *scrubMetrics
	rebuilt       *rebuildMetrics

	reload      Reload
	reloaded    *reloaded
	changeLevel func(to zapcore.Level, by string) // of log
}

// Run runs the instance until ctx ends, which hands leadership over, or until a fault that
// only a person can fix. It returns nil after a graceful end.
func Run(ctx context.Context, cfg config.Config, tel *telemetry.Telemetry, version string, reload Reload) error {
	if cfg.Shards.Count > 1 {
		return runShards(ctx, cfg, tel, version, reload)
	}
	tracing, err := telemetry.StartTracing(tel.Log, tel.Contract, tracingOptions(cfg, version))
	if err != nil {
		return err
	}
	defer tracing.Shutdown(flushGrace)
	d := newDaemon(cfg, Host{
		Log: tel.Log, Registerer: tel.Contract, Tracing: tracing, Health: admin.NewHealth(cfg.Group, cfg.Instance),
		Registry: cfg.Registry(), Version: version,
	})
	d.manager, d.changeLevel, d.reload = systemd.New(tel.Log), tel.ChangeLevel, reload
	defer d.close()
	if err := d.build(ctx); err != nil {
		return err
	}
	if d.reloaded, err = newReloaded(d.Registerer); err != nil {
		return err
	}
	if d.server, err = listen(ctx, cfg, d.Health, tel); err != nil {
		return err
	}
	if err := d.openDesk(ctx, tel, nil); err != nil {
		d.server.Close()
		return err
	}
	return d.run(ctx)
}

func listen(ctx context.Context, cfg config.Config, health *admin.Health, tel *telemetry.Telemetry) (*admin.Server, error) {
	return admin.Listen(ctx, admin.Options{
		Host: cfg.HTTP.Host, MetricsPort: cfg.HTTP.MetricsPort, MetricsPortFixed: cfg.HTTP.MetricsPortFixed,
		HealthPort: cfg.HTTP.Port, Health: health, Gatherer: tel.Registry, Log: tel.Log,
	})
}

// Embed runs an instance inside another program, as Run does, without what belongs to a
// process: it listens on no port, tells no service manager, and never reloads.
func Embed(ctx context.Context, cfg config.Config, host Host) error {
	if cfg.Shards.Count > 1 {
		return errors.New("shards.count: several shards are for the program weft; run an instance for each shard, on its schema and in its group")
	}
	d := newDaemon(cfg, host)
	defer d.close()
	if err := d.build(ctx); err != nil {
		return err
	}
	return d.run(ctx)
}

// close closes the connections of the parts.
func (d *daemon) close() {
	for _, l := range d.projectors {
		l.proj.Close()
	}
	for _, p := range d.deskPools {
		p.Close()
	}
	if d.pool == nil {
		return
	}
	told := make(chan struct{})
	hurry := time.AfterFunc(closeGrace, func() {
		defer close(told)
		d.log.Warn("pool did not close in time; closing its connections by force", zap.String("event", "pool.cut"), zap.Int("connections", d.sockets.cut()))
	})
	d.pool.Close()
	if !hurry.Stop() {
		<-told
	}
}

// run starts the parts, and ends them in the order that the package comment gives.
func (d *daemon) run(ctx context.Context) error {
	// Health, metrics and presence outlive ctx: the hand-over needs them.
	around, endAround := context.WithCancel(context.WithoutCancel(ctx))
	defer endAround()
	inner, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var g errgroup.Group
	surround := func(what string, f func(context.Context) error) {
		g.Go(func() error {
			err := f(around)
			if err != nil {
				fail(fmt.Errorf("%s: %w", what, err))
			}
			return nil
		})
	}
	if d.server != nil && !d.shared {
		surround("HTTP server", d.server.Run)
	}
	if d.desk != nil { // it ends with the request to stop, before the drain
		surround("desk", func(context.Context) error { return d.runDesk(inner) })
	}
	surround("reload", d.reloads)
	surround("health", func(ctx context.Context) error { return d.watch(ctx, inner.Done()) })

	err := d.ready(inner)
	if err == nil && inner.Err() == nil {
		surround("presence", d.announce)
		surround("warm sessions", d.keepWarm)
		surround("gauges", d.measure)
		if d.shared {
			surround("home", d.watchHome)
		}
		for _, l := range d.projectors {
			surround("destination", func(ctx context.Context) error { return d.attend(ctx, l) })
			if slices.ContainsFunc(d.cfg.Declared, func(p projections.Declaration) bool { return p.Name == l.proj.Name() }) {
				surround("check", func(ctx context.Context) error { return d.inspect(ctx, l) })
			}
		}
		err = d.elect(inner)
	}
	if err == nil {
		if cause := context.Cause(inner); cause != nil && ctx.Err() == nil {
			err = cause
		}
	}
	fail(err)
	endAround()
	return errors.Join(err, g.Wait())
}
