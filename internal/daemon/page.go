package daemon

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/internal/desk"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
)

const (
	deskConns   = 2 // so that no viewer takes a connection of the pipelines
	deskTimeout = 3 * time.Second
)

// openDesk binds the operator's page, unless it is switched off.
func (d *daemon) openDesk(ctx context.Context, from prometheus.Gatherer) error {
	cfg := d.cfg
	if cfg.Desk.Listen == "" {
		return nil
	}
	pool, err := postgres.NewPool(ctx, cfg.Database.URL.Reveal(), postgres.Options{
		AppName: leader.AppName(cfg.Group, cfg.Instance, "desk"), MaxConns: deskConns, Cold: true, Statement: deskTimeout,
		Params: map[string]string{"default_transaction_read_only": "on"}, Login: d.login, Around: d.sockets.around,
	})
	if err != nil {
		return err
	}
	d.deskPool = pool
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
		Instance: cfg.Instance, Version: d.Version, DB: pool, Scope: scope, Health: d.Health, Gatherer: from, Settings: settings, Log: d.log,
	})
	return err
}
