package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/outbox"
)

// skew lets an instance lead whose wall clock is wrong, and looks for that clock in
// the tables.
func (r *run) skew(ctx context.Context, m *member, i *injection) (err error) {
	if r.skewed == "" {
		return errSkip("no binary with a wrong wall clock was built")
	}
	odd := r.other(m)
	if odd == nil {
		return errSkip("there is no standby")
	}
	// Back to its right clock, whatever happens.
	defer func() {
		odd.asked = true
		_, kerr := odd.instance.Kill()
		err = errors.Join(err, kerr, ended(ctx, odd.instance), r.supervise(ctx))
	}()
	odd.asked = true
	if _, err := odd.instance.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := ended(ctx, odd.instance); err != nil {
		return err
	}
	if err := r.start(ctx, odd, r.skewed); err != nil {
		return err
	}
	if err := odd.instance.Ready(ctx); err != nil {
		return err
	}
	m.asked = true
	if _, err := m.instance.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := errors.Join(ended(ctx, m.instance), r.succeeded(ctx, i.Epoch)); err != nil {
		return err
	}
	if err := r.supervise(ctx); err != nil {
		return err
	}
	l, err := r.leader(ctx)
	if err != nil {
		return err
	}
	if err := await.Sleep(ctx, i.Step.Hold); err != nil {
		return err
	}
	still, err := r.leader(ctx)
	if err != nil {
		return err
	}
	if still.epoch != l.epoch {
		r.clocks = append(r.clocks, fmt.Sprintf("%s with its clock %v off led under epoch %d and gave way to %s under epoch %d without a reason",
			l.instance, skew(r.opts.Seed), l.epoch, still.instance, still.epoch))
	}
	// What it has written itself is younger than its start, and not of the future.
	itsTerm := fmt.Sprintf("epoch = %d", l.epoch)
	itsEvents := fmt.Sprintf("id in (select h.event_id from weftlab_history h where h.tx in (select e.tx from weftlab_lease e where e.epoch = %d and e.events is null))", l.epoch)
	found, err := r.wrongTimes(ctx, i.At, map[string]string{
		outboxTable: itsEvents, outbox.HistoryTable(outboxTable): itsEvents, "weft_lease": itsTerm, "weft_leader": itsTerm, "weft_term": itsTerm, "weft_progress": itsTerm,
		"weft_instance": fmt.Sprintf("instance = '%s'", odd.name), "weft_audit": fmt.Sprintf("by_epoch = %d", l.epoch),
	})
	r.clocks = append(r.clocks, found...)
	return err
}

// slack is what a fraction of a second could be; ahead is how far into the future a lease or retry
// may point, and less than the clocks are off.
const (
	slack = time.Second
	ahead = 2 * time.Minute
)

const timeColumns = `
select c.table_name, c.column_name
from information_schema.columns c
where c.table_schema = current_schema() and c.data_type = 'timestamp with time zone'
  and (c.table_name like 'weft\_%' and c.table_name <> 'weft_schema_version' or c.table_name in ($1, $2))
  and not (c.table_name in ($1, $2) and c.column_name = 'created_at') -- the application's
order by 1, 2`

// wrongTimes returns the times in weft's tables that are earlier than since or later
// than the database's clock: of the rows that where selects of the tables it names, or
// of all when it is nil.
func (r *run) wrongTimes(ctx context.Context, since time.Time, where map[string]string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := r.place.pool.Query(ctx, timeColumns, outboxTable, outbox.HistoryTable(outboxTable))
	if err != nil {
		return nil, fmt.Errorf("list columns with times: %w", err)
	}
	type column struct{ Table, Column string }
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[column])
	if err != nil {
		return nil, fmt.Errorf("list columns with times: %w", err)
	}
	var found []string
	for _, c := range columns {
		condition := where[c.Table]
		switch {
		case where == nil:
			condition = "true"
		case condition == "", strings.HasPrefix(c.Column, "resign_"): // asked of an earlier term
			continue
		}
		if c.Column == "next_retry_at" {
			condition += " and behind is null" // else the time is an hour ahead, for older builds
		}
		limit := slack
		if strings.Contains(c.Column, "until") || strings.Contains(c.Column, "next_") {
			limit = ahead
		}
		table, name := pgx.Identifier{c.Table}.Sanitize(), pgx.Identifier{c.Column}.Sanitize()
		var n int
		var first, last *time.Time
		err := r.place.pool.QueryRow(ctx, fmt.Sprintf(`
select count(*), min(%[2]s), max(%[2]s) from %[1]s
where %[3]s and isfinite(%[2]s) and (%[2]s > clock_timestamp() + $1::bigint * interval '1 microsecond' or %[2]s < $2)`, table, name, condition),
			limit.Microseconds(), since.Add(-slack)).Scan(&n, &first, &last)
		if err != nil {
			return nil, fmt.Errorf("look for times in %s.%s: %w", c.Table, c.Column, err)
		}
		if n > 0 {
			found = append(found, fmt.Sprintf("%s.%s: %d times between %v and %v are not of the database's clock", c.Table, c.Column, n, first, last))
		}
	}
	return found, nil
}
