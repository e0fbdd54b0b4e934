package daemon_test

import (
	"fmt"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// sessions returns the process ids of an instance's sessions for work.
func (r *rig) sessions(instance string) (pids []int32) {
	r.t.Helper()
	err := r.pool.QueryRow(r.t.Context(), "select coalesce(array_agg(pid), '{}') from pg_stat_activity where application_name = $1",
		fmt.Sprintf("weft/%s/%s/work", r.group, instance)).Scan(&pids)
	if err != nil {
		r.t.Fatal(err)
	}
	return pids
}

// A leader that is fenced although it holds the lock opens its connections anew: those that it has may lead
// to a server that was the primary before, where no term of its ever begins.
func TestFencedLeaderOpensItsConnectionsAnew(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	old := r.sessions("a")
	if len(old) == 0 {
		t.Fatal("no sessions of the leader")
	}
	r.exec("update weft_fence set instance = 'another' where group_name = $1", r.group)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})
	testenv.Eventually(t, func() (gone bool) {
		err := r.pool.QueryRow(t.Context(), "select count(*) = 0 from pg_stat_activity where pid = any($1) and application_name like 'weft/%/work'", old).Scan(&gone)
		if err != nil {
			t.Fatal(err)
		}
		return gone
	}, "other sessions than before")
	if n := a.metric("weft_leader_step_downs_total", `reason="work_failed"`); n != 1 {
		t.Errorf("%v terms of the leader have failed, want 1", n)
	}
}
