package await

import (
	"context"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Await calls [rig.Await].
func Await(ctx context.Context, bound, period time.Duration, what string, well func(context.Context) error) error {
	return rig.Await(ctx, bound, period, what, well)
}

// Sleep calls [rig.Sleep].
func Sleep(ctx context.Context, d time.Duration) error { return rig.Sleep(ctx, d) }
