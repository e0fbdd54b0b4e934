package testenv

import (
	"crypto/rand"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/migrations"
)

// Runner makes a role that may do in the migrated database at dsn what `weft run` needs,
// and nothing else. It is dropped when the test ends.
func Runner(t testing.TB, dsn string) *url.Userinfo {
	t.Helper()
	name, password := uniqueName(t.Name(), "weft_test_", "_"), rand.Text()
	quoted := pgx.Identifier{name}.Sanitize()
	if err := execOn(t.Context(), dsn, "create role "+quoted+" login password '"+password+"'"); err != nil {
		t.Fatalf("testenv: make role: %v", err)
	}
	// A test may have given the database settings of its own. Those of the address count from the
	// first statement on.
	plain, err := changed(dsn, func(u *url.URL) {
		q := u.Query()
		q.Set("idle_session_timeout", "0")
		q.Set("statement_timeout", "0")
		q.Set("default_transaction_read_only", "off")
		u.RawQuery = q.Encode()
	})
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	dropAtEnd(t, plain, "role "+name, "drop owned by "+quoted, "drop role "+quoted)
	if err := migrations.Grant(t.Context(), dsn, name); err != nil {
		t.Fatalf("testenv: grant to role: %v", err)
	}
	return url.UserPassword(name, password)
}

// As returns dsn with another user.
func As(t testing.TB, dsn string, user *url.Userinfo) string {
	t.Helper()
	other, err := changed(dsn, func(u *url.URL) { u.User = user })
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return other
}
