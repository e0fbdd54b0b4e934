package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Rebuild is the last rebuild of a projection. The zero value stands for none.
type Rebuild struct {
	Finished time.Time
	Duration time.Duration
	Success  bool
}

// projection_status is the application's table. Where there is none, or another one of that
// name, or none that this role may read, there is nothing to know.
const keepsRebuilds = `
select count(*) = 4 from pg_attribute
where attrelid = to_regclass('projection_status') and not attisdropped and has_table_privilege(attrelid, 'select')
  and (attname, atttypid) in (('projection_name', 'varchar'::regtype), ('last_rebuild_finished_at', 'timestamptz'::regtype),
    ('last_rebuild_duration_seconds', 'float8'::regtype), ('last_rebuild_success', 'boolean'::regtype))`

const lastRebuild = `
select last_rebuild_finished_at, coalesce(last_rebuild_duration_seconds, 0), coalesce(last_rebuild_success, false)
from projection_status where projection_name = $1`

// ReadRebuild reads from db the record that an application keeps of the rebuild of a
// projection. Give ctx a deadline.
func ReadRebuild(ctx context.Context, db Querier, projection string) (Rebuild, error) {
	var (
		out      Rebuild
		kept     bool
		finished zeronull.Timestamptz
		seconds  float64
	)
	err := db.QueryRow(ctx, keepsRebuilds).Scan(&kept)
	if err == nil && kept {
		err = db.QueryRow(ctx, lastRebuild, projection).Scan(&finished, &seconds, &out.Success)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Rebuild{}, fmt.Errorf("last rebuild: %w", err)
	}
	out.Finished, out.Duration = time.Time(finished), time.Duration(seconds*float64(time.Second))
	return out, nil
}
