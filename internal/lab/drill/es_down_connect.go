package drill

import (
	"net/http"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/outbox"
)

// esDownConnect: a delete is forced through a call of Elasticsearch even where the entity
// never existed.
func esDownConnect() Scenario {
	return Scenario{
		Name:  "es_down_connect",
		About: "Elasticsearch refuses every connection while a delete and some upserts are written; then it is back",
		Shows: "a retry with es_connect and no failure, readiness that says why, and the backlog done after the recovery",
		Params: []Param{
			{"upserts", "20", "events that are written while it is down, besides the delete"},
		},
		instances: one("OUTBOX_BASE_BACKOFF_SECONDS=0.2"),
		run: func(r *run) {
			n, m := r.count("upserts", 1, 10000), r.Member("a")
			down := r.injectFault("Elasticsearch refuses connections", "elastic-down", m)
			deleted := r.enqueue(change{key: newKey(), op: outbox.Delete, role: "delete"})
			want := http.StatusServiceUnavailable
			if down {
				r.awaitNone("retry", `select count(*) from `+searchOutbox+` where id = any ($1) and (attempts = 0 or error_reason is null)`, idsOf(deleted))
			} else {
				want = http.StatusOK
				r.become(deleted, "done")
			}
			r.enqueue(upserts(n, "upsert")...)
			r.awaitReadiness(m, want, "ready_down")
			r.heal()
			r.drained()
			r.step("caught up")
			r.awaitReadiness(m, http.StatusOK, "ready_after")
		},
		verify: func(j *judge) {
			j.Grew("outbox_retry_scheduled_total", "op=delete", "reason=es_connect")
			j.GrewBy(0, "outbox_failed_total")
			j.GrewBy(0, "outbox_terminal_failed_total")
			j.Spans(spanBatch, "result=retry", "reason=es_connect")
			attempts := 0
			for _, e := range j.Events("delete") {
				attempts = j.rows()[e.ID].Attempts
				seen := j.results(e)
				j.Check("attempts at the delete, by its id", verdict.SpansFile, seen, "retry(1), …, ok", retriedThenDone(seen))
				found := j.Logged(1, "event=projection.event", "event_id="+e.ID.String(), "reason=es_connect", "result=retry")
				j.True("… they lead to its trace", verdict.LogDir, len(found) > 0 && found[0].Get("trace_id") != "" && found[0].Get("span_id") != "")
			}
			j.ready("while it was down, readiness", "ready_down", http.StatusServiceUnavailable)
			j.ready("after the recovery, readiness", "ready_after", http.StatusOK)
			j.ended("", "done")
			j.atLeast("attempts of the delete that are counted in its row", "outbox", attempts, 1)
			j.storesEqual()
		},
	}
}
