package sentinel

import (
	"context"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// ErrEnvironment is [rig.ErrEnvironment].
var ErrEnvironment = rig.ErrEnvironment

// Check calls [rig.CheckEnvironment].
func Check(ctx context.Context, db postgres.Querier, want string) (string, error) {
	return rig.CheckEnvironment(ctx, db, want)
}
