package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/outbox"
)

// watched are the spans that a pipeline has ended.
type watched struct {
	t   *testing.T
	rec *tracetest.SpanRecorder
}

func watch(t *testing.T) (*watched, Tracing) {
	w := &watched{t, tracetest.NewSpanRecorder()}
	tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(w.rec))
	return w, Tracing{Tracer: tp.Tracer("test")}
}

func (w *watched) named(name string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(w.rec.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() != name })
}

// only returns the one span of that name.
func (w *watched) only(name string) sdktrace.ReadOnlySpan {
	w.t.Helper()
	spans := w.named(name)
	if len(spans) != 1 {
		w.t.Fatalf("%s: got %d spans, want 1", name, len(spans))
	}
	return spans[0]
}

// attributes returns those of s as they are shown, without the ids of this run.
func attributes(s sdktrace.ReadOnlySpan) map[string]string {
	m := map[string]string{}
	for _, kv := range s.Attributes() {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

// flight is a batch of events that are answered with outcomes, with spans.
func flight(t *testing.T, tracing Tracing, log *zap.Logger, outcomes []outbox.Outcome, groups ...[]outbox.Event) *batch {
	t.Helper()
	m, err := NewMetrics(newRegistry(), []string{projName})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(nil, versioned{&scripted{}}, Config{
		Group: "g", BatchSize: 100, Concurrency: 1, Poll: time.Second, BreakerThreshold: 20, Tracing: tracing,
		Retry: RetryPolicy{MaxAttempts: 4, BaseBackoff: time.Second, MaxBackoff: time.Second},
	}, log, m)
	if err != nil {
		t.Fatal(err)
	}
	b := &batch{id: "batch-1"}
	for _, events := range groups {
		b.groups = append(b.groups, &group{key: events[0].Key, events: events})
		b.events += len(events)
	}
	b.span = p.spans.batch(context.Background(), b, nil)
	v := p.judge(b, outcomes)
	v.count()
	b.span.finish(b, v, outbox.Settled{Rows: len(v.settlements)})
	p.report(b, v, outbox.Settled{}, time.Now())
	return b
}

// versioned is a projection with a version.
type versioned struct{ *scripted }

func (versioned) Version() int { return 2 }

const (
	aTrace  = "0af7651916cd43dd8448eb211c80319c"
	aParent = "b7ad6b7169203331"
)

func aRow(n byte, op outbox.Op) outbox.Event {
	return outbox.Event{
		ID: uuid.UUID{15: n}, Key: outbox.Key{Type: "book", ID: uuid.UUID{0: 0xee, 15: n}}, Op: op, Version: int64(n), Attempts: 1,
		ClaimedAt: time.Unix(1, 0),
	}
}

func traced(e outbox.Event, flags string) outbox.Event {
	e.Traceparent = "00-" + aTrace + "-" + aParent + "-" + flags
	e.Tracestate = "vendor=1"
	return e
}

func TestSpansOfABatch(t *testing.T) {
	t.Parallel()
	w, tracing := watch(t)
	core, logs := observer.New(zapcore.DebugLevel)
	marks := outbox.Marks{"wordloom.labs.es_429.injected": true, "wordloom.labs.es_429.every_n": int64(3)}
	flight(t, tracing, zap.New(core), []outbox.Outcome{
		outbox.OK(), outbox.NoOp(outbox.NoopES404), {Verdict: outbox.Retry, Reason: outbox.ReasonES429, Detail: "429: busy", Marks: marks},
		{Verdict: outbox.Failed, Reason: outbox.ReasonES4xx, Detail: "400: bad field", Correlation: "request-7"},
	}, []outbox.Event{aRow(5, outbox.Upsert), traced(aRow(1, outbox.Upsert), "01")}, []outbox.Event{aRow(2, outbox.Delete)},
		[]outbox.Event{aRow(3, outbox.Upsert)}, []outbox.Event{traced(aRow(4, outbox.Upsert), "00")})

	b := w.only(spanBatch)
	want := map[string]string{
		"projection": projName, "wordloom.projection": projName, "wordloom.claim_batch_id": "batch-1", "batch_size": "5",
		"op": "mixed", "attempt": "2", "result": "partial", "reason": "es_4xx", "ok_count": "3", "retry_count": "1", "failed_count": "1",
		"success_count": "3", "failure_count": "2", "noop_count": "2", "mismatch_count": "0", "wordloom.event_spans": "5",
	}
	if d := cmp.Diff(want, attributes(b)); d != "" {
		t.Errorf("batch (-want +got):\n%s", d)
	}
	if b.Status().Code != codes.Unset {
		t.Errorf("status of a partial batch: %v, want none", b.Status())
	}
	if b.Parent().IsValid() {
		t.Error("the batch has a parent")
	}
	if n := len(b.Links()); n != 2 {
		t.Errorf("got %d links, want 2: the producers", n)
	}
	for _, l := range b.Links() {
		if l.SpanContext.TraceID().String() != aTrace || l.SpanContext.SpanID().String() != aParent || len(l.Attributes) > 0 {
			t.Errorf("link to %v with %v", l.SpanContext, l.Attributes)
		}
	}

	by := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range w.named(spanEvent) {
		by[attributes(s)["wordloom.outbox_event_id"]] = s
		if s.SpanKind() != trace.SpanKindConsumer || !s.StartTime().Equal(b.StartTime()) || !s.EndTime().Equal(b.EndTime()) {
			t.Errorf("event: kind %v, %v to %v", s.SpanKind(), s.StartTime(), s.EndTime())
		}
	}
	type shown struct{ result, reason, noop, deduped, attempt, version, entity, detail, marks, correlation string }
	got := map[byte]shown{}
	for n := byte(1); n <= 5; n++ {
		s, ok := by[uuid.UUID{15: n}.String()]
		if !ok {
			t.Fatalf("event %d has no span", n)
		}
		a := attributes(s)
		if a["wordloom.entity_id"] == a["wordloom.outbox_event_id"] || a["wordloom.claim_batch_id"] != "batch-1" || a["projection"] != projName {
			t.Errorf("event %d: %v", n, a)
		}
		got[n] = shown{a["result"], a["reason"], a["noop"], a["deduped"], a["attempt"], a["projection_version"], a["wordloom.entity_id"],
			a["wordloom.detail"] + s.Status().Description, a["wordloom.labs.es_429.injected"] + a["wordloom.labs.es_429.every_n"], a["correlation_id"]}
		if failed := s.Status().Code == codes.Error; failed != (n == 4) {
			t.Errorf("event %d: status %v", n, s.Status())
		}
	}
	entity := func(n byte) string { return uuid.UUID{0: 0xee, 15: n}.String() }
	wantEvents := map[byte]shown{
		1: {"ok", "", "", "", "2", "2", entity(1), "", "", ""},
		2: {"ok", "es_404", "true", "true", "2", "2", entity(2), "", "", ""},
		3: {"retry", "es_429", "", "", "2", "2", entity(3), "429: busy", "true3", ""},
		4: {"failed", "es_4xx", "", "", "2", "2", entity(4), "400: bad field", "", "request-7"},
		5: {"ok", "superseded", "true", "true", "2", "2", entity(5), "", "", ""},
	}
	if d := cmp.Diff(wantEvents, got, cmp.AllowUnexported(shown{})); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}

	own := by[uuid.UUID{15: 3}.String()]
	if own.Parent().SpanID() != b.SpanContext().SpanID() || own.SpanContext().TraceID() != b.SpanContext().TraceID() {
		t.Error("an event without a producer is not below its batch")
	}
	theirs := by[uuid.UUID{15: 4}.String()]
	if theirs.Parent().SpanID().String() != aParent || !theirs.Parent().IsRemote() || theirs.SpanContext().TraceID().String() != aTrace {
		t.Errorf("an event does not continue its producer's trace: parent %v", theirs.Parent())
	}
	if theirs.SpanContext().TraceState().String() != "vendor=1" {
		t.Errorf("tracestate: %q", theirs.SpanContext().TraceState())
	}
	if l := theirs.Links(); len(l) != 1 || l[0].SpanContext.SpanID() != b.SpanContext().SpanID() {
		t.Errorf("links of an event: %v, want one to its batch", l)
	}

	for _, tc := range []struct {
		event, id string
		span      sdktrace.ReadOnlySpan
	}{{"projection.batch", "", b}, {"projection.event", uuid.UUID{15: 3}.String(), own}, {"projection.event", uuid.UUID{15: 4}.String(), theirs}} {
		found := false
		for _, l := range logs.All() {
			f := l.ContextMap()
			if f["event"] != tc.event || tc.id != "" && f["event_id"] != tc.id {
				continue
			}
			found = true
			if f["trace_id"] != tc.span.SpanContext().TraceID().String() || f["span_id"] != tc.span.SpanContext().SpanID().String() {
				t.Errorf("%s %s: line has trace %v and span %v", tc.event, tc.id, f["trace_id"], f["span_id"])
			}
			if got, _ := f["correlation_id"].(string); got != attributes(tc.span)["correlation_id"] {
				t.Errorf("%s %s: line has correlation_id %q, want the span's", tc.event, tc.id, got)
			}
		}
		if !found {
			t.Errorf("%s %s: no line", tc.event, tc.id)
		}
	}
}

func TestSpansOfResults(t *testing.T) {
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
			flight(t, tracing, zap.NewNop(), tc.outcomes, []outbox.Event{aRow(1, outbox.Upsert)}, []outbox.Event{aRow(2, outbox.Upsert)})
			b := w.only(spanBatch)
			if a := attributes(b); a["result"] != tc.want || a["op"] != "upsert" {
				t.Errorf("got %v", a)
			}
			if isError := b.Status().Code == codes.Error; isError != (tc.want == "failed") {
				t.Errorf("status %v with result %s", b.Status(), tc.want)
			}
		})
	}
}

// TestSpansAreSampled: of the events that went well those that are chosen, of the
// others each.
func TestSpansAreSampled(t *testing.T) {
	t.Parallel()
	w, tracing := watch(t)
	var asked []uuid.UUID
	tracing.Sample = func(_ trace.SpanContext, id [16]byte) bool {
		asked = append(asked, id)
		return id[15] == 7
	}
	var groups [][]outbox.Event
	var outcomes []outbox.Outcome
	for n := byte(1); n <= 100; n++ {
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
	flight(t, tracing, zap.NewNop(), outcomes, groups...)
	var got []byte
	for _, s := range w.named(spanEvent) {
		got = append(got, uuid.MustParse(attributes(s)["wordloom.outbox_event_id"])[15])
	}
	if want := []byte{7, 50, 51, 52}; !slices.Equal(got, want) {
		t.Errorf("spans of events %v, want %v", got, want)
	}
	if len(asked) != 97 {
		t.Errorf("asked about %d events, want the 97 that went well", len(asked))
	}
	b := w.only(spanBatch)
	if a := attributes(b); a["wordloom.event_spans"] != "4" {
		t.Errorf("event spans: %s", a["wordloom.event_spans"])
	}
	if n := len(b.Links()); n != maxLinks {
		t.Errorf("got %d links, want %d", n, maxLinks)
	}
}

func TestSpanOfAClaim(t *testing.T) {
	t.Parallel()
	w, tracing := watch(t)
	s := newSpans(tracing, &scripted{})
	began := time.Now().Add(-time.Minute)
	if got := s.claim(t.Context(), began, 10, &outbox.Claimed{}, nil); len(w.rec.Ended()) != 0 || !got.at.IsZero() {
		t.Error("an idle claim has a span")
	}
	e := aRow(1, outbox.Upsert)
	claimed := s.claim(t.Context(), began, 10, &outbox.Claimed{Ready: []outbox.Event{e}, Blocked: make([]outbox.Blocked, 2)}, nil)
	s.claim(t.Context(), began, 10, nil, errors.New("no answer"))
	spans := w.named(spanClaim)
	if len(spans) != 2 {
		t.Fatalf("got %d spans, want 2", len(spans))
	}
	want := map[string]string{"projection": projName, "wordloom.projection": projName, "limit": "10", "result": "partial", "batch_size": "1",
		"claimed": "1", "due_count": "0", "ready_count": "1", "blocked_count": "2"}
	if d := cmp.Diff(want, attributes(spans[0])); d != "" {
		t.Errorf("claim (-want +got):\n%s", d)
	}
	if d := spans[0].EndTime().Sub(spans[0].StartTime()); d < time.Minute {
		t.Errorf("the claim's span lasts %v, want the minute of the claim", d)
	}
	if a := attributes(spans[1]); a["result"] != "failed" || spans[1].Status().Code != codes.Error {
		t.Errorf("claim without an answer: %v, %v", a, spans[1].Status())
	}

	b := s.batch(t.Context(), &batch{groups: []*group{newGroup(e, nil), newGroup(e, nil)}}, []claimSpan{claimed, {at: time.Unix(9, 0)}})
	b.abandon(errors.New("term is over"))
	got := w.only(spanBatch)
	if l := got.Links(); len(l) != 1 || l[0].SpanContext.SpanID() != spans[0].SpanContext().SpanID() {
		t.Errorf("links %v, want one to the claim", l)
	}
	if a := attributes(got); a["result"] != "retry" || a["wordloom.abandoned"] != "true" || got.Status().Code == codes.Error {
		t.Errorf("abandoned batch: %v, %v", a, got.Status())
	}
}

func TestClaimsAreForgotten(t *testing.T) {
	t.Parallel()
	var r run
	for i := range 3 * maxClaims {
		r.remember(claimSpan{at: time.Unix(int64(i+1), 0)})
	}
	r.remember(claimSpan{})
	if len(r.claims) != maxClaims || r.claims[maxClaims-1].at.Unix() != 3*maxClaims {
		t.Errorf("got %d claims, the last of %v", len(r.claims), r.claims[len(r.claims)-1].at)
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
			sc := producerOf(&outbox.Event{Traceparent: tc.parent, Tracestate: tc.state})
			if sc.IsValid() != tc.valid || sc.IsSampled() != tc.sampled || sc.TraceState().String() != tc.wantState {
				t.Fatalf("got %+v", sc)
			}
			if tc.valid && (sc.TraceID().String() != aTrace || sc.SpanID().String() != aParent || !sc.IsRemote()) {
				t.Errorf("got %+v", sc)
			}
		})
	}
}
