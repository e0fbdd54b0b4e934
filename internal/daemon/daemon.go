package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/consumer/observe"
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

// minReclaims is how many consecutive reclaims mark an event as the likely cause of crashes.
// It is high because a term that is lost while a request hangs also reclaims its events.
const minReclaims = 10

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
	// ends is told of a fault that only a person can fix, or nil where there is none, and reports whether
	// that ends the instance. Of several shards the process decides.
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

func newDaemon(cfg config.Config, host Host) *daemon {
	own := prometheus.NewRegistry()
	host.Registerer = both{host.Registerer, own}
	return &daemon{cfg: cfg, Host: host, own: own, log: host.Log, started: time.Now(), sockets: newSockets(), deskSocket: newSockets(), manager: systemd.None(host.Log),
		ends: func(err error) bool { return err != nil }}
}

// build constructs the parts. It sends nothing to a server.
func (d *daemon) build(ctx context.Context) error {
	cfg := d.cfg
	var err error
	if d.login, err = postgres.NewLogin(cfg.Database.URL.Reveal()); err != nil {
		return err
	}
	pool, err := postgres.NewPool(ctx, cfg.Database.URL.Reveal(), postgres.Options{
		AppName: leader.AppName(cfg.Group, cfg.Instance, "work"), MaxConns: cfg.Database.MaxConns, Statement: cfg.Database.Timeout,
		Params: outbox.SessionParams(), Login: d.login, Around: d.sockets.around,
	})
	if err != nil {
		return err
	}
	d.pool = pool
	if err := d.buildLanes(); err != nil {
		return err
	}
	election := leader.Config{
		Group: cfg.Group, Instance: cfg.Instance, Poll: cfg.Leader.Poll, Heartbeat: cfg.Leader.Heartbeat,
		Trust: cfg.Leader.Trust, IdleSession: cfg.Leader.IdleSession,
	}
	d.elector, err = leader.New(election, d.dialLock(leader.SessionConfig(pool.Config().ConnConfig, election)), d.log, d.Registerer)
	d.Health.Require(postgresName, true)
	return err
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

func (d *daemon) buildLanes() error {
	cfg := d.cfg
	target, access, err := elasticConfig(cfg.Elastic)
	if err != nil {
		return err
	}
	if d.elastic, err = elastic.NewTransport(access); err != nil {
		return err
	}
	target.Transport = d.elastic
	target.Tracer = d.Tracing.Tracer("weft/projections/elastic")
	d.target = target
	spans := observe.Tracing{Tracer: d.Tracing.Tracer("weft/consumer"), Sample: d.Tracing.Sample()}
	projs, err := d.Registry.Build(cfg.Projections, projections.Deps{
		Pool: d.pool, Elastic: target, ChronicleVersion: cfg.Chronicle.ProjectionVersion,
		Log: d.log, Registerer: d.Registerer,
	})
	if err != nil {
		return err
	}
	pm, err := observe.NewMetrics(d.Registerer, cfg.Projections)
	if err != nil {
		return fmt.Errorf("pipeline metrics: %w", err)
	}
	rm, err := reclaim.NewMetrics(d.Registerer, cfg.Projections)
	if err != nil {
		return fmt.Errorf("reclaim metrics: %w", err)
	}
	if d.gauges, err = newGauges(d.Registerer, cfg.Projections); err != nil {
		return fmt.Errorf("table gauges: %w", err)
	}
	if d.upkeepMetrics, err = newUpkeepMetrics(d.Registerer, cfg.Projections); err != nil {
		return err
	}
	if d.scrubbed, err = newScrubMetrics(d.Registerer, cfg.Projections); err != nil {
		return err
	}
	if d.rebuilt, err = newRebuildMetrics(d.Registerer, cfg.Projections); err != nil {
		return err
	}
	for _, p := range projs {
		ordered, ok := p.(projections.Strict)
		strict := ok && ordered.Strict()
		l := projector{proj: p, attempted: make(chan struct{}), prepared: make(chan struct{}), takeover: &systemd.Pulse{}, trouble: &atomic.Pointer[error]{}}
		l.store, err = outbox.NewStore(d.pool, outbox.StoreConfig{
			Table: p.Table(), Projection: p.Name(), Group: cfg.Group, Owner: cfg.Instance,
			Lease: cfg.Outbox.Lease, Timeout: cfg.Database.Timeout, Finished: outbox.Finished(cfg.Outbox.FinishedOf(p.Name())), Strict: strict,
		})
		if err != nil {
			return err
		}
		l.pipeline, err = consumer.New(l.store, p, consumer.Config{
			Group: cfg.Group, Instance: cfg.Instance, BatchSize: cfg.Outbox.BulkSize, Concurrency: cfg.Outbox.Concurrency, Poll: cfg.Outbox.PollInterval,
			Retry: consumer.RetryPolicy{
				MaxAttempts: cfg.Outbox.MaxAttempts, BaseBackoff: cfg.Outbox.BaseBackoff, MaxBackoff: cfg.Outbox.MaxBackoff,
				TerminalOnTransient: cfg.Outbox.TerminalOnTransient,
			},
			BreakerThreshold: cfg.Outbox.BreakerThreshold, Strict: strict, ProjectTimeout: projectTimeout, Grace: cfg.Outbox.ShutdownGrace, Tracing: spans,
		}, d.log, pm)
		if err != nil {
			return err
		}
		l.reclaimer, err = reclaim.New(l.store, reclaim.Config{
			Projection: p.Name(), Interval: cfg.Outbox.ReclaimInterval,
			MaxProcessing: cfg.Outbox.MaxProcessing, MaxReclaims: max(minReclaims, cfg.Outbox.MaxAttempts),
		}, d.log, rm)
		if err != nil {
			return err
		}
		d.projectors = append(d.projectors, l)
	}
	return nil
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

// lead is the work of one term. A fault of one projection's tables does not stop the others.
func (d *daemon) lead(ctx context.Context, t *leader.Term) error {
	g, ctx := errgroup.WithContext(ctx)
	until, stop := context.WithCancel(ctx) // the graceful end, for what has nothing in flight
	defer stop()
	g.Go(func() error {
		select {
		case <-t.Stopping():
		case <-ctx.Done():
		}
		stop()
		return nil
	})
	g.Go(func() error { d.records(until); return nil })
	for _, l := range d.projectors {
		g.Go(func() error {
			if err := d.takeOver(until, l, t.Epoch()); err != nil || until.Err() != nil {
				return err
			}
			r := d.newRebuilder(l, t)
			if err := r.join(until); err != nil || until.Err() != nil {
				return err
			}
			select { // events projected before the destination exists would meet an outage
			case <-l.attempted:
			case <-until.Done():
			}
			g.Go(func() error { return l.reclaimer.Run(until, t.Epoch()) })
			g.Go(func() error { d.upkeep(until, l, t.Epoch()); return nil })
			g.Go(func() error { d.scrub(until, l); return nil })
			g.Go(func() error { d.load(until, l); return nil })
			g.Go(func() error { r.run(until); return nil })
			return r.pump(ctx, t)
		})
	}
	err := g.Wait()
	if errors.Is(err, outbox.ErrFenced) && t.Check() == nil {
		d.pool.Reset() // its connections may lead to another server than the lock session, as to what was the primary
	}
	return err
}

// takeOver occupies the table and reclaims the leases of older terms.
func (d *daemon) takeOver(ctx context.Context, l projector, epoch int64) error {
	err := d.insist(ctx, l, func(tries int, err error) {
		switch {
		case occupied(err) && tries%300 == 0: // a minute
			d.log.Error("another group works on the table; waiting until it stops",
				zap.String("event", "outbox.occupied"), zap.String("projection", l.proj.Name()), zap.Error(err))
		case !occupied(err) && tries == 0:
			d.log.Warn("takeover waits until the leases of the old term are reclaimed",
				zap.String("event", "reclaim.fault"), zap.String("projection", l.proj.Name()), zap.Error(err))
		}
	}, func() error {
		return l.store.Occupy(ctx, epoch)
	}, func() error {
		_, err := l.reclaimer.RunOnce(ctx, epoch)
		return err
	})
	if err != nil {
		return fmt.Errorf("takeover of %s: %w", l.store.Table(), err)
	}
	return nil
}

// insist makes calls without which the term cannot begin to work, one after the other, until all
// succeed or ctx ends. Meanwhile the instance is not ready and says why; while another group works
// on the table its projection says so. It returns an error where the term is over: a newer one has
// begun, or no call is answered, as another instance's may be. A locked table is no reason, as
// whoever comes next would stand before it, too.
func (d *daemon) insist(ctx context.Context, l projector, failed func(tries int, err error), calls ...func() error) error {
	defer l.takeover.Rest()
	defer l.trouble.Store(nil)
	var silence outbox.Silence
	pause := backoff.NewExponentialBackOff() // short at first: a proxy may still lead half of the sessions to the old primary
	pause.InitialInterval, pause.MaxInterval = 25*time.Millisecond, 200*time.Millisecond
	for tries := 0; ; tries++ {
		l.takeover.Beat()
		var err error
		for _, call := range calls {
			err = call()
			if silent := silence.After(err, consumer.DefaultCutOff); silent != nil {
				return silent
			}
			if err != nil {
				break
			}
		}
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, outbox.ErrFenced) {
			return err
		}
		l.trouble.Store(&err)
		failed(tries, err)
		sleep(ctx, pause.NextBackOff())
	}
}

func occupied(err error) bool {
	_, ok := errors.AsType[*outbox.OccupiedError](err)
	return ok
}
