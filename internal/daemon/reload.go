package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/samuelhu324-dev/weft/internal/config"
)

// Reload lets a running instance apply changed settings, and changed files that its settings
// name. The zero value never reloads.
type Reload struct {
	Asked <-chan os.Signal              // each value asks for one
	Load  func() (config.Config, error) // reads all layers anew
}

// hook applies some settings while the instance runs.
type hook struct {
	name string
	keys []string
	// apply runs at every reload, because the file behind an unchanged setting may have
	// changed. It changes nothing when it returns an error.
	apply func(ctx context.Context, next config.Config) error
}

// hooks run in this order; the failure of one does not stop the others.
func (d *daemon) hooks() []hook {
	return []hook{
		{"access to Postgres", []string{"database.url", "database.password"}, d.relogin},
		{"access to Elasticsearch", elasticKeys, d.reaccess},
		{"the log", []string{"log.level"}, d.relevel},
	}
}

func (d *daemon) relevel(_ context.Context, next config.Config) error {
	level, err := zapcore.ParseLevel(next.Log.Level)
	if err == nil {
		d.changeLevel(level, "reload")
	}
	return err
}

// reloads serves requests until ctx ends.
func (d *daemon) reloads(ctx context.Context) error {
	live := d.cfg
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.reload.Asked:
			d.manager.Reload(func() { live = d.takeUp(ctx, live) })
		}
	}
}

// takeUp applies next, and returns the settings that are in force afterwards.
func (d *daemon) takeUp(ctx context.Context, live config.Config) config.Config {
	failed := func(what string, err error) {
		d.log.Error("reload: "+what+" stays as it was", zap.String("event", "config.reload_failed"), zap.Error(err))
	}
	next, err := d.reload.Load()
	if err != nil {
		failed("everything", errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
		d.reloaded.set(false)
		return live
	}
	for _, w := range next.Warnings() {
		d.log.Warn(w, zap.String("event", "config.warning"))
	}
	changed, ok := live.Changed(next), true
	var refused []string
	for _, h := range d.hooks() {
		limited, cancel := context.WithTimeout(ctx, checkTimeout)
		err := h.apply(limited, next)
		cancel()
		if ctx.Err() != nil {
			return live
		}
		if err != nil {
			failed(h.name, err)
			refused, ok = append(refused, h.keys...), false
			continue
		}
		live = live.With(next, h.keys...)
	}
	waiting := slices.DeleteFunc(live.Changed(next), func(key string) bool { return slices.Contains(refused, key) })
	if len(waiting) > 0 {
		d.log.Warn("reload: these settings take a restart", zap.String("event", "config.needs_restart"), zap.Strings("settings", waiting))
	}
	taken := slices.DeleteFunc(changed, func(key string) bool { return slices.Contains(waiting, key) || slices.Contains(refused, key) })
	d.reloaded.set(ok)
	if ok {
		d.log.Info("reloaded", zap.String("event", "config.reloaded"), zap.Strings("settings", taken))
	}
	return live
}

// reloaded are the metrics of the last reload; a start counts as one.
type reloaded struct{ ok, at prometheus.Gauge }

func newReloaded(reg prometheus.Registerer) (*reloaded, error) {
	r := &reloaded{
		ok: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_config_last_reload_successful", Help: "1 when the last reload took up everything it could."}),
		at: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_config_last_reload_success_timestamp_seconds", Help: "When that was last so."}),
	}
	for _, g := range []prometheus.Gauge{r.ok, r.at} {
		if err := reg.Register(g); err != nil {
			return nil, fmt.Errorf("reload metrics: %w", err)
		}
	}
	r.set(true)
	return r, nil
}

func (r *reloaded) set(ok bool) {
	if !ok {
		r.ok.Set(0)
		return
	}
	r.ok.Set(1)
	r.at.Set(float64(time.Now().UnixMilli()) / 1e3)
}
