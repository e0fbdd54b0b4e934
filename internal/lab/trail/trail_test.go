//go:build observability

package trail

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
	"github.com/samuelhu324-dev/weft/outbox"
)

// TestTrail lets things go wrong once, and looks at what that left from several sides.
// What a step of a trail has found agrees with the step before, or play ends in an error.
func TestTrail(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	e, err := l.play(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		test func(*testing.T, *lab, *evidence)
	}{
		{"Chain", testChain},
		{"BrokenChain", testBrokenChain},
		{"ProducersTrace", testProducersTrace},
		{"ServiceAndOperation", testServiceAndOperation},
		{"OutboxEventID", testOutboxEventID},
		{"ClaimBatchID", testClaimBatchID},
		{"Schema", testSchema},
		{"ResultsOfBatches", testResultsOfBatches},
		{"Vocabulary", testVocabulary},
		{"Exemplars", testExemplars},
		{"Phases", testPhases},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, l, e) })
	}
}

// testChain holds that each of the four graphs has led to the row that it is about.
func testChain(t *testing.T, l *lab, e *evidence) {
	for _, want := range []struct {
		signal, operation string
		labels            map[string]string
		statuses          []string
	}{
		{"retry", spanEvent, map[string]string{"op": "upsert", "reason": "es_connect"}, []string{"done"}},
		{"failed", spanEvent, map[string]string{"op": "upsert", "reason": "es_4xx"}, []string{"failed"}},
		{"partial", spanBatch, map[string]string{"result": "partial"}, nil},
		{"noop", spanEvent, map[string]string{"op": "delete", "reason": "es_404"}, []string{"done"}},
	} {
		i := slices.IndexFunc(e.of(want.signal), func(t *Trail) bool {
			for key, value := range want.labels {
				if t.Metric.Labels[key] != value {
					return false
				}
			}
			return true
		})
		if i < 0 {
			t.Errorf("%s: no trail of %v", want.signal, want.labels)
			continue
		}
		got := e.of(want.signal)[i]
		if got.Span.Operation != want.operation || got.Metric.After <= got.Metric.Before || len(got.Lines) == 0 {
			t.Errorf("%s: got %s with %d lines, from %v to %v; want %s, lines, and a growth",
				want.signal, got.Span.Operation, len(got.Lines), got.Metric.Before, got.Metric.After, want.operation)
		}
		var statuses []string
		for _, r := range got.Rows {
			statuses = append(statuses, r.Status)
		}
		if want.statuses != nil && !slices.Equal(statuses, want.statuses) {
			t.Errorf("%s: got rows in %v, want %v", want.signal, statuses, want.statuses)
		}
	}
	for _, retry := range e.stillAway {
		if len(retry.Rows) != 1 || retry.Rows[0].Status != "pending" {
			t.Errorf("retry of %v while Elasticsearch was away: got rows %+v, want one that waits", retry.Metric.Labels, retry.Rows)
		}
	}

	partial := e.of("partial")[0]
	var failed, done int
	for _, r := range partial.Rows {
		switch {
		case outbox.UUID(r.ID) == e.poisoned.ID && r.Status == "failed" && r.Reason == "es_4xx":
			failed++
		case r.Status == "done":
			done++
		}
	}
	if failed != 1 || done < goodOnes || failed+done != len(partial.Rows) {
		t.Errorf("partial: got %d failed and %d done of %d rows, want the poisoned one failed, and all others done", failed, done, len(partial.Rows))
	}
	if len(e.of("failed")) != 1 {
		t.Errorf("failed: got %d series, want one", len(e.of("failed")))
	}
	dead := e.of("failed")[0]
	if id := tag(dead.Span, "wordloom.outbox_event_id"); id != e.poisoned.ID.String() {
		t.Errorf("failed: got the event %s, want %s", id, e.poisoned.ID)
	}
	if !strings.Contains(tag(dead.Span, "otel.status_description"), "rank_score") ||
		!strings.Contains(string(dead.Rows[0].Detail), "rank_score") {
		t.Errorf("failed: got tags %v and %+v, want the field that was refused in both", dead.Span.Tags, dead.Rows[0])
	}
}

// testBrokenChain holds that a step that says otherwise than the one before is seen.
func testBrokenChain(t *testing.T, _ *lab, e *evidence) {
	text := func(t *Trail, key, value string) {
		for i := range t.Lines {
			t.Lines[i].Fields = maps.Clone(t.Lines[i].Fields)
			t.Lines[i].Fields[key] = value
		}
	}
	retag := func(t *Trail, key string, value any) {
		t.Span.Tags = maps.Clone(t.Span.Tags)
		t.Span.Tags[key] = value
		if t.Span.Operation == spanEvent {
			t.Events[0] = t.Span
		}
	}
	for _, c := range []struct {
		trail *Trail
		spoil func(*Trail)
		want  string
	}{
		{e.stillAway[0], func(t *Trail) { text(t, "reason", "es_429") }, "reason of a line: got es_429, want es_connect"},
		{e.stillAway[0], func(t *Trail) { text(t, "op", "delete") }, "op of a line: got delete, want upsert"},
		{e.stillAway[0], func(t *Trail) { text(t, "obs_schema", "labs-009-v2") }, "obs_schema of a line: got labs-009-v2"},
		{e.stillAway[0], func(t *Trail) { text(t, "span_id", "0000000000000000") }, "no line is of the span"},
		{e.stillAway[0], func(t *Trail) { t.Rows[0].Reason = "es_5xx" }, "reason of a row: got es_5xx, want es_connect"},
		{e.stillAway[0], func(t *Trail) { t.Rows[0].Attempts = 0 }, "attempts of a row: got 0, want 1"},
		{e.stillAway[0], func(t *Trail) { t.Rows[0].RetryAt = nil }, "time of the retry is set: got false"},
		{e.stillAway[0], func(t *Trail) { retag(t, "error", true) }, "ERROR of the span: got true, want false"},
		{e.of("failed")[0], func(t *Trail) { t.Rows[0].Status = "done" }, "status of a row: got done, want failed"},
		{e.of("failed")[0], func(t *Trail) { retag(t, "error", nil) }, "ERROR of the span: got false, want true"},
		{e.of("failed")[0], func(t *Trail) { retag(t, "wordloom.entity_id", tag(t.Span, "wordloom.outbox_event_id")) }, "entity of a row"},
		{e.of("partial")[0], func(t *Trail) { text(t, "result", "ok") }, "result of a line: got ok, want partial"},
		{e.of("partial")[0], func(t *Trail) { t.Rows = t.Rows[1:] }, "rows: got"},
		{e.of("noop")[0], func(t *Trail) { t.Rows[0].Status = "failed" }, "status of a row: got failed, want done"},
	} {
		spoilt := *c.trail
		spoilt.Lines, spoilt.Rows, spoilt.Events = slices.Clone(spoilt.Lines), slices.Clone(spoilt.Rows), slices.Clone(spoilt.Events)
		c.spoil(&spoilt)
		if err := spoilt.check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.trail.Symptom, err, c.want)
		}
	}
}

// testProducersTrace holds that a trace of the application goes on in weft, and that the
// tries of one event are beside each other in it.
func testProducersTrace(t *testing.T, l *lab, e *evidence) {
	for _, trail := range append(slices.Clone(e.stillAway), e.of("failed")[0], e.of("noop")[0]) {
		i := slices.IndexFunc(trail.Trace.Spans, func(s watch.Span) bool { return s.Service == appService })
		if i < 0 {
			t.Errorf("%s: no span of the application in %+v", trail.Symptom, trail.Trace)
			continue
		}
		producer := trail.Trace.Spans[i]
		if !slices.ContainsFunc(trail.Span.References, func(r watch.Reference) bool { return r.Type == "CHILD_OF" && r.SpanID == producer.ID }) {
			t.Errorf("%s: got references %v, want the producer %s as parent", trail.Symptom, trail.Span.References, producer.ID)
		}
	}
	first := e.stillAway[0].Span
	tries := spans(t, l, watch.Query{Service: service, Operation: spanEvent, Tags: map[string]string{
		"wordloom.outbox_event_id": tag(first, "wordloom.outbox_event_id"),
	}})
	slices.SortFunc(tries, func(a, b watch.Span) int { return a.Start.Compare(b.Start) })
	for i, s := range tries {
		want := "retry"
		if i == len(tries)-1 {
			want = "ok"
		}
		if s.TraceID != first.TraceID || tag(s, "result") != want || tag(s, "attempt") != strconv.Itoa(i+1) {
			t.Errorf("try %d of %d: got %v in trace %s, want result %s in %s", i+1, len(tries), s.Tags, s.TraceID, want, first.TraceID)
		}
	}
	if len(tries) < 2 {
		t.Errorf("got %d tries of an event that met the outage, want a second one", len(tries))
	}
}

func testServiceAndOperation(t *testing.T, l *lab, _ *evidence) {
	services, err := l.jaeger.Services(t.Context())
	if err != nil || !slices.Contains(services, service) || !slices.Contains(services, appService) {
		t.Errorf("services: got %v, %v, want %s and %s", services, err, service, appService)
	}
	operations, err := l.jaeger.Operations(t.Context(), service)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{spanClaim, spanBatch, spanEvent} {
		if !slices.Contains(operations, want) {
			t.Errorf("operations: got %v, want %s", operations, want)
		}
		if len(spans(t, l, watch.Query{Service: service, Operation: want})) == 0 {
			t.Errorf("%s: no span", want)
		}
	}
}

// testOutboxEventID holds that the id of the row finds the row's spans and no other, that
// the id of the entity is not taken for it, and that no span of a batch has it.
func testOutboxEventID(t *testing.T, l *lab, e *evidence) {
	const key = "wordloom.outbox_event_id"
	for name, event := range map[string]struct{ id, entity outbox.ID }{
		"poisoned": {e.poisoned.ID, e.poisoned.Key.ID}, "deleted": {e.deleted.ID, e.deleted.Key.ID},
	} {
		found := spans(t, l, watch.Query{Service: service, Operation: spanEvent, Tags: map[string]string{key: event.id.String()}})
		if len(found) != 1 || tag(found[0], "wordloom.entity_id") != event.entity.String() {
			t.Errorf("%s: got %d spans %+v, want the one of its entity", name, len(found), found)
		}
		for _, q := range []watch.Query{
			{Service: service, Operation: spanEvent, Tags: map[string]string{key: event.entity.String()}},
			{Service: service, Operation: spanBatch, Tags: map[string]string{key: event.id.String()}},
		} {
			if found := spans(t, l, q); len(found) != 0 {
				t.Errorf("%s, by %s %v: got %+v, want nothing", name, q.Operation, q.Tags, found)
			}
		}
	}
}

// testClaimBatchID holds that the id of a batch finds the batch and its events, wherever
// their traces began.
func testClaimBatchID(t *testing.T, l *lab, e *evidence) {
	for _, trail := range append(slices.Clone(e.stillAway), e.trails...) {
		id := tag(trail.Span, "wordloom.claim_batch_id")
		byID := map[string]string{"wordloom.claim_batch_id": id}
		batches := spans(t, l, watch.Query{Service: service, Operation: spanBatch, Tags: byID})
		if len(batches) != 1 {
			t.Errorf("%s: got %d batches of id %q, want one", trail.Symptom, len(batches), id)
			continue
		}
		events := spans(t, l, watch.Query{Service: service, Operation: spanEvent, Tags: byID})
		if got := float64(len(events)); got != batches[0].Tags["wordloom.event_spans"] || !slices.ContainsFunc(events, func(s watch.Span) bool {
			return s.ID == trail.Events[0].ID
		}) {
			t.Errorf("%s: got %v spans of events of the batch %+v, want as many as it counts, and that of the trail among them", trail.Symptom, got, batches[0].Tags)
		}
	}
}

// testSchema holds that every span says whose vocabulary it speaks.
func testSchema(t *testing.T, l *lab, _ *evidence) {
	by := func(schema string) map[string]string { return map[string]string{"wordloom.obs_schema": schema} }
	for _, operation := range []string{spanClaim, spanBatch, spanEvent} {
		all := spans(t, l, watch.Query{Service: service, Operation: operation, Limit: many})
		known := spans(t, l, watch.Query{Service: service, Operation: operation, Tags: by(telemetry.Schema), Limit: many})
		if len(known) == 0 || len(known) < len(all) {
			t.Errorf("%s: got %d of %d spans with the schema, want all", operation, len(known), len(all))
		}
		if other := spans(t, l, watch.Query{Service: service, Operation: operation, Tags: by("labs-009-v2")}); len(other) != 0 {
			t.Errorf("%s: got %d spans of another schema, want none", operation, len(other))
		}
	}
}

// many is more traces than a run has.
const many = 100_000

// testResultsOfBatches holds that a batch says of itself what its events say of theirs:
// no batch is ok above an event that is not, and ERROR stands for failed alone.
func testResultsOfBatches(t *testing.T, l *lab, _ *evidence) {
	worst := map[string]string{} // of a batch's spans of events
	for _, s := range spans(t, l, watch.Query{Service: service, Operation: spanEvent, Limit: many}) {
		id, result := tag(s, "wordloom.claim_batch_id"), tag(s, "result")
		if worst[id] == "" || result != "ok" && worst[id] != "failed" {
			worst[id] = result
		}
	}
	results := map[string]int{}
	for _, b := range spans(t, l, watch.Query{Service: service, Operation: spanBatch, Limit: many}) {
		result := tag(b, "result")
		results[result]++
		n := func(key string) float64 { f, _ := b.Tags[key].(float64); return f }
		of := fmt.Sprintf("batch %s, %s", tag(b, "wordloom.claim_batch_id"), result)
		if got := b.Tags["error"] == true; got != (result == "failed") {
			t.Errorf("%s: status ERROR is %v", of, got)
		}
		if n("ok_count")+n("retry_count")+n("failed_count") != n("batch_size") || n("batch_size") < 1 {
			t.Errorf("%s: got counts %v + %v + %v of %v, want them all", of, n("ok_count"), n("retry_count"), n("failed_count"), n("batch_size"))
		}
		if n("success_count") != n("ok_count") || n("failure_count") != n("retry_count")+n("failed_count") {
			t.Errorf("%s: got %v successes and %v failures", of, n("success_count"), n("failure_count"))
		}
		clean := n("retry_count")+n("failed_count") == 0
		if worst := worst[tag(b, "wordloom.claim_batch_id")]; (result == "ok") != clean || worst != "" && (worst == "ok") != clean {
			t.Errorf("%s: got %v retries and %v failures, and %q as the worst of its events", of, n("retry_count"), n("failed_count"), worst)
		}
	}
	if results["ok"] == 0 || results["retry"] == 0 || results["partial"] == 0 {
		t.Errorf("got batches with %v, want some that are ok, retry and partial", results)
	}
}

func spans(t *testing.T, l *lab, q watch.Query) []watch.Span {
	t.Helper()
	found, err := l.spans(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
