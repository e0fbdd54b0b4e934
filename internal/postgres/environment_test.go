package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestCheckEnvironment(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, database, sentinel, want string
		have, source                   string // of the error; empty when allowed
	}{
		{name: "GuardOff", database: "x_dev", sentinel: "dev"},
		{name: "SentinelAgrees", database: "x", sentinel: "test", want: "test"},
		{name: "SentinelBeatsName", database: "x_test", sentinel: "dev", want: "test", have: "dev", source: "environment_sentinel"},
		{name: "LongSpelling", database: "x", sentinel: "development", want: "dev"},
		{name: "NameTest", database: "x_test", want: "test"},
		{name: "NameDev", database: "x_dev", want: "dev"},
		{name: "NameOfAnother", database: "x_dev", want: "test", have: "dev", source: "its name"},
		{name: "NoHint", database: "x", want: "sandbox"},
		{name: "NoHintOther", database: "x", want: "dev", have: "sandbox", source: "its name"},
		{name: "EmptySentinel", database: "x_test", sentinel: "-", want: "test"},
		{name: "ForeignSentinel", database: "x_test", sentinel: "prod", want: "test", have: "prod", source: "environment_sentinel"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, testenv.Schema(t))
			if tc.sentinel != "" {
				exec(t, conn, "create table environment_sentinel(id int primary key, env text not null)")
			}
			if tc.sentinel != "" && tc.sentinel != "-" {
				exec(t, conn, "insert into environment_sentinel values (1, $1), (2, 'other')", tc.sentinel)
			}
			err := postgres.CheckEnvironment(t.Context(), named{conn, tc.database}, tc.want)
			if tc.have == "" {
				if err != nil {
					t.Errorf("got %v, want no error", err)
				}
				return
			}
			e, ok := errors.AsType[*postgres.EnvironmentError](err)
			if !ok || e.Have != tc.have || e.Want != tc.want || e.Source != tc.source {
				t.Fatalf("got %v, want %s against %s by %s", err, tc.want, tc.have, tc.source)
			}
			for _, part := range []string{"WORDLOOM_ENV is " + tc.want, `"` + tc.database + `" is ` + tc.have, "set WORDLOOM_ENV=" + tc.have} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %q, want %q in it", err, part)
				}
			}
		})
	}
}

func TestCheckEnvironmentUnreadable(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t)
	name := role(t, dsn, "")
	owner := connect(t, dsn)
	exec(t, owner, "create table environment_sentinel(id int primary key, env text not null)")
	var schema string
	if err := owner.QueryRow(t.Context(), "select current_schema()").Scan(&schema); err != nil {
		t.Fatal(err)
	}
	exec(t, owner, "grant usage on schema "+schema+" to "+name)
	t.Cleanup(func() { _, _ = owner.Exec(context.Background(), "drop owned by "+name) })
	conn := connect(t, with(t, dsn, func(u *url.URL, _ url.Values) { u.User = url.User(name) }))
	err := postgres.CheckEnvironment(t.Context(), conn, "test")
	if k, _ := postgres.Diagnose(err); k != postgres.PermissionDenied {
		t.Errorf("got %v, want a refusal: a guard that cannot look does not allow", err)
	}
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// named stands in for a database of another name.
type named struct {
	*pgx.Conn
	name string
}

func (n named) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return n.Conn.QueryRow(ctx, strings.Replace(sql, "current_database()", "'"+n.name+"'::text", 1), args...)
}
