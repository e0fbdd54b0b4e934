package drill

import (
	"context"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

// esBulkPartial poisons one document by its id: the proxy answers its item with a final
// status, and passes on the others of the request.
func esBulkPartial() Scenario {
	return Scenario{
		Name:  "es_bulk_partial",
		About: "one document of a batch is refused for good, by a proxy before Elasticsearch, the others are not",
		Shows: "a bulk request and a batch that are partial; the good ones done, the poisoned one failed and named in logs and traces only",
		Params: []Param{
			{"events", "10", "good events beside the poisoned one"},
			{"partial_status", "400", "status of the poisoned document, a 4xx that is final"},
		},
		instances: one(),
		run: func(ctx context.Context, r *run) error {
			n, err := r.count("events", 1, 1000)
			if err != nil {
				return err
			}
			status, err := r.count("partial_status", 400, 499)
			if err != nil {
				return err
			}
			poisoned := newKey()
			refusal := proxy.Refusal{Status: status, IDs: []string{poisoned.String()}}
			m := r.member("a")
			_, err = r.inject(ctx, "a poisoned document: "+refusal.String(), func(context.Context) error { return m.Tap.Refuse(refusal) },
				func(context.Context) error { m.Tap.Clear(); return nil })
			if err != nil {
				return err
			}
			events, err := r.enqueue(ctx, append([]change{{key: poisoned, op: outbox.Upsert, role: "poisoned"}}, upserts(n, "good")...)...)
			if err != nil {
				return err
			}
			return r.become(ctx, events, "done", "failed")
		},
		verify: func(j *judge) {
			good, poisoned := j.events("good"), j.events("poisoned")
			j.grew("outbox_es_bulk_requests_total", "result=partial")
			j.grewBy(float64(len(good)), "outbox_es_bulk_items_total", "op=upsert", "result=success")
			j.grewBy(float64(len(good)), "outbox_processed_total", "op=upsert")
			j.grewBy(1, "outbox_failed_total", "op=upsert", "reason=es_4xx")
			j.grewBy(0, "outbox_retry_scheduled_total")
			j.spans(spanBatch, "result=partial", "success_count="+strconv.Itoa(len(good)), "failure_count=1")
			j.ended("good", "done")
			j.ended("poisoned", "failed")
			for _, e := range poisoned {
				id := e.ID.String()
				failed := j.spans(spanEvent, "wordloom.outbox_event_id="+id, "result=failed", "reason=es_4xx")
				j.check("… it is an error", evidence.SpansFile, strconv.FormatBool(len(failed) > 0 && failed[0].Error), "true", len(failed) > 0 && failed[0].Error)
				j.lines(1, "event=projection.event", "level=error", "event_id="+id, "result=failed", "reason=es_4xx")
				_, entity, _ := strings.Cut(e.Entity, ":")
				j.number("series with its id, or that of its entity", evidence.AfterFile, float64(j.inMetrics(id)+j.inMetrics(entity)), 0)
				j.equal("its document", evidence.ProbeFile("documents"), strconv.FormatBool(j.documents()[e.Entity].Found), "false")
			}
		},
	}
}

// inMetrics counts how often a text is in the last metrics.
func (j *judge) inMetrics(text string) int {
	b, err := os.ReadFile(j.File(evidence.AfterFile))
	if err != nil {
		return -1
	}
	return strings.Count(string(b), text)
}

// firstID is that of the first event, or zero.
func firstID(events []evidence.Event) uuid.UUID {
	if len(events) == 0 {
		return uuid.Nil
	}
	return events[0].ID
}

// retriedThenDone reports whether results begin with a retry of the first attempt, go on
// with retries, and end well.
func retriedThenDone(results string) bool {
	all := strings.Split(results, ", ")
	for i, one := range all {
		result, attempt, _ := strings.Cut(strings.TrimSuffix(one, ")"), "(")
		last := i == len(all)-1
		if attempt != strconv.Itoa(i+1) || last && result != "ok" || !last && result != "retry" {
			return false
		}
	}
	return len(all) > 1
}
