package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	// claims counts what another worker has claimed, at most a thousand rows.
	claims = `
select coalesce(nullif(owner, ''), 'unknown'), count(*)
from (select owner from %s where status = 'processing' and epoch is null limit 1000) p group by 1 order by 2 desc, 1 limit 1`

	// working has one row for a table, unless the group is $2: the leader is empty where its term is over, and lives where a
	// heartbeat of it came lately.
	working = `
select p.group_name, coalesce(l.instance, ''), coalesce(l.renewed_at > clock_timestamp() - interval '15 s', false)
from weft_progress p left join weft_leader l on l.group_name = p.group_name and l.epoch = p.epoch and l.released_at is null
where p.table_name = $1 and p.group_name <> $2`
)

// replicated are the tables of a leader that a logical replication subscription writes into.
const replicated = `
select string_agg(distinct c.relname, ', '), string_agg(distinct coalesce(s.subname, 'unknown'), ', ')
from pg_subscription_rel r join pg_class c on c.oid = r.srrelid left join pg_subscription s on s.oid = r.srsubid
where c.relnamespace = quote_ident(current_schema())::regnamespace and coalesce(s.subenabled, true)
  and c.relname in ('weft_leader', 'weft_fence', 'weft_lease', 'weft_progress')
having count(*) > 0`

// subscriber names a subscription through which another server's weft writes here: its terms end those of this one.
func (e *examination) subscriber(ctx context.Context) error {
	var tables, by string
	err := e.Pool.QueryRow(ctx, replicated).Scan(&tables, &by)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		e.add("rivals", Error, "subscription "+by, "logical replication writes into "+tables+": what the leader at the other server does ends the terms of a leader here, and undoes what it settles",
			"run weft at one of the servers: drop the subscription before it runs here, or take weft's tables out of the publication")
	}
	return err
}

// led tells of an index into which a leader of another database writes, or the last one did: its mark names a term that this
// database does not know.
func (e *examination) led(ctx context.Context, t target, name string, mapping json.RawMessage) {
	by, marked := elastic.LedOf(mapping, elastic.LedKey(e.Config.Group, t.projection))
	if !marked {
		return
	}
	e.try(ctx, check{"rivals", func(ctx context.Context) error {
		known, err := leader.KnowsTerm(ctx, e.Pool, e.Config.Group, by.Epoch, by.Began)
		if err != nil || known {
			return err
		}
		e.add("rivals", Warning, name, fmt.Sprintf("the last leader that began to write into it, %s at %s (epoch %d), is none of this database: it may be the leader of the original of this copy, or of a copy",
			by.Instance, by.Began.UTC().Format(time.RFC3339), by.Epoch),
			"do not let both write into one index: give the copy another ELASTIC_INDEX before weft runs there; where this database was restored in place of the other one, nothing")
		return nil
	}})
}

// occupant is who works on an outbox table, or was the last to do so.
type occupant struct {
	group, instance string
	lives           bool // its term runs
}

// occupant returns who works on a table, of any group but one; nothing where there was nobody yet.
func (e *examination) occupant(ctx context.Context, table, but string) (o occupant, err error) {
	err = e.Pool.QueryRow(ctx, working, table, but).Scan(&o.group, &o.instance, &o.lives)
	if errors.Is(err, pgx.ErrNoRows) {
		return occupant{}, nil
	}
	if err == nil && o.instance != "" && !o.lives { // its heartbeats may be rarer
		var st leader.State
		st, err = leader.ReadState(ctx, e.Pool, o.group)
		o.lives = st.Led()
	}
	return o, err
}

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
		var owner string
		var rows int
		err := e.Pool.QueryRow(ctx, fmt.Sprintf(claims, pgx.Identifier{table}.Sanitize())).Scan(&owner, &rows)
		if err == nil {
			e.add("rivals", Error, table, fmt.Sprintf("another worker, %s, has claimed %s: while it claims more, the leader leases nothing", owner, records.Counted(rows, "1 row", "%d rows")), "stop that worker")
		}
		var other occupant
		if err == nil || errors.Is(err, pgx.ErrNoRows) {
			other, err = e.occupant(ctx, table, e.Config.Group)
		}
		if err != nil {
			return err
		}
		if other.lives {
			e.add("rivals", Error, table, fmt.Sprintf("%s of the group %s works on it: the leader of the group %s waits", other.instance, other.group, e.Config.Group),
				"stop one of the groups, or give both the same WEFT_GROUP")
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
