package fleet

import (
	"context"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// The types of rig.
type (
	Fleet    = rig.Fleet
	Instance = rig.Instance
	Options  = rig.InstanceOptions
)

// Environment calls [rig.Environment].
func Environment(environ []string, keepElastic bool, own ...string) []string {
	return rig.Environment(environ, keepElastic, own...)
}

// Build calls [rig.Build].
func Build(ctx context.Context, dir string, overlay map[string][]byte) (string, error) {
	return rig.Build(ctx, dir, overlay)
}

// Replaced calls [rig.Replaced].
func Replaced(ctx context.Context, file, old, with string) (map[string][]byte, error) {
	return rig.Replaced(ctx, file, old, with)
}

// SkewedClock calls [rig.SkewedClock].
func SkewedClock(ctx context.Context, by time.Duration) (map[string][]byte, error) {
	return rig.SkewedClock(ctx, by)
}

// GoRoot calls [rig.GoRoot].
func GoRoot(ctx context.Context) (string, error) { return rig.GoRoot(ctx) }
