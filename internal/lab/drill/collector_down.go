package drill

import (
	"context"
	"errors"
	"fmt"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

// collectorDown stops the collector under a leader, and starts another instance without
// one, which becomes the leader then.
func collectorDown() Scenario {
	return Scenario{
		Name:  "collector_down",
		About: "the trace collector stops under a leader; another instance starts without it, and takes over",
		Shows: "every event done as if nothing were, a startup line that says unreachable, and lost spans that are counted",
		Params: []Param{
			{"events", "20", "events of each of the three parts: with the collector, without, and after the takeover"},
		},
		instances: one("OTEL_EXPORTER_OTLP_TIMEOUT=1000"),
		run: func(ctx context.Context, r *run) error {
			n, err := r.count("events", 1, 10000)
			if err != nil {
				return err
			}
			events, err := r.settled(ctx, upserts(n, "with a collector")...)
			if err != nil {
				return err
			}
			if err := r.await(ctx, "spans of the first events", func(context.Context) error {
				if len(collector.Find(r.collector.Spans(), spanEvent, map[string]any{"wordloom.outbox_event_id": events[0].ID.String()})) == 0 {
					return errors.New("none has come")
				}
				return nil
			}); err != nil {
				return err
			}
			done, err := r.inject(ctx, "the trace collector stops", func(context.Context) error { r.collector.Close(); return nil }, nil)
			if err != nil {
				return err
			}
			if _, err := r.settled(ctx, upserts(n, "without a collector")...); err != nil {
				return err
			}
			b, err := r.start(ctx, "b", "OTEL_EXPORTER_OTLP_TIMEOUT=1000")
			if err != nil {
				return err
			}
			if done {
				if err := r.await(ctx, "count of lost spans", func(context.Context) error {
					if n := r.now("weft_trace_spans_total", "result=failed"); n == 0 {
						return fmt.Errorf("it is %v", n)
					}
					return nil
				}); err != nil {
					return err
				}
			}
			if err := r.endWell(ctx, r.member("a")); err != nil {
				return err
			}
			if err := r.leads(ctx, b); err != nil {
				return err
			}
			_, err = r.settled(ctx, upserts(n, "after a takeover")...)
			return err
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
			for _, e := range j.Events("with a collector")[:1] {
				j.Spans(spanEvent, "wordloom.outbox_event_id="+e.ID.String())
			}
			for _, e := range j.Events("after a takeover")[:1] {
				j.Number("spans of an event of the time without a collector", verdict.SpansFile, float64(len(j.SpansOf(spanEvent, "wordloom.outbox_event_id="+e.ID.String()))), 0)
			}
			j.GrewBy(0, "outbox_failed_total")
			j.GrewBy(0, "outbox_retry_scheduled_total")
			j.storesEqual()
		},
	}
}
