package daemon_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A bulk request of an old leader that is held up on its way, and reaches
// Elasticsearch after the successor's newer versions and deletes, changes nothing,
// however its sender learns that its term is over.
func TestStaleBulk(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		zombie  bool   // the old leader does not see that its lock session has ended
		leases  bool   // it finds something to lease before its request is answered
		env     string // of the old leader
		refused string // what the old leader is told when it writes to Postgres
	}{
		{name: "SessionTerminated", env: "OUTBOX_CONCURRENCY=3"},
		{name: "ZombieSettles", zombie: true, env: "OUTBOX_CONCURRENCY=1", refused: "settle in search_outbox_events"},
		{name: "ZombieClaims", zombie: true, leases: true, env: "OUTBOX_CONCURRENCY=3", refused: "lease events of search_outbox_events"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.record()
			f, link := newFront(t, r.elastic), newLockLink(t, host(t, r.url))
			direct := r.url
			r.url = replaceHost(t, direct, link.Addr().String())
			a := r.start("a", patient("ELASTIC_URL="+f.URL, tt.env, "WEFT_LEADER_TRUST=2m", "WEFT_LEADER_IDLE_SESSION=150s",
				"OUTBOX_RECLAIM_INTERVAL_SECONDS=3600")...)
			r.url = direct
			a.awaitReady(200, `"role": "leader"`)
			b := r.start("b")
			b.awaitReady(200, `"role": "standby"`)

			keys := make([]outbox.Key, 10)
			old, newer := make([]change, len(keys)), make([]change, len(keys))
			for i := range keys {
				keys[i] = newKey()
				old[i] = change{keys[i], 100, outbox.Upsert, "old"}
				newer[i] = change{keys[i], 200, outbox.Upsert, "new"}
				if i%2 == 1 {
					newer[i].op = outbox.Delete
				}
			}
			for i, k := range keys { // so that the deletes find something; weft would make small batches after a slow request
				if i%3 == 0 {
					r.elasticCall(http.MethodPut, "/"+r.index+"/_doc/"+url.PathEscape(k.String())+"?version=50&version_type=external", `{"text":"first"}`, nil)
				}
			}

			s := f.hold(t)
			r.write(old...)
			if body := <-s.arrived; strings.Count(string(body), `"old"`) < len(keys) {
				t.Fatalf("not all documents are in the held request: %s", body)
			}
			if tt.zombie {
				link.freeze()
			}
			r.exec("select pg_terminate_backend(lock_backend_pid) from weft_leader where group_name = $1", r.group)
			b.awaitReady(200, `"role": "leader"`)
			r.write(newer...)
			want := 20
			r.await(map[string]int{"done": want})

			if tt.leases { // nobody else is there to be faster
				if err := b.stop(); err != nil {
					t.Fatal(err)
				}
				r.upsert(newKey(), 1, "for nobody yet")
				want++
			} else {
				s.release()
			}
			if tt.zombie {
				testenv.Eventually(t, func() bool {
					lines := a.logs.with("event", "outbox.fenced")
					return len(lines) > 0 && strings.Contains(lines[0]["error"].(string), tt.refused)
				}, "a refusal of "+tt.refused)
				if got := a.metric("weft_fenced_writes_total"); got != 1 {
					t.Errorf("%v refusals counted, want 1", got)
				}
				link.thaw()
			}
			s.release()
			if answer := string(<-s.landed); strings.Count(answer, "version_conflict_engine_exception") < len(keys) {
				t.Errorf("Elasticsearch took something of the stale request: %s", answer)
			}
			for i, k := range keys {
				found, version, source := r.document(k)
				switch {
				case i%2 == 0 && (!found || version != 200 || source["text"] != "new"):
					t.Errorf("document %d: found %v, version %d, %v, want the new one", i, found, version, source)
				case i%2 == 1 && found:
					t.Errorf("deleted document %d came back at version %d", i, version)
				}
			}
			r.await(map[string]int{"done": want})
			r.judge()
		})
	}
}

// record has the database keep every change of the outbox and of the source from now on.
func (r *rig) record() {
	r.t.Helper()
	if err := errors.Join(history.Install(r.t.Context(), r.pool, outboxTable), history.InstallSource(r.t.Context(), r.pool)); err != nil {
		r.t.Fatal(err)
	}
}

// judge holds the record of a run that has been drained, and what it has left in
// Elasticsearch, against the invariants.
func (r *rig) judge(applied ...history.Applied) {
	r.t.Helper()
	log, err := history.Read(r.t.Context(), r.pool, outboxTable, r.group)
	if err != nil {
		r.t.Fatal(err)
	}
	es, err := reconcile.NewClient(r.elastic)
	if err != nil {
		r.t.Fatal(err)
	}
	defer es.Close()
	end, err := history.ReadEnd(r.t.Context(), r.pool, es, r.index, reconcile.SearchIndex)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, b := range history.Check(history.Run{Log: log, Applied: applied, End: end}).Breaches() {
		r.t.Errorf("%s: %d findings, the first is %s", b.Invariant, len(b.Findings), b.Findings[0])
	}
}
