package drill

import (
	"context"
	"fmt"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

// collectorDown stops the collector under a leader, and starts another instance without
// one, which becomes the leader then.
func collectorDown() Scenario {
	return Scenario{
		Name: "collector_down", runbooks: []string{"log-events"},
		About:     "the trace collector stops under a leader; another instance starts without it, and takes over",
		Shows:     "every event done as if nothing were, a startup line that says unreachable, and lost spans that are counted",
		Params:    []Param{{"events", "20", "events of each of the three parts: with the collector, without, and after the takeover"}},
		instances: one("OTEL_EXPORTER_OTLP_TIMEOUT=1000"),
		run: func(r *run) {
			n := r.count("events", 1, 10000)
			events := r.settled(upserts(n, "with a collector")...)
			r.await("spans of the first events", func(context.Context) error {
				found := collector.Find(r.collector.Spans(), spanEvent, map[string]any{"wordloom.outbox_event_id": events[0].ID.String()})
				return rig.Want(nil, len(found) > 0, "none has come")
			})
			down := r.inject("the trace collector stops", func(context.Context) error { r.collector.Close(); return nil }, nil)
			r.settled(upserts(n, "without a collector")...)
			b := r.start("b", "OTEL_EXPORTER_OTLP_TIMEOUT=1000")
			if down {
				r.awaitMetric(1, "weft_trace_spans_total", "result=failed")
			}
			r.terminate(r.Member("a"))
			r.awaitLeader(b)
			r.settled(upserts(n, "after a takeover")...)
		},
		verify: func(j *judge) {
			for _, c := range []struct{ file, reachable string }{{"weft-a.jsonl", "true"}, {"weft-b.jsonl", "false"}} {
				seen := "no line"
				for _, l := range j.Find("event=tracing.startup") {
					if l.File == c.file {
						seen = fmt.Sprintf("enabled %s, reachable %s, exporter %s, target %v", l.Get("enabled"), l.Get("collector_reachable"), l.Get("exporter_configured"), l.Get("otlp_target") != "")
					}
				}
				j.Equal("startup line in "+c.file, verdict.LogDir, seen, fmt.Sprintf("enabled true, reachable %s, exporter true, target true", c.reachable))
			}
			j.Logged(1, "event=tracing.export_failed")
			j.Grew("weft_trace_spans_total", "result=failed")
			for _, role := range []string{"with a collector", "without a collector", "after a takeover"} {
				j.ended(role, "done")
			}
			for _, e := range first(j.Events("with a collector")) {
				j.Spans(spanEvent, eventID+e.ID.String())
			}
			for _, e := range first(j.Events("after a takeover")) {
				j.NoSpans("spans of an event of the time without a collector", spanEvent, eventID+e.ID.String())
			}
			j.nothingFailed()
			j.storesEqual()
		},
	}
}
