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

	// loneDays are tables with the name of a day of a history, or of a part of one, that are no part of it, or half detached
	// from it: weft_history_attach says how they are named.
	loneDays = `
select c.relname as name, m[1] as day, coalesce(m[2], '') as time, coalesce(i.inhdetachpending, false) as half, m[1] >= to_char(now() at time zone 'UTC', 'YYYYMMDD') as open
from pg_class c left join pg_inherits i on i.inhrelid = c.oid cross join regexp_match(c.relname, '_([0-9]{8})(_[0-9]{1,12})?$') m
where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relkind = 'r'
  and c.relname = left($1, 54 - length(coalesce(m[2], ''))) || '_' || m[1] || coalesce(m[2], '')
  and (not c.relispartition or i.inhdetachpending)
order by 1`

	// untilNext is the end of a day, or the begin of the next partition of a history before it.
	untilNext = `select least($3::timestamptz, min(from_time)) from weft_history_partitions($1) where from_time >= $2`
)

// history names the days that the history of each table lacks.
func (e *examination) history(ctx context.Context) (err error) {
	for _, m := range e.Modes {
		lone, lerr := e.loneDays(ctx, m.Table)
		err = errors.Join(err, lerr)
		if m.Finished == string(outbox.Archive) {
			err = errors.Join(err, e.missingDays(ctx, m, lone), e.missingColumns(ctx, m.Table))
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

// missingColumns names the columns of an outbox table that its history lacks.
func (e *examination) missingColumns(ctx context.Context, table string) error {
	f, err := outbox.OpenFinishedEvents(ctx, e.Pool, table, e.Config.Database.Timeout)
	if err != nil {
		return err
	}
	lacking, err := f.Lacking(ctx)
	if len(lacking) > 0 {
		e.add("history.columns", Warning, outbox.HistoryTable(table), "it lacks columns of "+table+" ("+strings.Join(lacking, ", ")+"): finished events stay there", "weft migrate up")
	}
	return err
}

// loneDay is a table that a detachment has left.
type loneDay struct {
	Name, Day, Time string
	Half, Open      bool // half detached; of a day that is not over
}

// begin returns the time that the table's name has.
func (l *loneDay) begin() (time.Time, error) {
	const midnight = "_000000000000" // a name leaves out zeros at the end
	at := l.Time + midnight[len(l.Time):]
	return time.Parse("20060102_150405.000000", l.Day+at[:7]+"."+at[7:])
}

// loneDays names the tables that a detachment has left, and returns their days.
func (e *examination) loneDays(ctx context.Context, table string) (map[string]bool, error) {
	history := outbox.HistoryTable(table)
	rows, err := e.Pool.Query(ctx, loneDays, history)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[loneDay])
	if err != nil {
		return nil, err
	}
	lone := map[string]bool{}
	parent := pgx.Identifier{history}.Sanitize()
	for _, l := range all {
		from, err := l.begin()
		if err != nil {
			continue // the name of no day
		}
		day := from.Truncate(24 * time.Hour)
		lone[day.Format(time.DateOnly)] = true
		part := pgx.Identifier{l.Name}.Sanitize()
		if l.Half {
			e.add("history.days", Warning, l.Name, "it is half detached from "+history+": a command that removes it waits for a reader, or was ended; `weft event` does not find its events",
				"alter table "+parent+" detach partition "+part+" finalize;")
			continue
		}
		var until time.Time
		if err := e.Pool.QueryRow(ctx, untilNext, table, from, day.AddDate(0, 0, 1)).Scan(&until); err != nil {
			return lone, err
		}
		const stamp = "2006-01-02 15:04:05.999999Z"
		attach := fmt.Sprintf("alter table %s attach partition %s for values from ('%s') to ('%s');", parent, part, from.Format(stamp), until.UTC().Format(stamp))
		if l.Open {
			e.add("history.days", Warning, l.Name, "it is detached from "+history+": events that are finished on its day stay in "+table, attach)
			continue
		}
		e.add("history.days", Warning, l.Name, "it is detached from "+history+", as `weft prune` leaves it when it is ended before it drops it: its events are found by no command, and keep their disk",
			"to finish the removal: drop table "+part+"; or, to keep its events: "+attach)
	}
	return lone, nil
}
