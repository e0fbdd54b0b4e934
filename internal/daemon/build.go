package daemon

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/systemd"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
	"github.com/samuelhu324-dev/weft/reclaim"
)

// minReclaims is how many consecutive reclaims mark an event as the likely cause of crashes.
// It is high because a term that is lost while a request hangs also reclaims its events.
const minReclaims = 10

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
	if err := d.buildProjectors(); err != nil {
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

func (d *daemon) buildProjectors() error {
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
		l, err := d.newProjector(p, pm, rm)
		if err != nil {
			return err
		}
		d.projectors = append(d.projectors, l)
	}
	return nil
}

func (d *daemon) newProjector(p projections.Projection, pm *observe.Metrics, rm *prometheus.CounterVec) (l projector, err error) {
	cfg := d.cfg
	ordered, ok := p.(projections.Strict)
	strict := ok && ordered.Strict()
	l = projector{proj: p, attempted: make(chan struct{}), prepared: make(chan struct{}), takeover: &systemd.Pulse{}, trouble: &atomic.Pointer[error]{}}
	l.store, err = outbox.NewStore(d.pool, outbox.StoreConfig{
		Table: p.Table(), Projection: p.Name(), Group: cfg.Group, Owner: cfg.Instance,
		Lease: cfg.Outbox.Lease, Timeout: cfg.Database.Timeout, Finished: outbox.Finished(cfg.Outbox.FinishedOf(p.Name())), Strict: strict,
	})
	if err != nil {
		return l, err
	}
	l.pipeline, err = consumer.New(l.store, p, consumer.Config{
		Group: cfg.Group, Instance: cfg.Instance, BatchSize: cfg.Outbox.BulkSize, Concurrency: cfg.Outbox.Concurrency, Poll: cfg.Outbox.PollInterval,
		Retry: consumer.RetryPolicy{
			MaxAttempts: cfg.Outbox.MaxAttempts, BaseBackoff: cfg.Outbox.BaseBackoff, MaxBackoff: cfg.Outbox.MaxBackoff,
			TerminalOnTransient: cfg.Outbox.TerminalOnTransient,
		},
		BreakerThreshold: cfg.Outbox.BreakerThreshold, Strict: strict, ProjectTimeout: projectTimeout, Grace: cfg.Outbox.ShutdownGrace,
		Tracing: observe.Tracing{Tracer: d.Tracing.Tracer("weft/consumer"), Sample: d.Tracing.Sample()},
	}, d.log, pm)
	if err != nil {
		return l, err
	}
	l.reclaimer, err = reclaim.New(l.store, reclaim.Config{
		Projection: p.Name(), Interval: cfg.Outbox.ReclaimInterval,
		MaxProcessing: cfg.Outbox.MaxProcessing, MaxReclaims: max(minReclaims, cfg.Outbox.MaxAttempts),
	}, d.log, rm)
	return l, err
}
