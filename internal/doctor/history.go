package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// missingDays are those from today on that the partitions of a history do not take, or not all of. The leader makes a week ahead, of which
	// the last day may be missing for an hour after midnight. Before the first start there is none.
	missingDays = `
select day::text, n = 0
from generate_series(0, 6) n cross join lateral (select (now() at time zone 'UTC')::date + n as day) d
where not coalesce((
  select range_agg(tstzrange(p.from_time, p.until_time)) from weft_history_partitions($1) p where not p.detaching
) @> tstzrange(day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC'), false)
  and (exists (select from weft_history_partitions($1)) or exists (select from weft_instance where seen_at > now() - interval '15 s'))
order by n`

	// loneDays are tables with the name of a day of a history that are no part of it, or half detached from it.
	loneDays = `
select c.relname, coalesce(i.inhdetachpending, false), right(c.relname, 8) >= to_char(now() at time zone 'UTC', 'YYYYMMDD')
from pg_class c left join pg_inherits i on i.inhrelid = c.oid
where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and left(c.relname, -9) = $1 and right(c.relname, 9) ~ '^_[0-9]{8}$'
  and (not c.relispartition or i.inhdetachpending)
order by 1`
)

// history names the days that the history of each table lacks.
func (e *examination) history(ctx context.Context) (err error) {
	for _, m := range e.Modes {
		lone, lerr := e.loneDays(ctx, m.Table)
		err = errors.Join(err, lerr)
		if m.Finished == string(outbox.Archive) {
			err = errors.Join(err, e.missingDays(ctx, m, lone))
		}
	}
	return err
}

// missingDays names the days without a partition, but for those whose table is there and stands alone.
func (e *examination) missingDays(ctx context.Context, m migrations.Mode, lone map[string]bool) error {
	rows, err := e.Pool.Query(ctx, missingDays, m.Table)
	if err != nil {
		return err
	}
	var missing []string
	text := "it will lack days: once one begins, its"
	var day string
	var today bool
	_, err = pgx.ForEachRow(rows, []any{&day, &today}, func() error {
		if lone[day] {
			return nil
		}
		if missing = append(missing, day); today {
			text = "it lacks the day of today: its"
		}
		return nil
	})
	if len(missing) > 0 {
		e.add("history.days", Warning, outbox.HistoryTable(m.Table), text+" finished events stay in "+m.Table+" (no partition for "+strings.Join(missing, ", ")+"); a leader makes a week ahead, or logs upkeep.fault",
			fmt.Sprintf("select weft_history_attach('%s', day) from unnest('{%s}'::date[]) day;", m.Table, strings.Join(missing, ",")))
	}
	return err
}

// loneDays names the tables that a detachment has left, and returns their days.
func (e *examination) loneDays(ctx context.Context, table string) (map[string]bool, error) {
	history := outbox.HistoryTable(table)
	rows, err := e.Pool.Query(ctx, loneDays, history)
	if err != nil {
		return nil, err
	}
	lone := map[string]bool{}
	var name string
	var half, open bool // half detached; of a day that is not over
	_, err = pgx.ForEachRow(rows, []any{&name, &half, &open}, func() error {
		day, err := time.Parse("20060102", name[len(name)-8:])
		if err != nil {
			return nil //nolint:nilerr // the name of no day
		}
		lone[day.Format(time.DateOnly)] = true
		parent, part := pgx.Identifier{history}.Sanitize(), pgx.Identifier{name}.Sanitize()
		attach := fmt.Sprintf("alter table %s attach partition %s for values from ('%sZ') to ('%sZ');", parent, part, day.Format(time.DateTime), day.AddDate(0, 0, 1).Format(time.DateTime))
		switch {
		case half:
			e.add("history.days", Warning, name, "it is half detached from "+history+": a command that removes it waits for a reader, or was ended; `weft event` does not find its events",
				"alter table "+parent+" detach partition "+part+" finalize;")
		case open:
			e.add("history.days", Warning, name, "it is detached from "+history+": events that are finished on its day stay in "+table, attach)
		default:
			e.add("history.days", Warning, name, "it is detached from "+history+", as `weft prune` leaves it when it is ended before it drops it: its events are found by no command, and keep their disk",
				"to finish the removal: drop table "+part+"; or, to keep its events: "+attach)
		}
		return nil
	})
	return lone, err
}
