package main

import (
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestMigrateGrant(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	owner := testenv.Pool(t, dsn)
	user := testenv.Runner(t, dsn)
	name := user.Username()
	if _, err := owner.Exec(t.Context(), "revoke update (status) on search_outbox_events from "+name); err != nil {
		t.Fatal(err)
	}
	asRunner := []string{"DATABASE_URL=" + testenv.As(t, dsn, user)}

	for _, tc := range []struct {
		name string
		env  []string
		args []string
		code int
		want string
	}{
		{"NoName", asRunner, []string{"migrate", "grant"}, exitUsage, "want the name of one role"},
		{"NoRole", []string{"DATABASE_URL=" + dsn}, []string{"migrate", "grant", "weft_no_such_role"}, exitBad, `role "weft_no_such_role" does not exist: create it first`},
		{"NotTheOwner", asRunner, []string{"migrate", "grant", name}, exitRefused, "may not grant what it does not own"},
		{"Owner", []string{"DATABASE_URL=" + dsn}, []string{"migrate", "grant", name}, exitOK, "granted to " + name},
		{"BadMode", []string{"DATABASE_URL=" + dsn}, []string{"migrate", "grant", name, "--finished", "burn"}, exitConfig, "want one of keep, archive, delete"},
		{"Archive", []string{"DATABASE_URL=" + dsn, "OUTBOX_RETENTION=30d"}, []string{"migrate", "grant", name, "--finished", "search_index_to_elastic=archive"}, exitOK, "granted to " + name},
	} {
		if r := weft(t, tc.env, tc.args...); r.code != tc.code || !strings.Contains(r.out+r.errOut, tc.want) {
			t.Errorf("%s: got code %d and %q, want %d and %q", tc.name, r.code, r.out+r.errOut, tc.code, tc.want)
		}
	}

	pool := testenv.Pool(t, testenv.As(t, dsn, user))
	const search, chronicle = "search_outbox_events", "chronicle_outbox_events"
	if err := migrations.CheckRights(t.Context(), pool, migrations.Mode{Table: search, Finished: "archive", Retention: true}, migrations.Mode{Table: chronicle, Retention: true}); err != nil {
		t.Errorf("rights of the modes that were named: %v", err)
	}
	if err := migrations.CheckRights(t.Context(), pool, migrations.Mode{Table: chronicle, Finished: "archive"}); err == nil {
		t.Error("the projection that keeps may write its history")
	}
}
