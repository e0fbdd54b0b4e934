package legacy

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is a pgx connection, pool or transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Create makes the tables of a current deployment in the current schema.
func Create(ctx context.Context, db DB) error { return create(ctx, db, true) }

// CreateOld makes those of an early deployment: without replay_count and
// last_replayed_*, traceparent and tracestate, processing_started_at, error_reason,
// search_index.library_id, the envelope of chronicle_events, and environment_sentinel.
func CreateOld(ctx context.Context, db DB) error { return create(ctx, db, false) }

func create(ctx context.Context, db DB, current bool) error {
	var statements []string
	statements = append(statements, content(current)...)
	statements = append(statements, outbox("search", current)...)
	statements = append(statements, outbox("chronicle", current)...)
	statements = append(statements, chronicle(current)...)
	if current {
		statements = append(statements,
			`create table environment_sentinel (
				id integer primary key, project text not null default 'wordloom', env text not null,
				created_at timestamptz not null default now())`,
			`insert into environment_sentinel (id, env) values (1, 'test')`)
	}
	for _, s := range statements {
		if _, err := db.Exec(ctx, s); err != nil {
			return fmt.Errorf("create legacy schema: %s: %w", s, err)
		}
	}
	return nil
}

func only(current bool, s string) string {
	if current {
		return s
	}
	return ""
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
func content(current bool) []string {
	all := []string{
		`create table books (id uuid primary key, title varchar(255) not null)`,
		`create table blocks (id uuid primary key, book_id uuid not null references books (id) on delete cascade)`,
		`create table search_index (
			id uuid not null primary key,
			entity_type varchar(50) not null,` + only(current, `
			library_id uuid,`) + `
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
	}
	return append(all, indexes("search_index", "entity_type", "entity_id", "event_version")...)
}

func outbox(kind string, current bool) []string {
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
			processed_at timestamptz,` + only(current, `
			processing_started_at timestamptz,
			error_reason varchar(80),
			traceparent varchar(512),
			tracestate text,
			replay_count integer not null,
			last_replayed_at timestamptz,
			last_replayed_by varchar(120),
			last_replayed_reason text,`) + `
			error text)`,
		fmt.Sprintf(`create index idx_%s_outbox_entity on %s (entity_type, entity_id)`, kind, table),
		fmt.Sprintf(`create index idx_%s_outbox_processed on %s (processed_at)`, kind, table),
		fmt.Sprintf(`create index idx_%s_outbox_claim on %s (status, next_retry_at, lease_until, event_version)`, kind, table),
	}
	all = append(all, indexes(table, "entity_type", "entity_id", "event_version", "status", "owner", "lease_until", "next_retry_at", "processed_at")...)
	if current {
		all = append(all, indexes(table, "processing_started_at", "error_reason")...)
	}
	return all
}

func chronicle(current bool) []string {
	references := `
		book_id uuid not null references books (id) on delete cascade,
		block_id uuid references blocks (id) on delete set null,`
	all := []string{
		`create table chronicle_events (
			id uuid not null primary key,
			event_type varchar(64) not null,` + references + `
			actor_id uuid,
			payload jsonb not null default '{}',` + only(current, `
			schema_version integer default 1,
			provenance varchar(32) default 'unknown',
			source varchar(64) default 'unknown',
			actor_kind varchar(32) default 'unknown',
			correlation_id varchar(128),`) + `
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

// list joins columns, the later ones only in a current schema.
func list(current bool, always string, more ...string) string {
	if !current {
		return always
	}
	return always + ", " + strings.Join(more, ", ")
}
