package drill

import (
	"os"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
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
		run: func(r *run) {
			poisoned := change{key: newKey(), op: outbox.Upsert, role: "poisoned"}
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
