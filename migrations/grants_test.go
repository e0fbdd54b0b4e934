package migrations_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

const grantsFile = "../deploy/postgres/grants.sql"

// allTables gives both outbox tables one mode.
func allTables(finished string, retention bool) []migrations.Mode {
	return []migrations.Mode{{Table: "search_outbox_events", Finished: finished, Retention: retention}, {Table: "chronicle_outbox_events", Finished: finished, Retention: retention}}
}

// TestGrantsFile holds that the file for those who grant by hand says what this build
// needs. UPDATE=1 writes it.
func TestGrantsFile(t *testing.T) {
	t.Parallel()
	base := migrations.GrantSQL("public", "weft")
	want := `-- What weft run needs, as weft migrate grant weft gives it; made by go test ./migrations.
-- By the owner of the tables, after each weft migrate up.

` + strings.Join(base, ";\n") + ";\n"
	for _, more := range []struct {
		what  string
		modes []migrations.Mode
	}{
		{"outbox.finished is archive", allTables("archive", false)},
		{"outbox.finished is delete", allTables("delete", false)},
		{"outbox.retention is set, finished events are kept or deleted", allTables("keep", true)},
		{"outbox.retention is set, finished events are archived", allTables("archive", true)},
	} {
		want += "\n-- Besides, where " + more.what + ":\n--\n"
		for _, statement := range migrations.GrantSQL("public", "weft", more.modes...) {
			// Of a right on the events themselves only delete is new.
			if at := strings.Index(statement, "delete on public."); strings.HasPrefix(statement, "grant select, update") && at > 0 {
				statement = "grant " + statement[at:]
			}
			if !slices.Contains(base, statement) {
				want += "-- " + statement + ";\n"
			}
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(grantsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(grantsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("deploy/postgres/grants.sql is not what this build needs; run UPDATE=1 go test ./migrations -run TestGrantsFile. Got:\n%s\nwant:\n%s", got, want)
	}
}

// A role without a right is told which, on what, and the statement that fixes it; with all
// of them it is told nothing.
func TestRights(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	owner := testenv.Pool(t, dsn)
	user := testenv.Runner(t, dsn)
	name := user.Username()
	pool := testenv.Pool(t, testenv.As(t, dsn, user))
	if err := migrations.CheckRights(t.Context(), pool); err != nil {
		t.Fatalf("with all rights: %v", err)
	}
	for _, tc := range []struct{ revoke, want, fix string }{
		{"select on search_index", "select on search_index", `grant select on "public"."search_index" to "` + name + `"`},
		{"update (status, owner) on search_outbox_events", "update (status, owner) on search_outbox_events",
			`grant update (status, owner) on "public"."search_outbox_events" to "` + name + `"`},
		{"insert, update on weft_leader", "insert, update on weft_leader", `grant insert, update on "public"."weft_leader" to "` + name + `"`},
		{"select on weft_schema_version", "select on weft_schema_version", `grant select on "public"."weft_schema_version" to "` + name + `"`},
	} {
		exec(t, owner, "revoke "+tc.revoke+" from "+name)
		err := migrations.CheckRights(t.Context(), pool)
		var rights *migrations.RightsError
		if !errors.As(err, &rights) {
			t.Fatalf("without %s: got %v, want a RightsError", tc.revoke, err)
		}
		for _, want := range []string{"role \"" + name + "\" lacks " + tc.want, tc.fix, "weft migrate grant " + name} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("without %s: got %q, want %q in it", tc.revoke, err, want)
			}
		}
		for _, statement := range rights.Grants {
			exec(t, owner, statement)
		}
		if err := migrations.CheckRights(t.Context(), pool); err != nil {
			t.Errorf("after %q: %v", rights.Grants, err)
		}
	}

	// What people read is granted, and not missed by an instance.
	exec(t, owner, "revoke select on weft_inflight, search_outbox_events_live, search_outbox_history from "+name)
	if err := migrations.CheckRights(t.Context(), pool); err != nil {
		t.Errorf("without the views: %v", err)
	}
	// Each mode takes its own rights on its own table, and what grants them satisfies it.
	for _, tc := range []struct {
		modes []migrations.Mode
		want  []string
	}{
		{[]migrations.Mode{{Table: "search_outbox_events", Finished: "delete"}}, []string{"delete on search_outbox_events"}},
		{[]migrations.Mode{{Table: "chronicle_outbox_events", Finished: "archive"}}, []string{"delete on chronicle_outbox_events",
			"insert on chronicle_outbox_history", "execute on weft_history_attach(text, date)", "execute on weft_history_index(text, text)"}},
		{[]migrations.Mode{{Table: "chronicle_outbox_events", Finished: "keep", Retention: true}}, []string{"execute on weft_history_drop(text, text)"}},
	} {
		err := migrations.CheckRights(t.Context(), pool, tc.modes...)
		rights, ok := errors.AsType[*migrations.RightsError](err)
		if !ok || !slices.Equal(rights.Missing, tc.want) {
			t.Errorf("modes %v: got %v, want %q to be missing", tc.modes, err, tc.want)
			continue
		}
		for _, statement := range rights.Grants {
			exec(t, owner, statement)
		}
		if err := migrations.CheckRights(t.Context(), pool, tc.modes...); err != nil {
			t.Errorf("modes %v after %q: %v", tc.modes, rights.Grants, err)
		}
	}
	if err := migrations.CheckRights(t.Context(), pool, allTables("archive", true)...); err == nil || !strings.Contains(err.Error(), "search_outbox_history") {
		t.Errorf("archive for the other table: got %v, want its rights to be missing", err)
	}
	if err := migrations.Grant(t.Context(), dsn, name, allTables("archive", true)...); err != nil {
		t.Fatal(err)
	}
	if err := migrations.CheckRights(t.Context(), pool, allTables("archive", true)...); err != nil {
		t.Errorf("after the grant: %v", err)
	}

	exec(t, owner, "revoke all on all tables in schema public from "+name)
	err := migrations.CheckRights(t.Context(), pool)
	if err == nil || !strings.Contains(err.Error(), "more: run `weft migrate grant "+name+"`") || strings.Contains(err.Error(), "grant select") {
		t.Errorf("without any: got %v, want three of them, how many more, and the one command that gives all", err)
	}
	exec(t, owner, "revoke usage on schema public from public")
	exec(t, owner, "revoke usage on schema public from "+name)
	err = migrations.CheckRights(t.Context(), pool)
	if err == nil || !strings.Contains(err.Error(), "lacks usage on schema public: grant usage on schema public to ") {
		t.Errorf("without the right to use the schema: got %v", err)
	}
	if checked := migrations.Check(t.Context(), pool); fmt.Sprint(checked) != fmt.Sprint(err) {
		t.Errorf("version without it: got %v, want %v", checked, err)
	}
	if _, status := migrations.Status(t.Context(), testenv.As(t, dsn, user)); fmt.Sprint(status) != fmt.Sprint(err) {
		t.Errorf("migrations without it: got %v, want %v", status, err)
	}
	exec(t, owner, "create schema shut; create schema beside; grant usage on schema beside to "+name)
	for path, want := range map[string]string{`"$user",public,beside`: fmt.Sprint(err), "shut,beside": "weft's tables are missing from schema beside"} {
		next := testenv.Pool(t, testenv.As(t, with(t, dsn, "search_path", path), user))
		if err := migrations.Check(t.Context(), next); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("search_path %s, which leads past it: got %v, want %s", path, err, want)
		}
	}
	next := testenv.Pool(t, testenv.As(t, with(t, dsn, "search_path", "beside,public"), user))
	if err := migrations.Check(t.Context(), next); !errors.As(err, new(*migrations.BehindError)) {
		t.Errorf("a schema behind its own: got %v, want a BehindError", err)
	}
	exec(t, owner, "alter schema public rename to "+name)
	next = testenv.Pool(t, testenv.As(t, with(t, dsn, "search_path", `"$user",beside`), user))
	if err := migrations.Check(t.Context(), next); err == nil || !strings.Contains(err.Error(), "lacks usage on schema "+name) {
		t.Errorf("a schema of the role's name: got %v", err)
	}
	exec(t, owner, "alter schema "+name+" rename to mislaid")
	var behind *migrations.BehindError
	if err := migrations.CheckRights(t.Context(), pool); !errors.As(err, &behind) || !strings.Contains(err.Error(), `public of database `) {
		t.Errorf("without the schema: got %v, want a BehindError that names it", err)
	}
}

func TestGrantNeedsTheTables(t *testing.T) {
	t.Parallel()
	dsn := testenv.Schema(t)
	var behind *migrations.BehindError
	if err := migrations.Grant(t.Context(), dsn, "nobody"); !errors.As(err, &behind) {
		t.Errorf("before the migrations: got %v, want a BehindError", err)
	}
	up(t, dsn)
	wantError(t, migrations.Grant(t.Context(), dsn, `no"body`), `grant usage on schema`, `role "no"body" does not exist`)
	if err := migrations.CheckRights(t.Context(), testenv.Pool(t, dsn)); err != nil {
		t.Errorf("rights of the owner: %v", err)
	}
	runner, other := testenv.Runner(t, dsn), testenv.Runner(t, dsn)
	exec(t, testenv.Pool(t, dsn), "revoke select on search_index from "+other.Username())
	wantError(t, migrations.Grant(t.Context(), testenv.As(t, dsn, runner), other.Username()),
		`role "`+runner.Username()+`" may not grant what it does not own`, "select on search_index")
}

// The statement that a role without the use of a schema is told can be run as it is.
func TestGrantQuotesTheSchemaThatItNames(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	owner := testenv.Pool(t, dsn)
	exec(t, owner, `create schema "MyApp"`)
	dsn, err := postgres.InSchema(dsn, `"MyApp"`)
	if err != nil {
		t.Fatal(err)
	}
	up(t, dsn)
	user, other := testenv.Runner(t, dsn), testenv.Runner(t, dsn)
	exec(t, owner, `revoke usage on schema "MyApp" from "`+user.Username()+`"`)
	wantError(t, migrations.Grant(t.Context(), testenv.As(t, dsn, other), user.Username()), `lacks usage on schema "MyApp": grant usage on schema "MyApp" to "`+user.Username()+`"`)
}

// The owner of the tables need not own their schema, and a grant of its use then grants nothing.
func TestGrantNeedsTheUseOfTheSchema(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	owner, user, other := testenv.Pool(t, dsn), testenv.Runner(t, dsn), testenv.Runner(t, dsn)
	exec(t, owner, "revoke usage on schema public from public, "+user.Username())
	wantError(t, migrations.Grant(t.Context(), testenv.As(t, dsn, other), user.Username()),
		`role "`+other.Username()+`" may not grant what it does not own`, `lacks usage on schema public: grant usage on schema public to "`+user.Username()+`"`)
	if err := migrations.Grant(t.Context(), dsn, user.Username()); err != nil {
		t.Errorf("as the owner of the schema: %v", err)
	}
}
