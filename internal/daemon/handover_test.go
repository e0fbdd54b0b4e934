package daemon_test

import (
	"fmt"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
)

// A leader that was asked to end finishes a bulk request that Elasticsearch is slow to
// answer, and everybody can see that this is what it does.
func TestDrainingIsShownUntilTheWorkIsSettled(t *testing.T) {
	t.Parallel()
	for name, resign := range map[string]bool{"Resign": true, "Stop": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			link, direct := newLink(t, host(t, r.elastic)), r.elastic
			r.elastic = link.through(direct)
			a := r.start("a", patient()...)
			r.elastic = direct
			a.awaitReady(200, `"role": "leader"`)
			b := r.start("b")
			b.awaitReady(200, `"role": "standby"`)

			if err := link.HalfOpen(); err != nil {
				t.Fatal(err)
			}
			r.upsert(newKey(), 1, "in flight")
			r.await(map[string]int{"processing": 1})
			// Until the leader has heard of the lease, a stop would release it.
			testenv.Eventually(t, func() bool { return a.metric("outbox_inflight_events") == 1 }, "the event to be in flight")
			stopped := make(chan error, 1)
			if resign {
				if _, err := leader.Resign(t.Context(), r.pool, r.group, leader.Resignation{Epoch: 1, By: "alice", Why: "a test"}); err != nil {
					t.Fatal(err)
				}
			} else {
				go func() { stopped <- a.stop() }()
			}
			a.awaitReady(503, `"role": "stopping"`, `"epoch": 1`)
			if lead, draining := a.metric("weft_leader_is_leader"), a.metric("weft_leader_draining"); lead != 1 || draining != 1 {
				t.Errorf("metrics: leader %v, draining %v; want 1 and 1", lead, draining)
			}
			testenv.Eventually(t, func() bool { return r.role("a") == "draining" }, "the record says draining")
			b.awaitReady(200, `"role": "standby"`)

			if err := link.Heal(); err != nil {
				t.Fatal(err)
			}
			b.awaitReady(200, `"role": "leader"`, `"epoch": 2`)
			r.await(map[string]int{"done": 1})
			if got, want := r.endOf(1), map[bool]string{true: "resigned", false: "stopped"}[resign]; got != want {
				t.Errorf("end of term 1: got %q, want %q", got, want)
			}
			if !resign {
				if err := <-stopped; err != nil {
					t.Errorf("graceful stop returned %v", err)
				}
				return
			}
			a.awaitReady(200, `"role": "standby"`)
			testenv.Eventually(t, func() bool { return a.metric("weft_leader_draining") == 0 }, "the end of the drain in the metrics")
		})
	}
}

func (r *rig) role(instance string) (role string) {
	r.t.Helper()
	err := r.pool.QueryRow(r.t.Context(), "select coalesce(max(role), '') from weft_instance where instance = $1 and group_name = $2", instance, r.group).Scan(&role)
	if err != nil {
		r.t.Fatal(err)
	}
	return role
}

func (r *rig) endOf(epoch int64) (reason string) {
	r.t.Helper()
	err := r.pool.QueryRow(r.t.Context(), "select end_reason from weft_term where epoch = $1 and group_name = $2", epoch, r.group).Scan(&reason)
	if err != nil {
		r.t.Fatal(err)
	}
	return reason
}

// A standby has its idle sessions plan what a term begins with.
func TestStandbyKeepsItsSessionsWarm(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	b := r.start("b")
	b.awaitReady(200, `"role": "standby"`)
	session := fmt.Sprintf("application_name = '%s'", leader.AppName(r.group, "b", "work"))
	testenv.Eventually(t, func() bool {
		return r.number("select count(*) from pg_stat_activity where "+session+" and query like '%picked as materialized%'") > 0
	}, "a session of the standby to have asked for a lease")
	if n := r.number("select count(*) from weft_lease"); n != 0 {
		t.Errorf("%d leases, want none", n)
	}
}
