package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// State is one migration of this build, or a newer one the database has.
type State struct {
	Version   int64
	Name      string
	Pending   bool
	AppliedAt time.Time // zero when pending
}

// BehindError says that the database lacks migrations this build needs.
type BehindError struct {
	Have, Want int64
	Where      string // the schema and the database
	Elsewhere  string // another schema of the database that has weft's tables, if any
}

// Error implements error.
func (e *BehindError) Error() string {
	where := cmp.Or(e.Where, "the database")
	if e.Have == 0 {
		text := "weft's tables are missing from " + where + ": run `weft migrate up`, or correct DATABASE_URL"
		if e.Elsewhere != "" {
			text += ", whose search_path does not lead to schema " + e.Elsewhere + ", which has such tables"
		}
		return text
	}
	return fmt.Sprintf("%s is at version %d, this build needs %d: run `weft migrate up`", where, e.Have, e.Want)
}

// place reads the schema, or the search_path that leads to none; the database; the role; the schemas of the search_path
// that the role may not use, of those with weft's tables before the schema where there is one; and another schema with weft's tables.
const place = `select coalesce(current_schema(), current_setting('search_path')), current_database(), current_user, coalesce((
	with path as (
		select trim(both ' "' from s.text) as name, s.place
		from unnest(string_to_array(replace(current_setting('search_path'), '$user', current_user), ',')) with ordinality as s (text, place))
	select string_agg(quote_ident(n.nspname), ', ') from path p join pg_namespace n on n.nspname = p.name
	where (current_schema() is null or exists (select from pg_tables where schemaname = n.nspname and tablename = '` + versionTable + `'))
		and not exists (select from path c where c.name = current_schema() and c.place < p.place)
		and not has_schema_privilege(n.oid, 'usage')), ''), coalesce((
	select min(quote_ident(schemaname)) from pg_tables where tablename = '` + versionTable + `' and schemaname is distinct from current_schema()), '')`

// behind returns the [*BehindError] of a database, or a [*RightsError] where the role cannot see its tables.
func behind(have int64, scan func(q string, dst ...any) error) error {
	var schema, database, role, shut, elsewhere string
	if err := scan(place, &schema, &database, &role, &shut, &elsewhere); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if shut != "" {
		return noUsage(role, shut)
	}
	return &BehindError{Have: have, Want: Latest, Where: "schema " + schema + " of database " + database, Elsewhere: elsewhere}
}

// AheadError says that the database has migrations this build does not know. That
// is a warning: migrations add first and remove a version later, so that a build
// works on the schema of its successor.
type AheadError struct{ Have, Knows int64 }

// Error implements error.
func (e *AheadError) Error() string {
	return fmt.Sprintf("the schema is at version %d, newer than version %d of this build: use the build that has migrated it", e.Have, e.Knows)
}

// SchemaError says that the search_path of the session leads to no schema that its role may use, or, where Missing is set,
// past the first one that it names.
type SchemaError struct {
	Role    string
	Missing string // the first schema of search_path
	Next    string // the one in which weft would be made instead
}

// Error implements error.
func (e *SchemaError) Error() string {
	if e.Next != "" {
		return fmt.Sprintf("schema %q, the first one of search_path, does not exist, or role %q may not use it: weft would be made in %q; "+
			"create schema %[1]q, grant usage on it, or correct search_path in the database URL, or of the role or the database", e.Missing, e.Role, e.Next)
	}
	return fmt.Sprintf("search_path names no schema that exists and role %q may use: create it, grant usage on it, or correct search_path in the database URL", e.Role)
}

// Querier is what [Check] reads with: a pgx connection, pool or transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check compares the database with this build in short reads. It returns nil, a [*BehindError], an
// [*AheadError], a [*RightsError] where the role may not use the schema, a [*RefusedError] where the schema
// has been renamed or was restored without its rows, or the error of a read.
func Check(ctx context.Context, db Querier) error {
	scan := func(q string, dst ...any) error { return db.QueryRow(ctx, q).Scan(dst...) }
	have, err := version(scan)
	if err != nil {
		return err
	}
	switch {
	case have < Latest:
		return behind(have, scan)
	case have > Latest:
		return &AheadError{Have: have, Knows: Latest}
	default:
		return renamed(scan)
	}
}

// formerSchema reads how SQL has the schema and, where it has been renamed, the name that functions there still have of it.
const formerSchema = `select quote_ident(current_schema()), coalesce((
	select quote_ident(replace(m[1], '""', '"')) from pg_proc p join pg_namespace n on n.oid = p.pronamespace cross join regexp_match(p.prosrc, '"((?:[^"]|"")+)"\.weft_history_partitions') m
	where n.nspname = current_schema() and p.proname = 'weft_history_closed' and replace(m[1], '""', '"') <> current_schema()), '')`

// renamed returns a [*RefusedError] where somebody has renamed the schema: functions and triggers lead to the former name.
func renamed(scan func(q string, dst ...any) error) error {
	var now, former string
	if err := scan(formerSchema, &now, &former); err != nil {
		return fmt.Errorf("name of the schema: %w", err)
	}
	if former == "" {
		return nil
	}
	return refuse("schema %s has been renamed, and the functions and triggers in it lead to %s, so that writes to tables with an outbox fail: alter schema %s rename to %s", now, former, now, former)
}

func readVersion(ctx context.Context, db *sql.DB) (int64, error) {
	return version(func(q string, dst ...any) error { return db.QueryRowContext(ctx, q).Scan(dst...) })
}

// version returns 0 for a database that was never migrated. Asking for the table
// first keeps an error out of the server's log at every start before that.
func version(scan func(q string, dst ...any) error) (int64, error) {
	var exists bool
	if err := scan(tableExists, &exists); err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	if !exists {
		return 0, nil
	}
	var v int64
	var lost bool
	err := scan(`select coalesce(max(version_id), 0), count(*) = 0 from `+versionTable+` where is_applied`, &v, &lost)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == codePrivilege {
		return 0, fmt.Errorf("read schema version: %w: grant select on %s to weft's role", err, versionTable)
	}
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	if lost {
		return 0, rowless(scan)
	}
	return v, nil
}

// rowless returns a [*RefusedError] where weft's tables are there and their version is not: it was a row that a dump of the schema alone leaves out.
func rowless(scan func(q string, dst ...any) error) error {
	var schema, database string
	var tables bool
	if err := scan(`select quote_ident(current_schema()), current_database(), to_regclass(quote_ident(current_schema()) || '.weft_leader') is not null`, &schema, &database, &tables); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if !tables {
		return nil
	}
	return refuse("schema %[1]s of database %[2]s has weft's tables, and no row in %[3]s, as after a restore of a dump without rows: restore these, too, at least those of %[3]s and weft_outbox (pg_dump --data-only --table='%[1]s.%[3]s' --table='%[1]s.weft_outbox')",
		schema, database, versionTable)
}

const tableExists = `select exists (select 1 from pg_catalog.pg_tables
	where schemaname = current_schema() and tablename = '` + versionTable + `')`

// Status lists the migrations in order. It reads only and takes no lock.
func Status(ctx context.Context, url string) ([]State, error) {
	db, err := open(url)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	applied := map[int64]time.Time{}
	scan := func(q string, dst ...any) error { return db.QueryRowContext(ctx, q).Scan(dst...) }
	have, err := version(scan)
	if err != nil {
		return nil, err
	}
	if have > 0 {
		if applied, err = readApplied(ctx, db); err != nil {
			return nil, fmt.Errorf("read schema version: %w", err)
		}
	} else if why := behind(0, scan); !errors.As(why, new(*BehindError)) {
		return nil, why
	}
	last := Latest
	for v := range applied {
		last = max(last, v)
	}
	var all []State
	for v := versionContract; v <= last; v++ {
		at, ok := applied[v]
		if !ok && v > Latest {
			continue
		}
		all = append(all, State{Version: v, Name: migrationName(v), Pending: !ok, AppliedAt: at})
	}
	return all, nil
}

func readApplied(ctx context.Context, db *sql.DB) (map[int64]time.Time, error) {
	rows, err := db.QueryContext(ctx, `select version_id, max(tstamp) at time zone 'UTC'
		from `+versionTable+` where is_applied and version_id > 0 group by version_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	applied := map[int64]time.Time{}
	for rows.Next() {
		var v int64
		var at time.Time
		if err := rows.Scan(&v, &at); err != nil {
			return nil, err
		}
		applied[v] = at
	}
	return applied, rows.Err()
}
