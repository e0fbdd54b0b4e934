package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// horizonHolders are all that keep vacuum from removing rows, or WAL from being removed. Since when a
// session of another role holds a snapshot, only some roles may see. A worker of autovacuum, which has no
// role, shows a snapshot, too, which holds back nothing.
const horizonHolders = `
select case when pid in (select pid from pg_stat_replication) then 'standby' else 'session' end, coalesce(nullif(application_name, ''), usename, '?') || ' (pid ' || pid || ')',
       'if it may be ended: select pg_terminate_backend(' || pid || ');', extract(epoch from clock_timestamp() - xact_start)::float8, age(backend_xmin)::bigint, 0::bigint, true
from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid() and usesysid is not null and (datname is null or datname = current_database())
union all
select 'prepared transaction', gid, 'find out whose it is, then: commit prepared ' || quote_literal(gid) || '; or: rollback prepared ' || quote_literal(gid) || ';',
       extract(epoch from clock_timestamp() - prepared)::float8, age(transaction)::bigint, 0, true
from pg_prepared_xacts where database = current_database()
union all
select 'replication slot', slot_name, 'start its reader again or, if it is gone for good: select pg_drop_replication_slot(' || quote_literal(slot_name) || ');', 0,
       coalesce(age(xmin), age(catalog_xmin), 0)::bigint, case when pg_is_in_recovery() then 0 else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0) end::bigint, active
from pg_replication_slots`

// holder is one of them.
type holder struct {
	kind, name, remedy string
	seconds            *float64 // since it began; nil when it is not to be seen
	xids, wal          int64
	active             bool
}

func (e *examination) horizon(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, horizonHolders)
	if err != nil {
		return err
	}
	var h holder
	_, err = pgx.ForEachRow(rows, []any{&h.kind, &h.name, &h.remedy, &h.seconds, &h.xids, &h.wal, &h.active}, func() error {
		e.heldBack(h)
		return nil
	})
	return err
}

func (e *examination) heldBack(h holder) {
	var text string
	switch {
	case h.kind == "replication slot":
		text = e.slotIs(&h)
	case h.kind == "standby" && h.xids > e.held:
		text, h.remedy = fmt.Sprintf("a query there holds back vacuum by %d transactions: leases get slower", h.xids), "end the query there, or set hot_standby_feedback = off there"
	case h.kind == "standby":
	case h.seconds == nil && h.xids > e.held:
		text = fmt.Sprintf("it holds back vacuum by %d transactions, and the role may not see since when: leases get slower", h.xids)
	case h.seconds != nil && *h.seconds > e.snapshot.Seconds():
		text = fmt.Sprintf("it has been open for %s: vacuum cannot remove what died since, and leases get slower", ago(time.Duration(*h.seconds*float64(time.Second))))
	}
	if text != "" {
		e.add("vacuum.held_back", Warning, h.kind+" "+h.name, text, h.remedy)
	}
}

// slotIs tells of a replication slot, "" when it is well. Nobody is told to drop one that is read.
func (e *examination) slotIs(h *holder) string {
	switch {
	case h.active && h.wal > e.slotBytes:
		h.remedy = "its reader is behind: look there, and at pg_stat_replication"
		return fmt.Sprintf("the slot keeps %s of WAL: the disk of the primary fills", size(h.wal))
	case h.wal > e.slotBytes:
		return fmt.Sprintf("the slot keeps %s of WAL, and nobody reads it: the disk of the primary fills", size(h.wal))
	case !h.active && h.xids > 0:
		return fmt.Sprintf("nobody reads the slot, and it holds back vacuum by %d transactions", h.xids)
	default:
		return ""
	}
}
