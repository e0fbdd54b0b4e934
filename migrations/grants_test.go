package migrations_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/migrations"
)

const grantsFile = "../deploy/postgres/grants.sql"

// TestGrantsFile holds that the file for those who grant by hand says what this build
// needs. UPDATE=1 writes it.
func TestGrantsFile(t *testing.T) {
	t.Parallel()
	want := `-- What weft run needs, as weft migrate grant weft gives it; made by go test ./migrations.
-- By the owner of the tables, after each weft migrate up.

` + strings.Join(migrations.GrantSQL("public", "weft"), ";\n") + ";\n"
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

// A role without a right is told which, on what, and the statement that mends it; with all
// of them it is told nothing.
func TestRights(t *testing.T) {
	t.Parallel()
	dsn := labtest.Database(t)
	owner := labtest.Pool(t, dsn)
	user := labtest.Runner(t, dsn)
	name := user.Username()
	pool := labtest.Pool(t, labtest.As(t, dsn, user))
	if err := migrations.CheckRights(t.Context(), pool); err != nil {
		t.Fatalf("with all rights: %v", err)
	}
	for _, tc := range []struct{ revoke, want, mend string }{
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
		for _, want := range []string{"role \"" + name + "\" lacks " + tc.want, tc.mend, "weft migrate grant " + name} {
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

	exec(t, owner, "revoke all on all tables in schema public from "+name)
	err := migrations.CheckRights(t.Context(), pool)
	if err == nil || !strings.Contains(err.Error(), "more: grant") || strings.Count(err.Error(), "; grant") != 2 {
		t.Errorf("without any: got %v, want three of them and how many more", err)
	}
	exec(t, owner, "revoke usage on schema public from public")
	exec(t, owner, "revoke usage on schema public from "+name)
	err = migrations.CheckRights(t.Context(), pool)
	if err == nil || !strings.Contains(err.Error(), "lacks usage on a schema of search_path") {
		t.Errorf("without the schema: got %v", err)
	}
}

func TestGrantNeedsTheTables(t *testing.T) {
	t.Parallel()
	dsn := labtest.Schema(t)
	var behind *migrations.BehindError
	if err := migrations.Grant(t.Context(), dsn, "nobody"); !errors.As(err, &behind) {
		t.Errorf("before the migrations: got %v, want a BehindError", err)
	}
	up(t, dsn)
	wantError(t, migrations.Grant(t.Context(), dsn, `no"body`), `grant usage on schema`, `role "no"body" does not exist`)
	if err := migrations.CheckRights(t.Context(), labtest.Pool(t, dsn)); err != nil {
		t.Errorf("rights of the owner: %v", err)
	}
	runner, other := labtest.Runner(t, dsn), labtest.Runner(t, dsn)
	exec(t, labtest.Pool(t, dsn), "revoke select on search_index from "+other.Username())
	wantError(t, migrations.Grant(t.Context(), labtest.As(t, dsn, runner), other.Username()),
		`role "`+runner.Username()+`" may not grant what it does not own`, "select on search_index")
}
