package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

// SkewedClock names the fault of a leader whose wall clock is wrong.
const SkewedClock = "skewed-clock"

func clocks() []Fault {
	return []Fault{{
		Name: SkewedClock, About: "an instance whose wall clock is five minutes off leads",
		Share: 1, Draw: lasts(2*second, 4*second),
		Available: func(i *Injection) {
			if i.Skewed == "" {
				i.Must(Never("no binary with a wrong wall clock was built"))
			}
			if i.Standby(i.Member) == nil {
				i.Must(Skip("there is no standby"))
			}
		},
		Inject: skew, Observe: lookForClock, Heal: unskew,
	}}
}

// skew replaces the standby by one with a wrong clock, and ends the leader.
func skew(i *Injection) {
	i.skewed = i.Standby(i.Member)
	i.end(i.skewed)
	i.Must(i.skewed.Start(i.Ctx, i.Skewed))
	i.Must(i.skewed.Instance().Ready(i.Ctx))
	i.end(i.Member)
	i.Must(i.Succeeded(i.Ctx, i.Epoch))
	i.Must(i.Supervise(i.Ctx))
	i.ledBy = i.placeOf(i.skewed)
	i.term = rig.Try(i.ledBy.Leader(i.Ctx)).Must(i)
}

// placeOf returns where a member leads: of several shards one, when no more of them are about to be
// handed over.
func (i *Injection) placeOf(m *rig.Member) *rig.Place {
	if len(i.Shards) == 0 {
		return i.Place
	}
	i.even(nil)
	leaders := rig.Try(i.Shards.Leaders(i.Ctx)).Must(i)
	n := slices.IndexFunc(leaders, func(l rig.Leadership) bool { return l.Instance == m.Name })
	if n < 0 {
		i.Must(Skip("the instance with the wrong clock leads no shard"))
	}
	return i.Shards[n]
}

// end asks a member to stop and waits for its end.
func (i *Injection) end(m *rig.Member) {
	rig.Try(m.Instance().Signal(syscall.SIGTERM)).Must(i)
	i.Must(m.Instance().AwaitEnd(i.Ctx))
}

// unskew gives the member its right clock back.
func unskew(i *Injection) {
	if i.skewed != nil {
		_, err := i.skewed.Instance().Kill()
		i.Must(errors.Join(err, i.skewed.Instance().AwaitEnd(i.Ctx), i.Supervise(i.Ctx)))
	}
}

// lookForClock looks for the wrong clock in the tables, and for a term that ended by it.
func lookForClock(i *Injection) {
	still := rig.Try(i.ledBy.Leader(i.Ctx)).Must(i)
	if still.Epoch != i.term.Epoch {
		i.Findings = append(i.Findings, fmt.Sprintf("%s with its clock %v off led under epoch %d and gave way to %s under epoch %d without a reason",
			i.term.Instance, i.Skew, i.term.Epoch, still.Instance, still.Epoch))
	}
	// What it has written itself is younger than its start, and not of the future.
	itsTerm := fmt.Sprintf("epoch = %d", i.term.Epoch)
	itsEvents := fmt.Sprintf("id in (select h.event_id from weftlab_history h where h.tx in (select e.tx from weftlab_lease e where e.epoch = %d and e.events is null))", i.term.Epoch)
	found, err := WrongTimes(i.Ctx, i.ledBy, i.At, map[string]string{
		i.Outbox: itsEvents, outbox.HistoryTable(i.Outbox): itsEvents, "weft_lease": itsTerm, "weft_leader": itsTerm, "weft_term": itsTerm, "weft_progress": itsTerm,
		"weft_instance": fmt.Sprintf("instance = '%s'", i.skewed.Name), "weft_audit": fmt.Sprintf("by_epoch = %d", i.term.Epoch),
	})
	i.Findings = append(i.Findings, found...)
	i.Must(err)
}

// A time may be a fraction of a second off by slack; a lease or a retry may point into the
// future by ahead, which is less than the clocks are off.
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

// WrongTimes returns the times in weft's tables that are earlier than since or later than the
// database's clock: those of all rows when where is nil, and otherwise of the rows that its
// conditions select, by table.
func WrongTimes(ctx context.Context, p *rig.Place, since time.Time, where map[string]string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	type column struct{ Table, Column string }
	rows, _ := p.Pool.Query(ctx, timeColumns, p.Outbox, outbox.HistoryTable(p.Outbox)) // collecting returns its error
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
		err := p.Pool.QueryRow(ctx, fmt.Sprintf(`
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
