package postgres_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// Behind a proxy a session may lead to a server that has become a standby, until the proxy notices.
func TestReadOnlySessionIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	pool, err := postgres.NewPool(t.Context(), testenv.Database(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const write = "create table if not exists written ()"
	if _, err := pool.Exec(t.Context(), "set default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	_, err = pool.Exec(t.Context(), write)
	if kind, text := postgres.Diagnose(err); kind != postgres.ReadOnly {
		t.Fatalf("got %q for a write of a read-only session, want that it is one", text)
	}
	if _, err := pool.Exec(t.Context(), write); err != nil {
		t.Errorf("the next write: %v, want that a new session does it", err)
	}
}
