package history

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/outbox"
)

// DB is what this package needs of a pool or connection.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// timeout bounds one statement of this package; reading a long record is the slowest.
const timeout = 30 * time.Second

const install = `
create sequence if not exists {schema}.weftlab_seq;
create table if not exists {schema}.weftlab_history (
  seq bigint primary key default nextval('{schema}.weftlab_seq'),
  tx xid8 not null default pg_current_xact_id(),
  at timestamptz not null default clock_timestamp(),
  source text not null,
  event_id uuid not null, entity_type text not null, entity_id uuid not null,
  event_version bigint not null, op text not null,
  old_status text, new_status text not null, owner text, epoch bigint,
  attempts integer not null, reclaim boolean not null
);
create table if not exists {schema}.weftlab_terms (
  seq bigint primary key default nextval('{schema}.weftlab_seq'),
  tx xid8 not null default pg_current_xact_id(),
  at timestamptz not null default clock_timestamp(),
  group_name text not null, epoch bigint not null, instance text not null
);

create or replace function {schema}.weftlab_enqueued() returns trigger language plpgsql as $$
begin
  insert into {schema}.weftlab_history
    (source, event_id, entity_type, entity_id, event_version, op, new_status, attempts, reclaim)
  select tg_table_name, n.id, n.entity_type, n.entity_id, n.event_version, n.op, n.status, n.attempts, false
  from new_rows n;
  return null;
end $$;

create or replace function {schema}.weftlab_changed() returns trigger language plpgsql as $$
begin
  insert into {schema}.weftlab_history
    (source, event_id, entity_type, entity_id, event_version, op, old_status, new_status, owner, epoch, attempts, reclaim)
  select tg_table_name, n.id, n.entity_type, n.entity_id, n.event_version, n.op, o.status, n.status,
         case when n.status = 'processing' then n.owner else o.owner end,
         case when n.status = 'processing' then n.epoch else o.epoch end,
         n.attempts, n.reclaims > o.reclaims
  from old_rows o join new_rows n on n.id = o.id
  where (o.status, o.owner, o.epoch, o.attempts, o.reclaims) is distinct from (n.status, n.owner, n.epoch, n.attempts, n.reclaims);
  return null;
end $$;

create or replace function {schema}.weftlab_term() returns trigger language plpgsql as $$
begin
  insert into {schema}.weftlab_terms (group_name, epoch, instance) values (new.group_name, new.epoch, new.instance);
  return null;
end $$;

create or replace trigger weftlab_enqueued after insert on {schema}.{table}
  referencing new table as new_rows for each statement execute function {schema}.weftlab_enqueued();
create or replace trigger weftlab_changed after update on {schema}.{table}
  referencing old table as old_rows new table as new_rows for each statement execute function {schema}.weftlab_changed();
create or replace trigger weftlab_first_term after insert on {schema}.weft_leader
  for each row execute function {schema}.weftlab_term();
create or replace trigger weftlab_next_term after update on {schema}.weft_leader
  for each row when (old.epoch is distinct from new.epoch) execute function {schema}.weftlab_term();
`

// Install starts the record of an outbox table in the first schema of db's
// search_path, where weft's tables must be. It may be called again and for a second
// table. Events that are there already are not in the record.
func Install(ctx context.Context, db DB, table string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var schema string
	if err := db.QueryRow(ctx, `select current_schema()`).Scan(&schema); err != nil {
		return fmt.Errorf("install history: %w", err)
	}
	fill := strings.NewReplacer("{schema}", pgx.Identifier{schema}.Sanitize(), "{table}", pgx.Identifier{table}.Sanitize())
	// The simple protocol runs all statements in one transaction.
	if _, err := db.Exec(ctx, fill.Replace(install), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("install history: %w", err)
	}
	return nil
}

// Status is the value of the column of that name.
type Status string

// The states of an event; the empty Status is that of an event before it was enqueued.
const (
	Pending    Status = "pending"
	Processing Status = "processing"
	Done       Status = "done"
	Failed     Status = "failed"
)

// Change is one change of one event.
type Change struct {
	Seq      int64     // grows with the time of the statement; ties of At are resolved by it
	Tx       uint64    // transaction
	At       time.Time // when the transaction committed; see [Log.Exact]
	Event    uuid.UUID
	Key      outbox.Key
	Version  int64
	Op       outbox.Op
	From, To Status // From is empty when the event was enqueued
	Owner    string // who holds the claim, or held it before this change
	Epoch    int64  // of that claim; 0 when it was claimed under none
	Attempts int    // after the change
	Reclaim  bool   // a lease taken back, by another or a later term than Epoch
}

// claim reports whether c took an event.
func (c *Change) claim() bool { return c.To == Processing }

// Settles reports whether the owner of the claim ended it: with done, failed, a
// retry, or by giving it back.
func (c *Change) Settles() bool { return c.From == Processing && c.To != Processing && !c.Reclaim }

// Term is the begin of a term of leadership.
type Term struct {
	Seq      int64
	At       time.Time // when the epoch committed
	Epoch    int64
	Instance string
}

// Row is an event as the outbox table has it at the end.
type Row struct {
	Event  uuid.UUID
	Status Status
}

// Log is the record of one outbox table and one leader group.
type Log struct {
	Exact   bool     // At is the time of commit; otherwise that of the statement
	Changes []Change // in the order of At; changes of one transaction are adjacent
	Terms   []Term   // in the order of At
	Rows    []Row
}

const changes = `
select seq, tx::text::bigint, {at}, event_id, entity_type, entity_id, event_version, op,
       coalesce(old_status, ''), new_status, coalesce(owner, ''), coalesce(epoch, 0), attempts, reclaim
from weftlab_history
where source = $1 and seq > $2
order by 3, min(seq) over (partition by tx), seq`

const terms = `
select seq, {at}, epoch, instance
from weftlab_terms
where group_name = $1 and seq > $2
order by 2, 1`

const position = `select case when is_called then last_value else 0 end from weftlab_seq`

// Read returns the record of table and group. It is a consistent one when nothing
// writes to the table any more.
func Read(ctx context.Context, db DB, table, group string) (*Log, error) {
	log, err := Since(ctx, db, table, group, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	log.Rows, err = collect(ctx, db, `select id, status from `+pgx.Identifier{table}.Sanitize(), scanRow)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", table, err)
	}
	return log, nil
}

// Position returns where the record is now, for [Since].
func Position(ctx context.Context, db DB) (seq int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := db.QueryRow(ctx, position).Scan(&seq); err != nil {
		return 0, fmt.Errorf("read position of history: %w", err)
	}
	return seq, nil
}

// Since returns the part of the record of table and group whose statements ran after
// seq, without Rows. It costs the size of that part, and is for looking on while a run
// lasts: the checks want all of the record.
func Since(ctx context.Context, db DB, table, group string, seq int64) (*Log, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	log := &Log{}
	if err := db.QueryRow(ctx, `select current_setting('track_commit_timestamp')::boolean`).Scan(&log.Exact); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	at := "at"
	if log.Exact {
		at = "pg_xact_commit_timestamp(tx::xid)"
	}
	var err error
	if log.Changes, err = collect(ctx, db, strings.ReplaceAll(changes, "{at}", at), scanChange, table, seq); err != nil {
		return nil, fmt.Errorf("read history of %s: %w", table, err)
	}
	if log.Terms, err = collect(ctx, db, strings.ReplaceAll(terms, "{at}", at), scanTerm, group, seq); err != nil {
		return nil, fmt.Errorf("read terms of %s: %w", group, err)
	}
	return log, nil
}

func collect[T any](ctx context.Context, db DB, sql string, scan pgx.RowToFunc[T], args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func scanChange(row pgx.CollectableRow) (c Change, err error) {
	var tx int64
	err = row.Scan(&c.Seq, &tx, &c.At, (*[16]byte)(&c.Event), &c.Key.Type, (*[16]byte)(&c.Key.ID), &c.Version, &c.Op,
		&c.From, &c.To, &c.Owner, &c.Epoch, &c.Attempts, &c.Reclaim)
	c.Tx = uint64(tx)
	return c, err
}

func scanTerm(row pgx.CollectableRow) (t Term, err error) {
	err = row.Scan(&t.Seq, &t.At, &t.Epoch, &t.Instance)
	return t, err
}

func scanRow(row pgx.CollectableRow) (r Row, err error) {
	err = row.Scan((*[16]byte)(&r.Event), &r.Status)
	return r, err
}
