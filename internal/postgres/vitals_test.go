package postgres_test

import (
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestVitals(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t, testenv.Database(t)) // alone in its database
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A snapshot that stays, and transactions after it.
	if _, err := holder.Exec(t.Context(), "set transaction isolation level repeatable read"); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "select pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := pool.Exec(t.Context(), "select pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
	}
	v, err := postgres.ReadVitals(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	if v.OldestSnapshot <= 0 || v.OldestSnapshot > time.Hour || v.OldestSnapshotXIDs < 3 {
		t.Errorf("got %+v, want the age of the transaction that is open, in time and in transactions", v)
	}
	// One host, one clock.
	if v.ClockSkew.Abs() > v.Uncertain+time.Second {
		t.Errorf("got a skew of %v, uncertain by %v, want next to none", v.ClockSkew, v.Uncertain)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { // autovacuum may pass by
		v, err = postgres.ReadVitals(t.Context(), pool)
		return err == nil && v.OldestSnapshot == 0
	}, "no snapshot that holds back vacuum")
}
