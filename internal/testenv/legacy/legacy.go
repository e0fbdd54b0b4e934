package legacy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Counts says how many rows of one outbox table are in which state.
type Counts struct {
	Pending    int // ready
	Retrying   int // pending with next_retry_at, in the past or up to two seconds ahead
	Processing int // claimed by a worker that died; the lease has expired
	Done       int
	Failed     int
}

// Total is the number of rows.
func (c Counts) Total() int { return c.Pending + c.Retrying + c.Processing + c.Done + c.Failed }

// Filled says what [Fill] made.
type Filled struct {
	Search, Chronicle Counts
	SearchIndex       int // documents that Elasticsearch should hold when all is done
}

// deadWorker is the owner of the rows in processing.
const deadWorker = "outbox-worker-wl-app-02-4711"

// Fill inserts n outbox rows, three quarters of them search events, with the rows of
// search_index, chronicle_events and chronicle_entries that belong to them.
//
// Of the events, in the order they occurred, the first 60 % are done, one in 40 of
// those failed; in the next 3 % an entity's first event is in processing, the rest
// pending. One pending event in 25 waits for a retry, if it is the first unsettled one
// of its entity. Every twelfth entity ends in a delete and has no row in search_index;
// one in 97 lost its row without one.
func Fill(ctx context.Context, db DB, n int) (f Filled, err error) {
	chronicles := n / 4
	if err := execute(ctx, db, fmt.Sprintf(fillSearch, n-chronicles), fmt.Sprintf(fillChronicle, chronicles)); err != nil {
		return f, err
	}
	if f.Search, err = count(ctx, db, "search_outbox_events"); err != nil {
		return f, err
	}
	if f.Chronicle, err = count(ctx, db, "chronicle_outbox_events"); err != nil {
		return f, err
	}
	if err := db.QueryRow(ctx, `select count(*) from search_index`).Scan(&f.SearchIndex); err != nil {
		return f, fmt.Errorf("count search_index: %w", err)
	}
	return f, nil
}

func count(ctx context.Context, db DB, table string) (c Counts, err error) {
	err = db.QueryRow(ctx, `select
		count(*) filter (where status = 'pending' and next_retry_at is null),
		count(*) filter (where status = 'pending' and next_retry_at is not null),
		count(*) filter (where status = 'processing'),
		count(*) filter (where status = 'done'),
		count(*) filter (where status = 'failed') from `+table).
		Scan(&c.Pending, &c.Retrying, &c.Processing, &c.Done, &c.Failed)
	if err != nil {
		return c, fmt.Errorf("count %s: %w", table, err)
	}
	return c, nil
}

// states derives the state of event i of n, in the order they occurred; first says
// that it is the first unsettled one of its entity.
const states = `
	case when i <= n * 0.6 and i %% 40 = 0 then 'failed'
	     when i <= n * 0.6 then 'done'
	     when i <= n * 0.63 and first then 'processing'
	     else 'pending' end as status,
	first and i > n * 0.63 and i %% 25 = 0 as waits`

// row holds the values for the columns in outboxColumns, from the states above.
const row = `
		gen_random_uuid(), entity_type, entity_id, op, version, at, status,
		case when status = 'processing' or status = 'done' and i %% 10 = 0 then '` + deadWorker + `' end,
		case when status = 'processing' then now() - interval '10 min' - i %% 300 * interval '1 s' end,
		case when status = 'failed' then 10 when waits then 3 when status = 'processing' then 1 else 0 end,
		case when waits then now() + (i %% 7 - 5) * interval '1 s' end,
		case when status = 'pending' and not waits then at else at + interval '3 s' end,
		case when status = 'done' then at + interval '3 s' end,
		case when status = 'failed' then 'RequestError(400, mapper_parsing_exception)'
		     when waits then 'ConnectionError: connection refused' end,
		case when status = 'processing' then now() - interval '10 min 30 s' - i %% 300 * interval '1 s' end,
		case when status = 'failed' then 'es_4xx' when waits then 'es_connect' end,
		case when i %% 3 = 0 then '00-' || md5(i::text) || '-' || left(md5('span' || i), 16) || '-01' end,
		case when i %% 400 = 0 then 1 else 0 end`

const outboxColumns = `id, entity_type, entity_id, op, event_version, created_at, status, owner, lease_until,
		attempts, next_retry_at, updated_at, processed_at, error,
		processing_started_at, error_reason, traceparent, replay_count`

// The number of entities is a quarter of the number of events; the last event of an
// entity decides whether it is there.
const fillSearch = `with size as (select %d as n),
	event as (
		select i, n, now() - (n - i) * interval '40 ms' as at,
			hashint8(i)::bigint & 2147483647 as h, greatest(n / 4, 1) as entities
		from size, generate_series(1, n) i),
	named as (
		select *, h %% entities as e,
			case when h %% entities %% 20 < 15 then 'block' when h %% entities %% 20 < 17 then 'book'
			     when h %% entities %% 20 = 17 then 'tag' when h %% entities %% 20 = 18 then 'library'
			     else 'bookshelf' end as entity_type,
			md5('entity' || h %% entities)::uuid as entity_id
		from event),
	ordered as (
		select *, (extract(epoch from at) * 1000000)::bigint as version,
			lead(i) over entity is null as last,
			i > n * 0.6 and coalesce(lag(i) over entity, 0) <= n * 0.6 as first
		from named window entity as (partition by e order by i)),
	stated as (
		select *, case when last and e %% 12 = 0 then 'delete' else 'upsert' end as op, ` + states + ` from ordered),
	rows as (
		insert into search_outbox_events (` + outboxColumns + `) select ` + row + ` from stated)
	insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, created_at, updated_at, event_version, library_id)
	select gen_random_uuid(), entity_type, entity_id,
		'Notes of ' || entity_type || ' ' || e || ': ' || repeat(md5(e::text) || ' ', 1 + (e %% 12)::int) || 'edit ' || i,
		case when e %% 5 > 0 then 'Notes of ' || entity_type || ' ' || e end,
		case when e %% 4 > 0 then (e %% 100) / 100.0 end, at, at, version,
		case when e %% 6 > 0 then md5('library' || e %% 30)::uuid end
	from stated where last and op = 'upsert' and e %% 97 <> 5`

const fillChronicle = `with size as (select %d as n),
	book as (insert into books select md5('book' || b)::uuid, 'Book ' || b from generate_series(0, 49) b returning id),
	block as (
		insert into blocks select md5('block' || b)::uuid, md5('book' || b %% 50)::uuid from generate_series(0, 499) b returning id),
	event as (
		select i, n, now() - (n - i) * interval '120 ms' as at, gen_random_uuid() as entity_id,
			'chronicle_event' as entity_type, 'upsert' as op, 0::bigint as version, i > n * 0.6 as first
		from size, generate_series(1, n) i),
	stated as materialized (select *, ` + states + ` from event),
	told as (
		insert into chronicle_events (id, event_type, book_id, block_id, actor_id, payload, occurred_at, created_at, correlation_id)
		select entity_id, (array['book_created', 'book_opened', 'block_updated', 'block_moved'])[1 + i %% 4],
			md5('book' || i %% 500 %% 50)::uuid, case when i %% 4 > 1 then md5('block' || i %% 500)::uuid end,
			md5('actor' || i %% 9)::uuid, jsonb_build_object('n', i), at, at, 'c-' || i
		from stated returning *),
	entries as (
		insert into chronicle_entries (id, event_type, book_id, block_id, actor_id, occurred_at, created_at, payload, summary, projection_version, updated_at)
		select t.id, t.event_type, t.book_id, t.block_id, t.actor_id, t.occurred_at, t.created_at, t.payload, t.event_type, 1, t.created_at
		from told t join stated s on s.entity_id = t.id where s.status = 'done')
	insert into chronicle_outbox_events (` + outboxColumns + `) select ` + row + ` from stated`

// Produce is one edit as the application makes it: a row of search_index and its
// event, then a chronicle event and its own, in one transaction that names every
// column the ORM has a client-side default for. Safe for concurrent use.
func Produce(ctx context.Context, db DB) error {
	current, err := isCurrent(ctx, db)
	if err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	columns, zero := "id, entity_type, entity_id, op, event_version, created_at, status, attempts, updated_at", ""
	if current {
		columns, zero = columns+", replay_count", ", 0"
	}
	entity, book, told := uuid.New(), uuid.New(), uuid.New()
	version := time.Now().UnixMicro()
	var batch pgx.Batch
	batch.Queue(`insert into search_index (id, entity_type, entity_id, text, created_at, updated_at, event_version)
		values (gen_random_uuid(), 'block', $1, 'Written while weft moved in', now(), now(), $2)`, entity, version)
	batch.Queue(`insert into search_outbox_events (`+columns+`)
		values (gen_random_uuid(), 'block', $1, 'upsert', $2, now(), 'pending', 0, now()`+zero+`)`, entity, version)
	batch.Queue(`insert into books (id, title) values ($1, 'A new book')`, book)
	batch.Queue(`insert into chronicle_events (id, event_type, book_id, occurred_at, created_at)
		values ($1, 'book_created', $2, now(), now())`, told, book)
	batch.Queue(`insert into chronicle_outbox_events (`+columns+`)
		values (gen_random_uuid(), 'chronicle_event', $1, 'upsert', 0, now(), 'pending', 0, now()`+zero+`)`, told)
	if err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return tx.SendBatch(ctx, &batch).Close() }); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	return nil
}

// DB is a pgx connection, pool or transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Create makes the tables of a current deployment in the current schema.
func Create(ctx context.Context, db DB) error {
	return execute(ctx, db, slices.Concat(content(), outbox("search"), outbox("chronicle"), chronicle())...)
}

// MakeOld makes the tables, which may be filled, those of an early deployment: without replay_count and
// last_replayed_*, traceparent and tracestate, processing_started_at, error_reason,
// search_index.library_id, the envelope of chronicle_events, and environment_sentinel.
func MakeOld(ctx context.Context, db DB) error {
	const later = ` drop processing_started_at, drop error_reason, drop traceparent, drop tracestate,
		drop replay_count, drop last_replayed_at, drop last_replayed_by, drop last_replayed_reason`
	return execute(ctx, db,
		`alter table search_outbox_events`+later, `alter table chronicle_outbox_events`+later,
		`alter table search_index drop library_id`,
		`alter table chronicle_events drop schema_version, drop provenance, drop source, drop actor_kind, drop correlation_id`,
		`drop table environment_sentinel`)
}

func execute(ctx context.Context, db DB, statements ...string) error {
	for _, s := range statements {
		if _, err := db.Exec(ctx, s); err != nil {
			return fmt.Errorf("legacy schema: %s: %w", s, err)
		}
	}
	return nil
}

func indexes(table string, columns ...string) []string {
	var all []string
	for _, c := range columns {
		all = append(all, fmt.Sprintf("create index ix_%s_%s on %s (%s)", table, c, table, c))
	}
	return all
}

// content is what the outboxes tell about: books and blocks by their keys only, and
// the denormalised rows that become documents.
func content() []string {
	all := []string{
		`create table books (id uuid primary key, title varchar(255) not null)`,
		`create table blocks (id uuid primary key, book_id uuid not null references books (id) on delete cascade)`,
		`create table search_index (
			id uuid not null primary key,
			entity_type varchar(50) not null,
			library_id uuid,
			entity_id uuid not null,
			text text not null,
			snippet text,
			rank_score double precision,
			created_at timestamptz not null,
			updated_at timestamptz not null,
			event_version bigint not null,
			constraint uq_search_index_entity unique (entity_type, entity_id))`,
		`create index idx_search_index_updated on search_index (updated_at)`,
		`create index idx_search_index_entity on search_index (entity_type, entity_id)`,
		`create table environment_sentinel (
			id integer primary key, project text not null default 'wordloom', env text not null,
			created_at timestamptz not null default now())`,
		`insert into environment_sentinel (id, env) values (1, 'test')`,
	}
	return append(all, indexes("search_index", "entity_type", "entity_id", "event_version")...)
}

func outbox(kind string) []string {
	table := kind + "_outbox_events"
	all := []string{
		`create table ` + table + ` (
			id uuid not null primary key,
			entity_type varchar(50) not null,
			entity_id uuid not null,
			op varchar(20) not null,
			event_version bigint not null,
			created_at timestamptz not null,
			status varchar(20) not null,
			owner varchar(120),
			lease_until timestamptz,
			attempts integer not null,
			next_retry_at timestamptz,
			updated_at timestamptz not null,
			processed_at timestamptz,
			processing_started_at timestamptz,
			error_reason varchar(80),
			traceparent varchar(512),
			tracestate text,
			replay_count integer not null,
			last_replayed_at timestamptz,
			last_replayed_by varchar(120),
			last_replayed_reason text,
			error text)`,
		fmt.Sprintf(`create index idx_%s_outbox_entity on %s (entity_type, entity_id)`, kind, table),
		fmt.Sprintf(`create index idx_%s_outbox_processed on %s (processed_at)`, kind, table),
		fmt.Sprintf(`create index idx_%s_outbox_claim on %s (status, next_retry_at, lease_until, event_version)`, kind, table),
	}
	return append(all, indexes(table, "entity_type", "entity_id", "event_version", "status", "owner", "lease_until", "next_retry_at", "processed_at",
		"processing_started_at", "error_reason")...)
}

func chronicle() []string {
	references := `
		book_id uuid not null references books (id) on delete cascade,
		block_id uuid references blocks (id) on delete set null,`
	all := []string{
		`create table chronicle_events (
			id uuid not null primary key,
			event_type varchar(64) not null,` + references + `
			actor_id uuid,
			payload jsonb not null default '{}',
			schema_version integer default 1,
			provenance varchar(32) default 'unknown',
			source varchar(64) default 'unknown',
			actor_kind varchar(32) default 'unknown',
			correlation_id varchar(128),
			occurred_at timestamptz not null,
			created_at timestamptz not null)`,
		`create index ix_chronicle_events_book_time on chronicle_events (book_id, occurred_at desc)`,
		`create table chronicle_entries (
			id uuid not null primary key,
			event_type varchar(64) not null,` + references + `
			actor_id uuid,
			occurred_at timestamptz not null,
			created_at timestamptz not null,
			payload jsonb not null default '{}',
			summary text,
			projection_version integer not null,
			updated_at timestamptz not null)`,
		`create index ix_chronicle_entries_book_time on chronicle_entries (book_id, occurred_at desc)`,
	}
	for _, t := range []string{"chronicle_events", "chronicle_entries"} {
		all = append(all, indexes(t, "event_type", "book_id", "block_id", "actor_id")...)
	}
	return all
}

// isCurrent reports which of the two schemas the database has. An old one that weft
// has adopted is a current one.
func isCurrent(ctx context.Context, db DB) (current bool, err error) {
	err = db.QueryRow(ctx, `select exists (select 1 from pg_attribute
		where attrelid = to_regclass('search_outbox_events') and attname = 'replay_count' and not attisdropped)`).Scan(&current)
	return current, err
}
