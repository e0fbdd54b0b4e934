package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/systemd"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
)

func (a *app) runCommand(b build) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run an instance: lead, or stand by",
		Long: `Run an instance. It competes for leadership, and works while it leads. Logs go to
standard error; health and metrics are served over HTTP.

SIGTERM and SIGINT hand over: no new work, what is in flight is finished within the
shutdown grace, then the lock is freed. A second signal leaves at once.

SIGHUP reads the configuration anew, and the files that it names: passwords, tokens, keys
and certificates are taken up without a change of leadership, and so is the log's level.
A value that cannot be read, or that a server refuses, leaves the old one in force. Other
settings take a restart.`,
		Example: `  weft run
  weft run --config weft.yaml --check-config
  WEFT_INSTANCE=b OUTBOX_METRICS_PORT=9110 weft run`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			if check {
				for _, w := range cfg.Warnings() {
					fmt.Fprintln(a.stderr, "weft: warning: "+w)
				}
				return cfg.WriteEffective(a.stdout)
			}
			return a.run(cmd.Context(), cfg, b, func() (config.Config, error) { return a.load(cmd) })
		},
	}
	cmd.Flags().BoolVar(&check, "check-config", false, "validate the configuration, print it with its sources, and exit")
	config.AddFlags(cmd.Flags())
	return cmd
}

// A high GOGC keeps collections rare, because they take CPU from the servers on the same
// machine; the soft memory limit, in bytes for each shard, makes them frequent near 80 MiB.
const (
	gcPercent   = 400
	memoryLimit = 80 << 20
)

// errSignal is the cause of a stop that a signal asked for.
var errSignal = errors.New("stopped by a signal")

func (a *app) run(ctx context.Context, cfg config.Config, b build, load func() (config.Config, error)) error {
	tel, err := telemetry.New(a.stderr, telemetry.Options{
		Level: cfg.Log.Level, Format: cfg.Log.Format, Group: cfg.Group, Instance: cfg.Instance,
		Env: cfg.Env, Version: b.Version, Commit: b.Commit, GoVer: b.Go, Journal: systemd.ToJournal(a.stderr),
	})
	if err != nil {
		return err
	}
	a.stderr, a.flush = tel.Output, tel.Log.Sync // the line about an error that ends the process must not wait for a reader either
	defer tel.Log.Sync()
	if os.Getenv("GOMEMLIMIT") == "" && os.Getenv("GOGC") == "" {
		debug.SetMemoryLimit(int64(max(1, cfg.Shards.Count)) * memoryLimit)
		debug.SetGCPercent(gcPercent)
	}
	signal.Ignore(syscall.SIGPIPE) // a reader of the log that has gone must not end a leader
	signals, release := a.signals(syscall.SIGTERM, syscall.SIGINT)
	defer release()
	hangups, releaseHangups := a.signals(syscall.SIGHUP)
	defer releaseHangups()

	tel.Log.Info("weft starts", zap.String("event", "start"), zap.String("version", b.Version),
		zap.String("commit", b.Commit), zap.Stringer("database", cfg.Database.URL), zap.Stringer("elastic", cfg.Elastic.URL))
	for _, w := range cfg.Warnings() {
		tel.Log.Warn(w, zap.String("event", "config.warning"))
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- a.daemon(ctx, cfg, tel, b, daemon.Reload{Asked: hangups, Load: load}) }()

	select {
	case err = <-done:
		return finish(tel, err)
	case sig := <-signals:
		tel.Log.Info("stopping", zap.String("event", "stop"), zap.Stringer("signal", sig),
			zap.Duration("grace", cfg.Outbox.ShutdownGrace))
		cancel(errSignal)
	}
	select {
	case err = <-done:
		return finish(tel, err)
	case sig := <-signals: // the daemon is left behind; the process ends with it
		tel.Log.Warn("second signal, leaving at once", zap.String("event", "stop.forced"), zap.Stringer("signal", sig))
		return &exitError{exitInternal, "left at once on a second signal; unfinished events are reclaimed by the next leader"}
	}
}

// finish leaves an error to the line that the exit prints.
func finish(tel *telemetry.Telemetry, err error) error {
	if err == nil || errors.Is(err, errSignal) {
		tel.Log.Info("weft has stopped", zap.String("event", "stopped"))
		return nil
	}
	return err
}
