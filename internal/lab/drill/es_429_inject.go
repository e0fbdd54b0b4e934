package drill

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

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
		Name:  "es_429_inject",
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
				changes[i] = change{key: newKey(), op: outbox.Upsert, role: "upsert"}
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

// throttle reads the parameters.
func (r *run) throttle() proxy.Refusal {
	refusal := proxy.Refusal{Status: http.StatusTooManyRequests, EveryN: r.count("every_n", 0, 1000000), Ratio: r.number("ratio")}
	if r.param("ratio") != "0" && r.set["every_n"] == "" {
		refusal.EveryN = 0 // a ratio that was asked for is meant
	}
	if refusal.EveryN == 1 || refusal.Ratio > 0.9 {
		r.Must(fmt.Errorf("parameters: %v would refuse everything for ever", refusal))
	}
	var err error
	if refusal.Seed, err = strconv.ParseUint(r.param("seed"), 10, 63); err != nil {
		r.Must(fmt.Errorf("parameter seed: %q is no number", r.param("seed")))
	}
	for op := range strings.SplitSeq(r.param("ops"), ",") {
		refusal.Ops = append(refusal.Ops, outbox.Op(strings.TrimSpace(op)))
	}
	return refusal
}
