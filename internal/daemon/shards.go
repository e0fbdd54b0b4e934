package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/desk"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/shards"
	"github.com/samuelhu324-dev/weft/internal/systemd"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
)

// shardLabel is the label of metrics, where there are several shards.
const shardLabel = "shard"

// process is an instance of several shards: a daemon for each, behind one listener.
type process struct {
	cfg     config.Config
	log     *zap.Logger
	manager *systemd.Manager
	server  *admin.Server
	health  *admin.Health
	reload  Reload
	shards  []*daemon

	mu    sync.Mutex
	wrong []error  // with each shard, that only a person can fix; nil for the others
	told  []string // of each shard, until that has been fixed
}

// runShards is Run for several shards.
func runShards(ctx context.Context, cfg config.Config, tel *telemetry.Telemetry, version string, reload Reload) error {
	tracing, err := telemetry.StartTracing(tel.Log, tel.Contract, tracingOptions(cfg, version))
	if err != nil {
		return err
	}
	defer tracing.Shutdown(flushGrace)
	p := &process{cfg: cfg, log: tel.Log, manager: systemd.New(tel.Log), reload: reload,
		wrong: make([]error, cfg.Shards.Count), told: make([]string, cfg.Shards.Count)}
	var healths []*admin.Health
	for n := range cfg.Shards.Count {
		one, err := shards.Config(cfg, n)
		if err != nil {
			return err
		}
		label := prometheus.Labels{shardLabel: strconv.Itoa(n)}
		d := newDaemon(one, Host{
			Log: tel.Log.With(zap.Int(shardLabel, n)), Registerer: prometheus.WrapRegistererWith(label, tel.Contract), Tracing: tracing,
			Health: admin.NewHealth(one.Group, cfg.Instance), Registry: one.Registry(), Version: version,
		})
		d.manager, d.changeLevel, d.shared = systemd.None(zap.NewNop()), tel.ChangeLevel, true // the process tells of all shards
		d.ends = func(err error) bool { return p.judge(n, err) }
		p.shards, healths = append(p.shards, d), append(healths, d.Health)
		defer d.close()
		if err := d.build(ctx); err != nil {
			return err
		}
		if d.reloaded, err = newReloaded(d.Registerer); err != nil {
			return err
		}
	}
	p.health = admin.OfShards(cfg.Group, cfg.Instance, healths)
	if p.server, err = listen(ctx, cfg, p.health, tel); err != nil {
		return err
	}
	for n, d := range p.shards {
		d.server = p.server
		if err := d.openDesk(ctx, tel, func() []desk.Shard { return p.table(n) }); err != nil {
			p.server.Close()
			for _, opened := range p.shards[:n] {
				opened.closeDesk()
			}
			return err
		}
	}
	return p.run(ctx)
}

// judge reports whether a fault of shard n ends the instance: one that only a person can fix does when no
// shard is without one. Otherwise the instance leads the others, and tells of this one.
func (p *process) judge(n int, err error) (ends bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong[n] = nil
	if err == nil {
		p.told[n] = ""
		return false
	}
	kind, text := p.shards[n].diagnose(err)
	if passing(kind, err) {
		return false
	}
	p.wrong[n] = err
	if !slices.Contains(p.wrong, nil) {
		return true
	}
	if p.told[n] != text {
		p.told[n] = text
		p.shards[n].log.Error("this shard is not led until somebody fixes it; the others are",
			zap.String("event", "shards.refused"), zap.String("error", text))
	}
	return false
}

// run runs the daemons and what is around them, which outlives them: their hand-over needs it.
func (p *process) run(ctx context.Context) error {
	around, endAround := context.WithCancel(context.WithoutCancel(ctx))
	defer endAround()
	fallible, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	work, inner := errgroup.WithContext(fallible)
	var g errgroup.Group
	g.Go(func() error { return p.reloads(around) })
	g.Go(func() error { return p.tell(around, inner.Done()) })
	g.Go(func() error {
		err := p.server.Run(around)
		if err != nil {
			err = fmt.Errorf("HTTP server: %w", err)
			fail(err)
		}
		return err
	})
	work.Go(func() error { return newBalancer(p).run(inner) })
	for n, d := range p.shards {
		work.Go(func() error {
			if err := d.run(inner); err != nil {
				return fmt.Errorf("shard %d: %w", n, err)
			}
			return nil
		})
	}
	err := p.why(work.Wait())
	endAround()
	return errors.Join(err, g.Wait())
}

// why returns the error that ends the instance. Where a wrong number of shards was set, those that there
// are not have another fault, and it may have been found last.
func (p *process) why(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, fault := range p.wrong {
		if errors.As(fault, new(*migrations.ShardsError)) && !slices.Contains(p.wrong, nil) {
			return fmt.Errorf("shard %d: %w", n, fault)
		}
	}
	return err
}

// read reads the settings anew, and says which of those about all shards take a restart: they stay.
func (p *process) read() (config.Config, error) {
	next, err := p.reload.Load()
	if err != nil {
		return next, err
	}
	waiting := slices.DeleteFunc(p.cfg.Changed(next), func(key string) bool {
		return !slices.Contains([]string{"shards.count", "shards.prefix", "shards.indexes"}, key)
	})
	if len(waiting) > 0 {
		p.log.Warn("reload: these settings take a restart", zap.String("event", "config.needs_restart"), zap.Strings("settings", waiting))
	}
	servers := next.Shards.Servers // of which a login may be another
	next.Shards = p.cfg.Shards
	next.Shards.Servers = servers
	return next, nil
}

// reloads has each shard take up what changed, at every request until ctx ends.
func (p *process) reloads(ctx context.Context) error {
	live := make([]config.Config, len(p.shards))
	for n, d := range p.shards {
		live[n] = d.cfg
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.reload.Asked:
			p.manager.Reload(func() {
				next, err := p.read()
				for n, d := range p.shards {
					d.reload.Load = func() (config.Config, error) {
						if err != nil {
							return next, err
						}
						return shards.Config(next, n)
					}
					live[n] = d.takeUp(ctx, live[n])
				}
			})
		}
	}
}

// tell tells the service manager of all shards until ctx ends.
func (p *process) tell(ctx context.Context, stopping <-chan struct{}) error {
	leaving := false
	return every(ctx, watchEvery, func(context.Context) {
		select {
		case <-stopping:
			leaving, stopping = true, nil
			p.manager.Stopping(p.cfg.Outbox.ShutdownGrace)
		default:
		}
		state := systemd.State{Ready: !leaving}
		led := 0
		for n, d := range p.shards {
			state.Ready = state.Ready && d.able()
			if d.Health.Report().Role == admin.Leader {
				led++
			}
			for _, part := range d.parts() {
				part.Name = fmt.Sprintf("shard %d: %s", n, part.Name)
				state.Parts = append(state.Parts, part)
			}
		}
		state.Status = fmt.Sprintf("leads %d of %d shards", led, len(p.shards))
		if failing := p.health.Report().Failing; len(failing) > 0 {
			state.Status += "; failing: " + failing[0]
		}
		p.manager.Tell(state)
	})
}

// leaderOf returns who leads a shard, as this instance knows it; nothing when nobody does.
func (p *process) leaderOf(n int) string {
	st := p.shards[n].elector.Status()
	if st.Role == leader.RoleLeader || st.Role == leader.RoleDraining {
		return p.cfg.Instance
	}
	return st.Holder
}

// table is the map of the shards, for the page of one of them.
func (p *process) table(here int) []desk.Shard {
	out := make([]desk.Shard, len(p.shards))
	for n, d := range p.shards {
		out[n] = desk.Shard{Number: n, Schema: shards.Schema(p.cfg, n), Group: d.cfg.Group, Server: postgres.Address(&d.pool.Config().ConnConfig.Config), Leader: p.leaderOf(n), Here: n == here}
		if d.desk != nil {
			out[n].Page = d.desk.URL("localhost")
		}
	}
	return out
}
