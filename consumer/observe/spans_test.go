package observe

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/outbox"
)

// mixedBatch is a batch in which everything happens that a projection may answer.
func mixedBatch(t *testing.T) (*watched, *observer.ObservedLogs) {
	t.Helper()
	w, tracing := watch(t)
	core, logs := observer.New(zapcore.DebugLevel)
	marks := outbox.Marks{"wordloom.labs.es_429.injected": true, "wordloom.labs.es_429.every_n": int64(3)}
	first := aRow(1, outbox.Upsert)
	newFlight(t, tracing, zap.New(core)).carry(outbox.Settled{At: time.Unix(9, 0)}, []outbox.Outcome{
		outbox.OK(), outbox.NoOp(outbox.NoopES404), {Verdict: outbox.Retry, Reason: outbox.ReasonES429, Detail: "429: busy", Marks: marks},
		{Verdict: outbox.Failed, Reason: outbox.ReasonES4xx, Detail: "400: bad field", Correlation: "request-7"},
	}, []outbox.Event{before(first, 5), traced(first, "01")}, []outbox.Event{aRow(2, outbox.Delete)},
		[]outbox.Event{aRow(3, outbox.Upsert)}, []outbox.Event{traced(aRow(4, outbox.Upsert), "00")})
	return w, logs
}

// eventSpans returns the spans of events by the last byte of the event's id.
func (w *watched) eventSpans() map[byte]sdktrace.ReadOnlySpan {
	w.t.Helper()
	by := map[byte]sdktrace.ReadOnlySpan{}
	for _, s := range w.named("outbox.process") {
		by[uuid.MustParse(attributes(s)["wordloom.outbox_event_id"])[15]] = s
	}
	return by
}

func TestSpanOfABatch(t *testing.T) {
	t.Parallel()
	w, _ := mixedBatch(t)
	b, claim := w.only("projection.process_batch"), w.only("outbox.claim_batch")
	want := map[string]string{
		"projection": projName, "wordloom.projection": projName, "wordloom.claim_batch_id": theBatch.String(), "batch_size": "5",
		"op": "mixed", "attempt": "2", "result": "partial", "reason": "es_4xx", "ok_count": "3", "retry_count": "1", "failed_count": "1",
		"success_count": "3", "failure_count": "2", "noop_count": "2", "mismatch_count": "0", "wordloom.event_spans": "5",
	}
	if d := cmp.Diff(want, attributes(b)); d != "" { // no single event's id among them
		t.Errorf("batch (-want +got):\n%s", d)
	}
	if b.Status().Code != codes.Unset {
		t.Errorf("status of a partial batch: %v, want none", b.Status())
	}
	if b.Parent().IsValid() {
		t.Error("the batch has a parent")
	}
	links := b.Links()
	if len(links) != 3 || links[0].SpanContext.SpanID() != claim.SpanContext().SpanID() {
		t.Fatalf("got links %v, want one to the lease and two to the producers", links)
	}
	for _, l := range links[1:] {
		if l.SpanContext.TraceID().String() != aTrace || l.SpanContext.SpanID().String() != aParent || len(l.Attributes) > 0 {
			t.Errorf("link to %v with %v, want the producer's span", l.SpanContext, l.Attributes)
		}
	}
	if e := b.Events(); len(e) != 1 || e[0].Name != "projected" {
		t.Errorf("got span events %v, want one when the projection has answered", e)
	}
}

func TestSpansOfItsEvents(t *testing.T) {
	t.Parallel()
	w, _ := mixedBatch(t)
	b, by := w.only("projection.process_batch"), w.eventSpans()
	type shown struct{ result, reason, noop, deduped, attempt, version, op, entity, detail, marks, correlation string }
	got := map[byte]shown{}
	for n, s := range by {
		a := attributes(s)
		if s.SpanKind() != trace.SpanKindConsumer || !s.StartTime().Equal(b.StartTime()) || !s.EndTime().Equal(b.EndTime()) {
			t.Errorf("event %d: kind %v, %v to %v, want a consumer's for as long as the batch", n, s.SpanKind(), s.StartTime(), s.EndTime())
		}
		if a["wordloom.entity_id"] == a["wordloom.outbox_event_id"] || a["wordloom.claim_batch_id"] != theBatch.String() || a["projection"] != projName ||
			a["wordloom.entity_type"] != "book" || a["wordloom.outbox_event_version"] == "" {
			t.Errorf("event %d has attributes %v", n, a)
		}
		got[n] = shown{a["result"], a["reason"], a["noop"], a["deduped"], a["attempt"], a["projection_version"], a["op"], a["wordloom.entity_id"],
			a["wordloom.detail"] + s.Status().Description, a["wordloom.labs.es_429.injected"] + a["wordloom.labs.es_429.every_n"], a["correlation_id"]}
		if failed := s.Status().Code == codes.Error; failed != (n == 4) {
			t.Errorf("event %d: status %v, want an error for a dead letter alone", n, s.Status())
		}
	}
	want := map[byte]shown{
		1: {"ok", "", "", "", "2", "2", "upsert", entityID(1).String(), "", "", ""},
		2: {"ok", "es_404", "true", "true", "2", "2", "delete", entityID(2).String(), "", "", ""},
		3: {"retry", "es_429", "", "", "2", "2", "upsert", entityID(3).String(), "429: busy", "true3", ""},
		4: {"failed", "es_4xx", "", "", "2", "2", "upsert", entityID(4).String(), "400: bad field", "", "request-7"},
		5: {"ok", "superseded", "true", "true", "2", "2", "upsert", entityID(1).String(), "", "", ""},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(shown{})); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
}

func TestSpansOfEventsContinueTheirProducers(t *testing.T) {
	t.Parallel()
	w, _ := mixedBatch(t)
	b, by := w.only("projection.process_batch"), w.eventSpans()
	own, theirs := by[3], by[4]
	if own.Parent().SpanID() != b.SpanContext().SpanID() || own.SpanContext().TraceID() != b.SpanContext().TraceID() {
		t.Error("an event without a producer is not below its batch")
	}
	if theirs.Parent().SpanID().String() != aParent || !theirs.Parent().IsRemote() || theirs.SpanContext().TraceID().String() != aTrace {
		t.Errorf("an event does not continue its producer's trace: parent %v", theirs.Parent())
	}
	if theirs.SpanContext().TraceState().String() != "vendor=1" {
		t.Errorf("tracestate is %q, want the producer's", theirs.SpanContext().TraceState())
	}
	if l := theirs.Links(); len(l) != 1 || l[0].SpanContext.SpanID() != b.SpanContext().SpanID() {
		t.Errorf("links of an event: %v, want one to its batch", l)
	}
}

// Log lines and spans find each other.
func TestLinesNameTheirSpans(t *testing.T) {
	t.Parallel()
	w, logs := mixedBatch(t)
	b, by := w.only("projection.process_batch"), w.eventSpans()
	for _, tc := range []struct {
		event, id string
		span      sdktrace.ReadOnlySpan
	}{
		{"projection.batch", "", b}, {"projection.event", eventID(2).String(), by[2]},
		{"projection.event", eventID(3).String(), by[3]}, {"projection.event", eventID(4).String(), by[4]},
	} {
		lines := logs.Filter(func(l observer.LoggedEntry) bool {
			f := l.ContextMap()
			return f["event"] == tc.event && (tc.id == "" || f["event_id"] == tc.id)
		}).All()
		if len(lines) != 1 {
			t.Errorf("%s %s: got %d lines, want 1", tc.event, tc.id, len(lines))
			continue
		}
		f := lines[0].ContextMap()
		if f["trace_id"] != tc.span.SpanContext().TraceID().String() || f["span_id"] != tc.span.SpanContext().SpanID().String() {
			t.Errorf("%s %s: the line has trace %v and span %v, want those of its span", tc.event, tc.id, f["trace_id"], f["span_id"])
		}
		if got, _ := f["correlation_id"].(string); got != attributes(tc.span)["correlation_id"] {
			t.Errorf("%s %s: the line has correlation_id %q, want the span's", tc.event, tc.id, got)
		}
	}
}

func TestResultOfABatch(t *testing.T) {
	t.Parallel()
	retry, failed := outbox.Outcome{Verdict: outbox.Retry, Reason: outbox.ReasonES5xx}, outbox.Reject(outbox.ReasonES4xx, "x")
	for _, tc := range []struct {
		want     string
		outcomes []outbox.Outcome
	}{
		{"ok", []outbox.Outcome{outbox.OK(), outbox.NoOp(outbox.NoopAlreadyApplied)}},
		{"retry", []outbox.Outcome{retry, retry}},
		{"partial", []outbox.Outcome{outbox.OK(), retry}},
		{"partial", []outbox.Outcome{failed, outbox.OK()}},
		{"failed", []outbox.Outcome{failed, failed}},
	} {
		t.Run(fmt.Sprintf("%s/%v", tc.want, tc.outcomes[0].Verdict), func(t *testing.T) {
			t.Parallel()
			w, tracing := watch(t)
			f := newFlight(t, tracing, zap.NewNop())
			f.carry(outbox.Settled{}, tc.outcomes, []outbox.Event{aRow(1, outbox.Upsert)}, []outbox.Event{aRow(2, outbox.Upsert)})
			b := w.only("projection.process_batch")
			if a := attributes(b); a["result"] != tc.want || a["op"] != "upsert" {
				t.Errorf("got %v, want the result %s", a, tc.want)
			}
			if isError := b.Status().Code == codes.Error; isError != (tc.want == "failed") {
				t.Errorf("status %v with result %s", b.Status(), tc.want)
			}
			f.wantMetric(1, "weft_batches_total", "result", tc.want)
			f.wantMetric(1, "weft_batches_total")
		})
	}
}

// Of the events that went well those that are chosen have a span, of the others each.
func TestSpansAreSampled(t *testing.T) {
	t.Parallel()
	w, tracing := watch(t)
	asked := 0
	tracing.Sample = func(_ trace.SpanContext, event uint64) bool {
		asked++
		return event == eventID(7).Digest()
	}
	const size = 60
	var groups [][]outbox.Event
	var outcomes []outbox.Outcome
	for n := byte(1); n <= size; n++ {
		groups = append(groups, []outbox.Event{traced(aRow(n, outbox.Upsert), "01")})
		o := outbox.OK()
		switch n {
		case 50:
			o = outbox.NoOp(outbox.NoopVersionAhead)
		case 51:
			o = outbox.Reject(outbox.ReasonES5xx, "x")
		case 52:
			o = outbox.Reject(outbox.ReasonES4xx, "x")
		}
		outcomes = append(outcomes, o)
	}
	newFlight(t, tracing, zap.NewNop()).carry(outbox.Settled{}, outcomes, groups...)
	var got []byte
	for n := range w.eventSpans() {
		got = append(got, n)
	}
	slices.Sort(got)
	if want := []byte{7, 50, 51, 52}; !slices.Equal(got, want) {
		t.Errorf("spans of events %v, want %v", got, want)
	}
	if asked != size-3 {
		t.Errorf("asked about %d events, want the %d that went well", asked, size-3)
	}
	b := w.only("projection.process_batch")
	if a := attributes(b); a["wordloom.event_spans"] != "4" {
		t.Errorf("event spans: %s, want 4", a["wordloom.event_spans"])
	}
	if n := len(b.Links()); n != 1+maxLinks {
		t.Errorf("got %d links, want one to the lease and %d to producers", n, maxLinks)
	}
}

func TestSpanOfALease(t *testing.T) {
	t.Parallel()
	w, tracing := watch(t)
	f := newFlight(t, tracing, zap.NewNop())
	began := time.Now().Add(-time.Minute)
	lease := func(l *outbox.Lease, err error) *Batch {
		return f.o.Leased(t.Context(), theBatch, 10, began, l, err)
	}
	if told := lease(&outbox.Lease{Events: make([][]outbox.Event, 10), Obstacles: make([]*outbox.Obstacle, 10)}, nil); told != nil || len(w.rec.Ended()) != 0 {
		t.Error("a lease that found nothing has a span, or a batch")
	}
	told := lease(&outbox.Lease{Events: [][]outbox.Event{{aRow(1, outbox.Upsert)}, nil, nil}, Obstacles: []*outbox.Obstacle{nil, {}, {}}}, nil)
	if lease(nil, errors.New("no answer")) != nil {
		t.Error("a lease without an answer has a batch")
	}
	spans := w.named("outbox.claim_batch")
	if len(spans) != 2 || told == nil {
		t.Fatalf("got %d spans and batch %v, want 2 and one", len(spans), told)
	}
	want := map[string]string{"projection": projName, "wordloom.projection": projName, "limit": "10", "result": "partial", "batch_size": "1",
		"claimed": "1", "due_count": "0", "ready_count": "1", "blocked_count": "2"}
	if d := cmp.Diff(want, attributes(spans[0])); d != "" {
		t.Errorf("lease (-want +got):\n%s", d)
	}
	if d := spans[0].EndTime().Sub(spans[0].StartTime()); d < time.Minute {
		t.Errorf("the span lasts %v, want the minute of the lease", d)
	}
	if a := attributes(spans[1]); a["result"] != "failed" || spans[1].Status().Code != codes.Error {
		t.Errorf("lease without an answer: %v, %v, want an error", a, spans[1].Status())
	}

	told.Abandoned(errors.New("term is over"))
	got := w.only("projection.process_batch")
	if l := got.Links(); len(l) != 1 || l[0].SpanContext.SpanID() != spans[0].SpanContext().SpanID() {
		t.Errorf("links %v, want one to the lease", l)
	}
	if a := attributes(got); a["result"] != "retry" || a["wordloom.abandoned"] != "true" || got.Status().Code == codes.Error {
		t.Errorf("abandoned batch: %v, %v, want no error", a, got.Status())
	}
}

func TestProducer(t *testing.T) {
	t.Parallel()
	const good = "00-" + aTrace + "-" + aParent + "-01"
	for _, tc := range []struct {
		name, parent, state string
		valid, sampled      bool
		wantState           string
	}{
		{"Sampled", good, "", true, true, ""},
		{"State", good, "a=1,b=2", true, true, "a=1,b=2"},
		{"BadState", good, "=;", true, true, ""},
		{"NotSampled", good[:53] + "00", "", true, false, ""},
		{"OtherFlags", good[:53] + "03", "", true, true, ""},
		{"LaterVersion", "cc" + good[2:] + "-more", "", true, true, ""},
		{"LaterVersionSame", "cc" + good[2:], "", true, true, ""},
		{"None", "", "", false, false, ""},
		{"Short", good[:54], "", false, false, ""},
		{"Long", good + "-more", "", false, false, ""},
		{"LaterVersionGlued", "cc" + good[2:] + "more", "", false, false, ""},
		{"VersionFF", "ff" + good[2:], "", false, false, ""},
		{"UpperCase", "00-0AF7651916CD43DD8448EB211C80319C-" + aParent + "-01", "", false, false, ""},
		{"NoHex", "00-0xf7651916cd43dd8448eb211c80319c-" + aParent + "-01", "", false, false, ""},
		{"ZeroTrace", "00-00000000000000000000000000000000-" + aParent + "-01", "", false, false, ""},
		{"ZeroSpan", "00-" + aTrace + "-0000000000000000-01", "", false, false, ""},
		{"Underscores", "00_" + aTrace + "_" + aParent + "_01", "", false, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			sc := producerOf(&outbox.Event{Traceparent: tc.parent, Tracestate: tc.state}, propagation.MapCarrier{})
			if sc.IsValid() != tc.valid || sc.IsSampled() != tc.sampled || sc.TraceState().String() != tc.wantState {
				t.Fatalf("got %+v, want valid %v, sampled %v, state %q", sc, tc.valid, tc.sampled, tc.wantState)
			}
			if tc.valid && (sc.TraceID().String() != aTrace || sc.SpanID().String() != aParent || !sc.IsRemote()) {
				t.Errorf("got %+v", sc)
			}
		})
	}
}
