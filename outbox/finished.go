package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Finished says whether done events are kept, archived or deleted. Failed and pending events
// always stay in the table.
//
// It may be changed between two runs of an instance, in every direction. With Archive and Discard
// the leader also moves or deletes, slowly, done rows that are still in the table (see
// [FinishedEvents.Sweep]). Rows in the history stay there.
type Finished string

// The values of outbox.finished.
const (
	Keep    Finished = "keep"    // they stay in the table
	Archive Finished = "archive" // they move to a history table of the same columns
	Discard Finished = "delete"  // they are deleted
)

func (f Finished) validate() error {
	switch f {
	case Keep, Archive, Discard:
		return nil
	default:
		return fmt.Errorf("finished %q: want keep, archive or delete", f)
	}
}

// unfit returns one object of the catalog that reacts to the deletion of a row, or prevents it.
//
//	$1 table, $2 what becomes of finished events, $3 history table
//
// Disabled triggers, and those that fire in replication sessions only, do not count.
const unfit = `
select 'has a trigger on delete (' || tgname || ')', 'drop it, or keep finished events'
from pg_trigger where tgrelid = to_regclass($1) and not tgisinternal and tgtype & 8 <> 0 and tgenabled not in ('D', 'R')
union all
select 'has a rule (' || rulename || ')', 'drop it, or keep finished events'
from pg_rewrite where ev_class = to_regclass($1) and ev_enabled not in ('D', 'R')
union all
select 'has row security', 'turn it off, or keep finished events'
from pg_class where oid = to_regclass($1) and relrowsecurity
union all
select 'is referenced by a foreign key (' || conname || ' of ' || conrelid::regclass || ')', 'drop it, or keep finished events'
from pg_constraint where contype = 'f' and confrelid = to_regclass($1)
union all
select 'is published (' || p.pubname || ') without a replica identity', 'alter table … replica identity, or keep finished events'
from pg_publication_tables p join pg_class c on c.oid = to_regclass($1) and c.relname = p.tablename
     join pg_namespace n on n.oid = c.relnamespace and n.nspname = p.schemaname
     join pg_publication b on b.pubname = p.pubname
where (b.pubdelete or b.pubupdate)
  and (c.relreplident = 'n'
       or c.relreplident = 'd' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and i.indimmediate)
       or c.relreplident = 'i' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisreplident))
union all
select 'has no history table', 'run weft migrate up, or keep finished events'
where $2 = 'archive' and to_regclass($3) is null
limit 1`

// checkFinished returns a [*ShapeError] for a table whose rows must not leave it.
func (a *access) checkFinished(ctx context.Context, f Finished) error {
	e := &ShapeError{Table: a.table.Name}
	err := a.one(ctx, "triggers and rules", unfit, []any{a.table.Name, string(f), a.table.History()}, &e.Why, &e.Remedy)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err == nil:
		e.Why = fmt.Sprintf("cannot %s finished events: it %s", f, e.Why)
		err = e
	}
	return err
}
