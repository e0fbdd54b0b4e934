package drill

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

// esDownConnect: a delete is forced through a call of Elasticsearch even where the entity
// never existed.
func esDownConnect() Scenario {
	return Scenario{
		Name: "es_down_connect", runbooks: []string{"elasticsearch-down"},
		About:     "Elasticsearch refuses every connection while a delete and some upserts are written; then it is back",
		Shows:     "a retry with es_connect and no failure, readiness that says why, and the backlog done after the recovery",
		Params:    []Param{{"upserts", "20", "events that are written while it is down, besides the delete"}},
		instances: one("OUTBOX_BASE_BACKOFF_SECONDS=0.2"),
		run: func(r *run) {
			n, m := r.count("upserts", 1, 10000), r.Member("a")
			down := r.injectFault("Elasticsearch refuses connections", "elastic-down", m)
			deleted := r.enqueue(change{key: traffic.NewKey(), op: outbox.Delete, role: "delete"})
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

// throttling is what is kept of an injection of 429s.
type throttling struct {
	Mode           string  `json:"mode"`
	EveryN         int     `json:"every_n"`
	Ratio          float64 `json:"ratio"`
	Seed           uint64  `json:"seed"`
	EffectiveRatio float64 `json:"effective_ratio"`
	proxy.Refusals
	ObservedRatio float64 `json:"observed_ratio"`
}

// es429Inject: the injection stays on until everything is done. An item that is alone in
// its request gets through at the latest when it is no n-th one.
func es429Inject() Scenario {
	return Scenario{
		Name: "es_429_inject", runbooks: []string{"throttled"},
		About: "a proxy before Elasticsearch answers every n-th document, or a share of them, with 429",
		Shows: "retries with es_429 and nothing final, and injected answers that spans tell from real ones",
		Params: []Param{
			{"every_n", "3", "refuse every n-th document; 0 to go by ratio"},
			{"ratio", "0", "refuse each document with this probability, 0 to 0.9"},
			{"ops", "upsert,delete", "operations that are refused"},
			{"seed", "1", "of the ratio"},
			{"events", "60", "events that are written, every fourth one a delete"},
		},
		instances: one("OUTBOX_BASE_BACKOFF_SECONDS=0.1", "OUTBOX_MAX_BACKOFF_SECONDS=1", "OUTBOX_BULK_SIZE=20"),
		run: func(r *run) {
			refusal, m := r.throttle(), r.Member("a")
			changes := make([]change, r.count("events", 4, 100000))
			for i := range changes {
				changes[i] = change{key: traffic.NewKey(), op: outbox.Upsert, role: "upsert"}
				if i%4 == 3 {
					changes[i].op, changes[i].role = outbox.Delete, "delete"
				}
			}
			r.refuse(m, "429s by a proxy: ", refusal)
			r.enqueue(changes...)
			r.drained()
			done := m.Tap.Refusals()
			kept := throttling{Mode: refusal.Mode(), EveryN: refusal.EveryN, Ratio: refusal.Ratio, Seed: refusal.Seed,
				EffectiveRatio: refusal.EffectiveRatio(), Refusals: done}
			if done.Seen > 0 {
				kept.ObservedRatio = float64(done.Hit) / float64(done.Seen)
			}
			r.step("refused %d of %d documents", done.Hit, done.Seen)
			r.heal()
			r.probe("injection", kept)
		},
		verify: func(j *judge) {
			done := verdict.Probed[throttling](j.Judge, "injection")
			hit := float64(done.Hit)
			j.atLeast("documents that the proxy refused", "injection", done.Hit, 1)
			if done.Mode == proxy.EveryNth && done.EveryN > 0 {
				j.counted(fmt.Sprintf("… every %d. of %d", done.EveryN, done.Seen), "injection", done.Hit, done.Seen/done.EveryN)
			}
			j.GrewBy(hit, "outbox_retry_scheduled_total", "reason=es_429")
			j.GrewBy(hit, "outbox_es_bulk_item_failures_total", "failure_class=429")
			j.GrewBy(0, "outbox_failed_total")
			j.GrewBy(0, "outbox_terminal_failed_total")
			j.ended("", "done")
			const injected = "wordloom.labs.es_429.injected=true"
			j.Spans(spanEvent, "reason=es_429", "result=retry", injected, "wordloom.labs.es_429.mode="+done.Mode)
			unmarked := len(j.SpansOf(spanEvent, "reason=es_429")) - len(j.SpansOf(spanEvent, "reason=es_429", injected))
			j.Number("spans of events with es_429 that are not marked as injected", verdict.SpansFile, float64(unmarked), 0)
			j.NoSpans("spans of events that went well and are marked", spanEvent, "result=ok", injected)
			j.Logged(1, "event=projection.event", "result=retry", "reason=es_429")
			j.storesEqual()
		},
	}
}

func (r *run) throttle() proxy.Refusal {
	refusal := proxy.Refusal{Status: http.StatusTooManyRequests, EveryN: r.count("every_n", 0, 1000000)}
	var noRatio, noSeed error
	refusal.Ratio, noRatio = strconv.ParseFloat(r.param("ratio"), 64)
	r.Expect(noRatio == nil, "parameter ratio: %q is no number", r.param("ratio"))
	refusal.Seed, noSeed = strconv.ParseUint(r.param("seed"), 10, 63)
	r.Expect(noSeed == nil, "parameter seed: %q is no number", r.param("seed"))
	if r.param("ratio") != "0" && r.set["every_n"] == "" {
		refusal.EveryN = 0 // a ratio that was asked for is meant
	}
	r.Expect(refusal.Ratio >= 0 && (refusal.EveryN > 0) != (refusal.Ratio > 0), "parameters: want every_n or a ratio, one of them above 0, not %v", refusal)
	r.Expect(refusal.EveryN != 1 && refusal.Ratio <= 0.9, "parameters: %v would refuse everything for ever", refusal)
	for op := range strings.SplitSeq(r.param("ops"), ",") {
		refusal.Ops = append(refusal.Ops, outbox.Op(strings.TrimSpace(op)))
		r.Expect(slices.Contains([]string{"upsert", "delete"}, strings.TrimSpace(op)), "parameter ops: %q is neither upsert nor delete", op)
	}
	return refusal
}

// replayWhy is why the operator replays: the audit must say so.
const replayWhy = "drill: the write block is lifted"

// esWriteBlock sets a block on the index, which answers each document with a 403 of its
// own.
func esWriteBlock() Scenario {
	return Scenario{
		Name: "es_write_block_4xx", runbooks: []string{"dead-letter-growing", "replay"},
		About:     "index.blocks.write is set on the index while upserts come; then it is lifted and the dead letters are replayed",
		Shows:     "final failures with es_4xx and no retry, and a replay that brings every document, with who did it and why",
		Params:    []Param{{"events", "5", "events that meet the block; fewer than what opens the breaker"}},
		instances: one(),
		run: func(r *run) {
			n := r.count("events", 1, 19)
			blocked := r.injectFault("index.blocks.write on the index", faults.WriteBlock, r.Member("a"))
			events := r.enqueue(upserts(n, "blocked")...)
			r.become(events, "failed", "done")
			r.probe("blocked", r.table())
			r.heal()
			if !blocked {
				return
			}
			r.step("weft replay --reason es_4xx --by %s --why %q", operator, replayWhy)
			out := rig.Try(r.Fleet.Output(r.Ctx, "replay", "--reason", "es_4xx", "--by", operator, "--why", replayWhy, "--json")).Must(r)
			r.Must(r.dir.WriteText(verdict.LogDir+"/replay.json", out))
			r.become(events, "done")
		},
		verify: func(j *judge) {
			events := j.Recipe.Events
			n := len(events)
			j.GrewBy(float64(n), "outbox_failed_total", "op=upsert", "reason=es_4xx")
			j.GrewBy(float64(n), "outbox_terminal_failed_total", "op=upsert", "reason=es_4xx")
			j.GrewBy(0, "outbox_retry_scheduled_total")
			failed := count(verdict.Probed[[]row](j.Judge, "blocked"), func(o row) bool {
				return o.Status == "failed" && is(o.Reason, string(outbox.ReasonES4xx)) && o.Error != nil && *o.Error != ""
			})
			j.counted("rows in failed with es_4xx and the server's words, while the block was on", "blocked", failed, n)
			for _, e := range events {
				j.Equal("attempts at "+e.ID.String()+", anew after the replay", verdict.SpansFile, j.results(e), "failed(1), ok(1)")
			}
			j.Logged(n, "event=projection.event", "level=error", "result=failed", "reason=es_4xx")
			j.ended("", "done")
			rows := j.rows()
			replayed := count(events, func(e verdict.Event) bool {
				o := rows[e.ID]
				return o.Replays == 1 && is(o.ReplayedBy, operator) && is(o.ReplayReason, replayWhy)
			})
			j.counted("rows that say who replayed them and why", "outbox", replayed, n)
			j.counted("replayed rows in the audit", "audit", j.signedRows("replay", operator, replayWhy), n)
			found := count(slices.Collect(maps.Values(j.documents())), func(d document) bool { return d.Found })
			j.counted("documents in the end", "documents", found, n)
			j.storesEqual()
		},
	}
}

func is(column *string, value string) bool {
	return column != nil && *column == value
}

// esBulkPartial poisons one document by its id: the proxy answers its item with a final
// status, and passes on the others of the request.
func esBulkPartial() Scenario {
	return Scenario{
		Name: "es_bulk_partial", runbooks: []string{"dead-letter-growing"},
		About: "one document of a batch is refused for good, by a proxy before Elasticsearch, the others are not",
		Shows: "a bulk request and a batch that are partial; the good ones done, the poisoned one failed and named in logs and traces only",
		Params: []Param{
			{"events", "10", "good events beside the poisoned one"},
			{"partial_status", "400", "status of the poisoned document, a 4xx that is final"},
		},
		instances: one(),
		run: func(r *run) {
			poisoned := change{key: traffic.NewKey(), op: outbox.Upsert, role: "poisoned"}
			changes := append([]change{poisoned}, upserts(r.count("events", 1, 1000), "good")...)
			r.refuse(r.Member("a"), "a poisoned document: ", proxy.Refusal{Status: r.count("partial_status", 400, 499), IDs: []string{poisoned.key.String()}})
			r.become(r.enqueue(changes...), "done", "failed")
		},
		verify: func(j *judge) {
			good := len(j.Events("good"))
			j.Grew("outbox_es_bulk_requests_total", "result=partial")
			j.GrewBy(float64(good), "outbox_es_bulk_items_total", "op=upsert", "result=success")
			j.GrewBy(float64(good), "outbox_processed_total", "op=upsert")
			j.GrewBy(1, "outbox_failed_total", "op=upsert", "reason=es_4xx")
			j.GrewBy(0, "outbox_retry_scheduled_total")
			j.Spans(spanBatch, "result=partial", "success_count="+strconv.Itoa(good), "failure_count=1")
			j.ended("good", "done")
			j.ended("poisoned", "failed")
			for _, e := range j.Events("poisoned") {
				id := e.ID.String()
				failed := j.Spans(spanEvent, eventID+id, "result=failed", "reason=es_4xx")
				j.True("… it is an error", verdict.SpansFile, len(failed) > 0 && failed[0].Error)
				j.Logged(1, "event=projection.event", "level=error", "event_id="+id, "result=failed", "reason=es_4xx")
				_, entity, _ := strings.Cut(e.Entity, ":")
				j.Number("series with its id, or that of its entity", verdict.AfterFile, float64(j.inMetrics(id)+j.inMetrics(entity)), 0)
				j.Equal("its document", verdict.ProbeFile("documents"), strconv.FormatBool(j.documents()[e.Entity].Found), "false")
			}
		},
	}
}

// inMetrics counts how often a text is in the last metrics.
func (j *judge) inMetrics(text string) int {
	b, err := os.ReadFile(j.File(verdict.AfterFile))
	if err != nil {
		return -1
	}
	return strings.Count(string(b), text)
}
