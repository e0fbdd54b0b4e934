package migrations_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
)

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("error: got nil, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error: got %q, want %q in it", err, p)
		}
	}
}

// TestMisfitsAreRefusedBeforeAnyChange alters one thing of a deployment that fits.
func TestMisfitsAreRefusedBeforeAnyChange(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		alter string
		want  []string
	}{
		"NarrowInteger":   {`alter table search_outbox_events alter event_version type integer`, []string{"event_version", "search_outbox_events", "is integer", "expects bigint"}},
		"TimeWithoutZone": {`alter table chronicle_outbox_events alter lease_until type timestamp`, []string{"lease_until", "chronicle_outbox_events", "timestamp with time zone"}},
		"TextID":          {`alter table search_index alter entity_id type text`, []string{"entity_id", "search_index", "is text", "expects uuid"}},
		"NarrowOwner":     {`alter table search_outbox_events alter owner type varchar(40)`, []string{"owner", "character varying(40)", "character varying(120)"}},
		"NoEntity":        {`alter table search_outbox_events drop entity_id`, []string{"search_outbox_events", "no column entity_id (uuid)"}},
		"View": {`alter table chronicle_entries rename to entries; create view chronicle_entries as select * from entries`,
			[]string{"chronicle_entries", "not an ordinary table"}},
		"Children":    {`create table more_events () inherits (search_outbox_events)`, []string{"search_outbox_events", "has inheritance children"}},
		"Child":       {`create table base (); alter table search_outbox_events inherit base`, []string{"search_outbox_events", "inherits from another table"}},
		"Partitioned": {`alter table search_outbox_events rename to o; create table search_outbox_events (like o) partition by list (op)`, []string{"search_outbox_events", "not an ordinary table"}},
		"OtherBehind": {`alter table search_outbox_events add behind text`, []string{"behind", "is text", "expects bigint"}},
		"NotNullError": {`alter table search_outbox_events alter error set default ''; update search_outbox_events set error = ''; alter table search_outbox_events alter error set not null`,
			[]string{"column error", "search_outbox_events", "must not be null", "alter column error drop not null"}},
		"SeveralAtOnce": {`alter table search_outbox_events alter event_version type integer; alter table chronicle_entries alter payload type text`,
			[]string{"event_version", "payload", "expects jsonb"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testenv.Schema(t)
			pool := testenv.Pool(t, dsn)
			if err := legacy.Create(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			exec(t, pool, c.alter)
			before := definition(t, pool)
			_, err := migrations.Up(t.Context(), dsn)
			wantError(t, err, append(c.want, "nothing was changed")...)
			if after := definition(t, pool); after != before {
				t.Errorf("schema changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

// definition is the shape of the current schema as text.
func definition(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return strings.Join(query[string](t, pool, `select format('%s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
		from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
		where c.relnamespace = quote_ident(current_schema())::regnamespace order by 1`), "\n")
}

func TestWiderTypesAreAdopted(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t)
	pool := testenv.Pool(t, dsn)
	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `alter table search_outbox_events alter owner type text, alter attempts type bigint, alter traceparent type varchar(600)`)
	exec(t, pool, `alter table search_outbox_events set (autovacuum_vacuum_scale_factor = 0.05)`)
	up(t, dsn)
	if got := one[string](t, pool, `select array_to_string(reloptions, ' ') from pg_class where oid = 'search_outbox_events'::regclass`); !strings.Contains(got, "autovacuum_vacuum_scale_factor=0.05") {
		t.Errorf("reloptions: got %s, want the operator's own scale factor kept", got)
	}
	wantProducerDefaults(t, dsn)
}

func TestSearchPath(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	t.Run("NamesNoSchema", func(t *testing.T) {
		_, err := migrations.Up(t.Context(), with(t, dsn, "search_path", "nowhere"))
		wantError(t, err, "search_path names no schema")
	})
	t.Run("FirstIsMissing", func(t *testing.T) {
		for path, name := range map[string]string{"Nowhere,app": "nowhere", `"No,""where""",app`: `"No,\"where\""`} {
			_, err := migrations.Up(t.Context(), with(t, dsn, "search_path", path))
			wantError(t, err, "schema ", name, "does not exist", `made in "app"`, "create schema", "correct search_path")
		}
		if got := query[string](t, pool, `select tablename::text from pg_tables where schemaname = 'app'`); len(got) != 0 {
			t.Errorf("tables made: got %v, want none", got)
		}
	})
	t.Run("IsLongerThanAName", func(t *testing.T) {
		long := strings.Repeat("s", 62)
		for _, path := range []string{long + "12,app", `"` + long + `12",app`} {
			exec(t, pool, `create schema "`+long+`1"`)
			if _, err := migrations.Up(t.Context(), with(t, dsn, "search_path", path)); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			exec(t, pool, `drop schema "`+long+`1" cascade`)
		}
	})
	t.Run("WouldHideTheApplication", func(t *testing.T) {
		if err := legacy.Create(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		exec(t, pool, "create schema mine")
		_, err := migrations.Up(t.Context(), with(t, dsn, "search_path", "mine,app"))
		wantError(t, err, "search_outbox_events", `schema "app"`, "search_path")
		if got := query[string](t, pool, `select tablename::text from pg_tables where schemaname = 'mine'`); len(got) != 0 {
			t.Errorf("tables made: got %v, want none", got)
		}
	})
}

func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t)
	_, err := migrations.Up(t.Context(), with(t, dsn, "default_transaction_read_only", "on"))
	wantError(t, err, "read-only", "primary")
}

func TestPrivileges(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	role := "weft_test_" + strings.ReplaceAll(one[string](t, pool, "select gen_random_uuid()::text"), "-", "")
	exec(t, pool, `create role `+role+` login password 'pw'`)
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role)
		if err != nil {
			t.Errorf("drop role: %v", err)
		}
	})
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "pw")
	limited := u.String()

	_, err = migrations.Up(t.Context(), limited)
	wantError(t, err, role, "grant usage")
	exec(t, pool, `grant usage on schema app to `+role)
	_, err = migrations.Up(t.Context(), limited)
	wantError(t, err, role, `schema "app"`, "grant create")

	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `grant create on schema app to `+role)
	before := definition(t, pool)
	_, err = migrations.Up(t.Context(), limited)
	wantError(t, err, role, "search_outbox_events", "belongs to")
	if after := definition(t, pool); after != before {
		t.Errorf("schema changed:\n%s\nbefore:\n%s", after, before)
	}

	up(t, dsn)
	weak := testenv.Pool(t, limited)
	wantError(t, migrations.Check(t.Context(), weak), "grant select", "weft_schema_version")
}
