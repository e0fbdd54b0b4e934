package daemon

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"

	"github.com/samuelhu324-dev/weft/internal/desk"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/leader"
)

const (
	actConns    = 6 // of the actions under way, and of one more that is planned
	deskConns   = 2 // so that no viewer takes a connection of the pipelines
	deskTimeout = 3 * time.Second
)

// openDesk binds the operator's page, with the charts of metrics and the map of several shards, unless
// it is switched off.
func (d *daemon) openDesk(ctx context.Context, tel *telemetry.Telemetry, all func() []desk.Shard) error {
	cfg := d.cfg
	if cfg.Desk.Listen == "" {
		return nil
	}
	reading, err := d.deskPool(ctx, "desk", postgres.Options{MaxConns: deskConns, Statement: deskTimeout,
		Params: map[string]string{"default_transaction_read_only": "on"}})
	if err != nil {
		return err
	}
	acting := reading // which refuses to write
	if cfg.Desk.Actions {
		if acting, err = d.deskPool(ctx, "desk_act", postgres.Options{MaxConns: actConns, Statement: cfg.Database.Timeout}); err != nil {
			return err
		}
	}
	scope := records.Scope{Group: cfg.Group, Timeout: deskTimeout, MaxProcessing: cfg.Outbox.MaxProcessing, Most: glanceLimit}
	for _, l := range d.projectors {
		scope.Tables = append(scope.Tables, records.Table{Projection: l.proj.Name(), Name: l.proj.Table()})
	}
	var settings []desk.Setting
	for _, v := range cfg.Effective() {
		settings = append(settings, desk.Setting(v))
	}
	d.desk, err = desk.Listen(ctx, desk.Options{
		Listen: cfg.Desk.Listen, Fixed: cfg.Desk.Fixed, Hosts: cfg.Desk.Hosts, WebConfig: cfg.Desk.WebConfig,
		Diagnose: func(err error) string { _, text := d.diagnose(err); return text },
		Instance: cfg.Instance, Version: d.Version, DB: reading, Scope: scope, Health: d.Health, Gatherer: d.own, Settings: settings, Shards: all, Log: d.log,
		Actions: cfg.Desk.Actions, Operators: cfg.Desk.Operators, ActDB: acting, Timeout: cfg.Database.Timeout,
		Level: desk.LogLevel{Show: tel.Level.String, Change: func(level, by string) error {
			to, err := zapcore.ParseLevel(level)
			if err == nil {
				tel.ChangeLevel(to, by)
			}
			return err
		}},
	})
	return err
}

// closeDesk releases the listener of a page that was not run.
func (d *daemon) closeDesk() {
	if d.desk != nil {
		d.desk.Close()
	}
}

// deskPool opens a pool of the page.
func (d *daemon) deskPool(ctx context.Context, name string, o postgres.Options) (*pgxpool.Pool, error) {
	o.AppName, o.Cold = leader.AppName(d.cfg.Group, d.cfg.Instance, name), true
	o.Login, o.Around = d.login, d.deskSocket.around
	pool, err := postgres.NewPool(ctx, d.cfg.Database.URL.Reveal(), o)
	if err == nil {
		d.deskPools = append(d.deskPools, pool)
	}
	return pool, err
}

// runDesk serves the page until ctx ends, and cuts its sessions a little later: an action under
// way that Postgres does not answer must not hold up a stop.
func (d *daemon) runDesk(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeGrace, func() { d.deskSocket.cut() }) })()
	return d.desk.Run(ctx)
}

// both registers metrics with two: where they are scraped, with the metrics of all shards, and where a page
// reads those of its daemon every few seconds, at the cost of those alone.
type both [2]prometheus.Registerer

func (b both) Register(c prometheus.Collector) error {
	if err := b[0].Register(c); err != nil {
		return err
	}
	return b[1].Register(c)
}

func (b both) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := b.Register(c); err != nil {
			panic(err)
		}
	}
}

func (b both) Unregister(c prometheus.Collector) bool {
	own := b[1].Unregister(c)
	return b[0].Unregister(c) && own
}
