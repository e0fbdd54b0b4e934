package daemon_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// Two groups on one set of tables would take each other's claims away: the second
// leader waits, says for whom, and works when the first has handed over.
func TestSecondGroupWaits(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})

	b := r.start("b", "WEFT_GROUP="+r.group+"-too")
	testenv.Eventually(t, func() bool { return len(b.logs.with("event", "outbox.occupied")) > 0 }, "b to say that it waits")
	b.awaitReady(200, "search_outbox_events is worked on by \\\"a\\\" of the group")
	for v := range int64(50) {
		r.upsert(newKey(), v+2, "y")
	}
	r.await(map[string]int{"done": 51})
	var byB int
	if err := r.pool.QueryRow(t.Context(), "select count(*) from weftlab_history where owner = 'b'").Scan(&byB); err != nil || byB != 0 {
		t.Errorf("%d rows claimed by the second group, %v, want none", byB, err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	r.upsert(newKey(), 100, "z")
	r.await(map[string]int{"done": 52})
}

// A leader whose heartbeats are rarer than 15 s works on the table for as long as it holds its lock.
func TestSecondGroupWaitsForALeaderWithRareHeartbeats(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a", "WEFT_LEADER_HEARTBEAT=40s", "WEFT_LEADER_TRUST=50s", "WEFT_LEADER_IDLE_SESSION=60s")
	a.awaitReady(200, `"role": "leader"`)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})
	r.exec("update weft_leader set renewed_at = now() - interval '30 s' where group_name = $1", r.group)

	b := r.start("b", "WEFT_GROUP="+r.group+"-too")
	b.awaitReady(200, `"role": "leader"`)
	taken := func() (n int) {
		r.scan("select count(*) from weft_progress where group_name <> $1", []any{r.group}, &n)
		return n
	}
	testenv.Eventually(t, func() bool { return taken() > 0 || len(b.logs.with("event", "outbox.occupied")) >= 2 }, "b to look who works on its tables")
	if n := taken(); n > 0 {
		t.Errorf("b has %d tables on which a works, want none", n)
	}
}
