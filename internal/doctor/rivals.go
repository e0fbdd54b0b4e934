package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// claims counts what another worker has claimed, at most a thousand rows.
	claims = `
select coalesce(nullif(owner, ''), 'unknown'), count(*)
from (select owner from %s where status = 'processing' and epoch is null limit 1000) p group by 1 order by 2 desc, 1 limit 1`

	// occupant is the last leader of another group that works on a table, and whether a heartbeat of it came lately.
	occupant = `
select l.group_name, l.instance, l.renewed_at > clock_timestamp() - interval '15 s' from weft_progress p join weft_leader l using (group_name)
where p.table_name = $1 and p.group_name <> $2 and p.epoch = l.epoch and l.released_at is null`
)

// twins names the processes that run under the name of another one.
func (e *examination) twins(ctx context.Context) error {
	seen, err := leader.Instances(ctx, e.Pool, e.Config.Group)
	for _, in := range seen {
		if in.Twin != nil {
			e.add("instances", Warning, in.Name, fmt.Sprintf("two processes run under this name: %v; and %v", in.Process(), in.Twin),
				"give each a WEFT_INSTANCE of its own")
		}
	}
	return err
}

// rivals names who else works on the outbox tables: workers that are not weft, and other groups. A table that weft cannot
// work on has none. It also names who has the lock of the group and works on other tables.
func (e *examination) rivals(ctx context.Context) error {
	st, err := leader.ReadState(ctx, e.Pool, e.Config.Group)
	if err != nil {
		return err
	}
	if st.LockElsewhere {
		e.add("rivals", Error, "group "+e.Config.Group, fmt.Sprintf("its lock is held by pid %d (%s), which works on the tables of another schema: nobody leads here", st.LockPID, st.LockApp), leader.RemedyElsewhere)
	}
	for _, name := range e.Config.Projections {
		table := e.Config.Registry().Table(name)
		if _, err := outbox.DescribeTable(ctx, e.Pool, table, e.Config.Database.Timeout); err != nil {
			shape, ok := errors.AsType[*outbox.ShapeError](err)
			if !ok {
				return err
			}
			e.add("schema.outbox", Error, table, "the table of "+name+" "+shape.Why, shape.Remedy)
			continue
		}
		var owner, group, instance string
		var rows int
		var lives bool
		err := e.Pool.QueryRow(ctx, fmt.Sprintf(claims, pgx.Identifier{table}.Sanitize())).Scan(&owner, &rows)
		if err == nil {
			e.add("rivals", Error, table, fmt.Sprintf("another worker, %s, has claimed %s: while it claims more, the leader leases nothing", owner, records.Counted(rows, "1 row", "%d rows")), "stop that worker")
		}
		if err == nil || errors.Is(err, pgx.ErrNoRows) {
			err = e.Pool.QueryRow(ctx, occupant, table, e.Config.Group).Scan(&group, &instance, &lives)
		}
		if err == nil && !lives { // its heartbeats may be rarer
			var st leader.State
			st, err = leader.ReadState(ctx, e.Pool, group)
			lives = st.Led()
		}
		switch {
		case err == nil && lives:
			e.add("rivals", Error, table, fmt.Sprintf("%s of the group %s works on it: the leader of the group %s waits", instance, group, e.Config.Group),
				"stop one of the groups, or give both the same WEFT_GROUP")
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		if err := e.unnamed(ctx, records.Table{Projection: name, Name: table}); err != nil {
			return err
		}
	}
	return nil
}

// unnamed names the events of a table that nothing can carry.
func (e *examination) unnamed(ctx context.Context, t records.Table) error {
	found, err := records.ReadNameless(ctx, e.Pool, records.Scope{Group: e.Config.Group, Timeout: e.Config.Database.Timeout}, t)
	if found != nil {
		e.add("schema.nameless", Warning, t.Name, found.Line(), records.NamelessRemedy)
	}
	return err
}
