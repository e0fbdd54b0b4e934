package daemon

import (
	"context"
	"fmt"

	"github.com/samuelhu324-dev/weft/migrations"
)

// HomeName is the dependency that fails while the shard is at home in another database.
const HomeName = "home"

// watchHome tells until ctx ends whether the settings lead to where the shard is at home. Elsewhere its
// tables are empty: whoever leads it there has nothing to do, while events wait at its home.
func (d *daemon) watchHome(ctx context.Context) error {
	return every(ctx, measureEvery, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		away, err := migrations.ReadAway(ctx, d.pool, "")
		switch {
		case err != nil: // whoever needs the database tells of it
		case away == nil:
			d.gauges.away.Set(0)
			d.tell(HomeName, nil)
		default:
			d.gauges.away.Set(1)
			d.tell(HomeName, fmt.Errorf("the shard %s; %s", away, away.Remedy()))
		}
	})
}
