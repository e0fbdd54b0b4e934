package main

import (
	"context"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
)

// runDaemon runs the instance until ctx ends. It is the one place that knows the
// signature of the daemon.
func runDaemon(ctx context.Context, cfg config.Config, tel *telemetry.Telemetry, b build, reload daemon.Reload) error {
	return daemon.Run(ctx, cfg, tel, b.Version, reload)
}
