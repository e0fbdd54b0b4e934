package outbox

import (
	"context"
	"fmt"
)

// OccupiedError means that the leader of another group works on the table. Rows are
// fenced by the epoch of one group: two groups would take each other's claims away.
type OccupiedError struct {
	Table, Group, Instance string // the other group and its leader
}

func (e *OccupiedError) Error() string {
	return fmt.Sprintf("%s is worked on by %q of the group %q: all instances for one table need the same WEFT_GROUP", e.Table, e.Instance, e.Group)
}

// occupy leaves last_settle_at as it is: it is the table's, not the group's. A leader
// that has not beaten for this long is gone, whatever its heartbeat; one whose term has not
// occupied the table works on others.
const occupy = `
with fence as materialized ({fence}), other as materialized (
  select l.group_name, l.instance
  from weft_progress p join weft_leader l using (group_name)
  where p.table_name = '{table}' and p.group_name <> $1 and p.epoch = l.epoch
    and l.released_at is null and l.renewed_at > clock_timestamp() - interval '15 s'
), taken as (
  insert into weft_progress as p (table_name, group_name, projection, epoch, last_settle_at)
  select '{table}', $1, $3, $2, '-infinity' from fence where not exists (select from other)
  on conflict (table_name) do update
  set group_name = excluded.group_name, projection = excluded.projection, epoch = excluded.epoch
  where not exists (select from weft_leader l
                    where l.group_name = p.group_name and p.group_name <> $1 and p.epoch = l.epoch
                      and l.released_at is null and l.renewed_at > clock_timestamp() - interval '15 s')
  returning 1
)
select (select count(*) from fence), (select count(*) from taken),
       coalesce((select group_name from other), ''), coalesce((select instance from other), '')`

// Occupy takes the table for the store's group. A term begins with it. It returns an
// [*OccupiedError] while the leader of another group works on the table, and
// [ErrFenced] when a newer epoch has taken over.
func (s *Store) Occupy(ctx context.Context, epoch int64) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var fences, taken int
	other := OccupiedError{Table: s.cfg.Table}
	err := s.db.QueryRow(ctx, s.sql.occupy, s.cfg.Group, epoch, s.cfg.Projection).Scan(&fences, &taken, &other.Group, &other.Instance)
	switch {
	case err != nil:
		return fmt.Errorf("occupy %s: %w", s.cfg.Table, err)
	case fences == 0:
		return fmt.Errorf("occupy %s: %w", s.cfg.Table, ErrFenced)
	case taken == 0:
		return &other
	}
	return nil
}
