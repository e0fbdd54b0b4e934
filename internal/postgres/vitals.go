package postgres

import (
	"context"
	"fmt"
	"time"
)

// Vitals are early signs of a queue in Postgres that will become slow.
type Vitals struct {
	// ClockSkew is the database's clock minus this host's, give or take half of Uncertain.
	ClockSkew, Uncertain time.Duration

	// OldestSnapshot is the age of the oldest transaction that holds back vacuum, and
	// OldestSnapshotXIDs how many transactions have begun since its snapshot. The second
	// also sees what has no age in time: replication slots and the feedback of standbys.
	OldestSnapshot     time.Duration
	OldestSnapshotXIDs int64
}

// Without pg_read_all_stats a role sees its own sessions only; prepared transactions and
// slots it sees all the same.
const vitals = `
select clock_timestamp(),
       coalesce(extract(epoch from clock_timestamp() - min(started)), 0)::float8, coalesce(max(xids), 0)::bigint
from (
  select case when backend_xmin is not null then xact_start end as started, age(backend_xmin) as xids
  from pg_stat_activity where pid <> pg_backend_pid() and (datname is null or datname = current_database())
  union all
  select prepared, age(transaction) from pg_prepared_xacts where database = current_database()
  union all
  select null, age(xmin) from pg_replication_slots
) holders`

// ReadVitals asks db. Give ctx a deadline.
func ReadVitals(ctx context.Context, db Querier) (Vitals, error) {
	var (
		out Vitals
		now time.Time
		age float64
	)
	asked := time.Now()
	err := db.QueryRow(ctx, vitals).Scan(&now, &age, &out.OldestSnapshotXIDs)
	if err != nil {
		return Vitals{}, fmt.Errorf("vitals of the server: %w", err)
	}
	out.Uncertain = time.Since(asked)
	out.ClockSkew = now.Sub(asked.Add(out.Uncertain / 2))
	out.OldestSnapshot = max(0, time.Duration(age*float64(time.Second)))
	return out, nil
}
