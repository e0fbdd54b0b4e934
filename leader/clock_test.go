package leader

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A process whose wall clock is decades off gets, keeps and records a term with the
// database's times.
func TestLocalClockReachesNoRecord(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := one[time.Time](t, s, "select clock_timestamp()")
	synctest.Test(t, func(t *testing.T) { // the bubble's clock stands in the year 2000
		cfg := Config{Group: testGroup, Instance: "a"}.withDefaults()
		held, err := openSession(t.Context(), cfg, s.dial(cfg))
		if err != nil {
			t.Fatal(err)
		}
		defer held.close(context.Background())
		if won, err := held.tryLock(t.Context()); !won || err != nil {
			t.Fatalf("tryLock: got %v, %v; want true", won, err)
		}
		g, err := held.bump(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if g.proof.Year() != 2000 {
			t.Fatalf("the proof is of %v, want the local clock, another than the database's", g.proof)
		}
		if _, err := held.beat(t.Context(), g.epoch); err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.New(t.Context(), s.url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if _, err := Announce(t.Context(), pool, Instance{Group: testGroup, Name: "a", Role: RoleLeader}, 0); err != nil {
			t.Fatal(err)
		}
		if unlocked, err := held.release(t.Context(), g.epoch, reasonStopped); !unlocked || err != nil {
			t.Fatalf("release: got %v, %v; want true", unlocked, err)
		}
	})
	var low, high time.Time
	err := s.pool.QueryRow(t.Context(), `
		select min(at), max(at) from (
			select unnest(array[acquired_at, renewed_at, released_at]) as at from weft_leader
			union all select unnest(array[acquired_at, ended_at]) from weft_term
			union all select unnest(array[started_at, seen_at]) from weft_instance) x`).Scan(&low, &high)
	if err != nil {
		t.Fatal(err)
	}
	if now := one[time.Time](t, s, "select clock_timestamp()"); low.Before(before) || high.After(now) {
		t.Errorf("the records hold %v to %v, want the database's time, %v to %v", low, high, before, now)
	}
}

// Groups of one database elect apart, and a stranger's lock on two small keys with
// the same bits is another lock.
func TestGroupsElectApart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stranger := s.connect(t, "cron job")
	key := Key(testGroup)
	if _, err := stranger.Exec(t.Context(), "select pg_advisory_lock($1, $2)", int32(key>>32), int32(key)); err != nil {
		t.Fatal(err)
	}
	a := s.join(t, steady("a"), nil)
	first := a.nextTerm(t)
	other := steady("b")
	other.Group = "another"
	second := s.join(t, other, nil).nextTerm(t)
	if err := first.Check(); err != nil {
		t.Errorf("Check of %s: %v, want it to lead beside the other group", testGroup, err)
	}
	if first.Epoch() != 1 || second.Epoch() != 1 {
		t.Errorf("epochs: got %d and %d, want each group's own first", first.Epoch(), second.Epoch())
	}
	if got := a.event("leader.foreign_holder"); got != 0 {
		t.Errorf("foreign holders: got %d, want none", got)
	}
}

// A call that is given up in the middle does not leave the lock with a session that
// nobody owns.
func TestCancelledCallFreesTheLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cfg := quick("a")
	conn, err := s.dial(cfg)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "select pg_advisory_lock($1)", Key(testGroup)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "select pg_sleep(60)"); err == nil {
		t.Fatal("the call was not given up")
	}
	closeConn(context.Background(), conn)
	if term := s.join(t, quick("b"), nil).nextTerm(t); term.Epoch() != 1 {
		t.Errorf("epoch: got %d, want 1", term.Epoch())
	}
}
