package observe

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Every series exists at zero from the start, so that no rate begins with a gap.
func TestEverySeriesExistsAtZero(t *testing.T) {
	t.Parallel()
	f := newFlight(t, Tracing{}, zap.NewNop())
	ops, reasons, noops := 3, len(outbox.Reasons()), len(outbox.Noops())
	for name, want := range map[string]int{
		"outbox_processed_total": ops, "outbox_failed_total": ops * reasons, "outbox_terminal_failed_total": ops * reasons,
		"outbox_retry_scheduled_total": ops * reasons, "outbox_idempotent_noop_total": ops * noops, "outbox_owner_mismatch_skips_total": 1,
		"outbox_inflight_events": 1, "outbox_inflight": 1, "weft_looks_total": 2, "outbox_last_success_timestamp_seconds": 1, "weft_batches_total": 4, "weft_fenced_writes_total": 1,
		"weft_finished_kept_total": 1, "weft_blocked_entities": 1, "weft_isolated_entities": 1, "weft_pipeline_phase": 5,
		"weft_stage_duration_seconds": 3, "weft_event_latency_seconds": 1,
	} {
		if sum, n := testenv.Metric(t, f.reg, name, "projection", projName); n != want || sum != 0 {
			t.Errorf("%s has %d series of %v in all, want %d of 0", name, n, sum, want)
		}
	}
}

// The counters count what the database has changed: not what could not be settled.
func TestMetricsCountWhatTheDatabaseChanged(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	f := newFlight(t, Tracing{}, zap.New(core))
	first, stuck := aRow(1, outbox.Upsert), aRow(6, outbox.Delete)
	at := time.Unix(1_700_000_010, 500_000_000)
	second := aRow(2, outbox.Delete)
	first.CreatedAt, second.CreatedAt = at.Add(-time.Second), at.Add(-3*time.Second)
	b, told := f.answered([]outbox.Outcome{
		outbox.OK(), outbox.NoOp(outbox.NoopES404), outbox.Reject(outbox.ReasonES429, "busy"), outbox.Reject(outbox.ReasonES4xx, "bad"), outbox.OK(),
	}, []outbox.Event{before(first, 5), first}, []outbox.Event{second}, []outbox.Event{aRow(3, outbox.Upsert)}, []outbox.Event{aRow(4, "merge")},
		[]outbox.Event{before(stuck, 7), stuck})
	f.wantMetric(7, "outbox_inflight_events")
	f.wantMetric(7, "outbox_inflight")
	f.wantMetric(0, "outbox_processed_total")
	told.Settled(b, outbox.Settled{At: at, Left: []outbox.Left{{Key: stuck.Key, Err: outbox.ErrLocked}}}, time.Now())

	f.wantMetric(0, "outbox_inflight_events")
	f.wantMetric(2, "outbox_processed_total", "op", "upsert")
	f.wantMetric(1, "outbox_processed_total", "op", "delete")
	f.wantMetric(3, "outbox_processed_total")
	f.wantMetric(1, "outbox_idempotent_noop_total", "op", "upsert", "reason", "superseded")
	f.wantMetric(1, "outbox_idempotent_noop_total", "op", "delete", "reason", "es_404")
	f.wantMetric(2, "outbox_idempotent_noop_total")
	f.wantMetric(1, "outbox_retry_scheduled_total", "op", "upsert", "reason", "es_429")
	f.wantMetric(1, "outbox_retry_scheduled_total")
	for _, name := range []string{"outbox_failed_total", "outbox_terminal_failed_total"} {
		f.wantMetric(1, name, "op", "other", "reason", "es_4xx") // labels are a closed set, whatever a producer writes
		f.wantMetric(1, name)
	}
	f.wantMetric(2, "outbox_owner_mismatch_skips_total")
	f.wantMetric(1_700_000_010.5, "outbox_last_success_timestamp_seconds")
	f.wantMetric(2, "weft_event_latency_seconds") // of the events whose creation is known
	for _, stage := range []string{"claim", "project", "settle"} {
		f.wantMetric(1, "weft_stage_duration_seconds", "stage", stage)
	}
	f.wantMetric(1, "weft_batches_total", "result", "partial")

	left := logs.Filter(func(e observer.LoggedEntry) bool { return e.ContextMap()["event"] == "outbox.settle_left" }).All()
	if len(left) != 1 || left[0].Level != zapcore.ErrorLevel {
		t.Fatalf("lines about the entity that is left: %v, want one error", left)
	}
	got := left[0].ContextMap()
	for key, want := range map[string]string{
		"event_id": eventID(7).String(), "entity_type": "book", "entity_id": entityID(6).String(), "error": outbox.ErrLocked.Error(),
	} {
		if got[key] != want {
			t.Errorf("the line has %s=%v, want %s", key, got[key], want)
		}
	}
}

// A batch of which nothing was sent is released: nothing is counted and nothing logged.
func TestReleasedBatchIsNotCounted(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.DebugLevel)
	f := newFlight(t, Tracing{}, zap.New(core))
	told := f.o.Leased(t.Context(), theBatch, 1, time.Now(), &outbox.Lease{
		Events: [][]outbox.Event{{aRow(1, outbox.Upsert)}}, Obstacles: []*outbox.Obstacle{nil},
	}, nil)
	told.Settled(&schedule.Batch{ID: theBatch}, outbox.Settled{}, time.Now())
	for _, name := range []string{"weft_batches_total", "outbox_processed_total", "outbox_inflight_events"} {
		f.wantMetric(0, name)
	}
	if n := logs.Filter(func(e observer.LoggedEntry) bool { return e.ContextMap()["event"] == "projection.batch" }).Len(); n != 0 {
		t.Errorf("%d lines that the batch was settled, want none", n)
	}
}

// A term that ends takes its batches out of the gauge.
func TestAbandonedBatchIsNotInFlight(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	f := newFlight(t, Tracing{}, zap.New(core))
	_, told := f.answered([]outbox.Outcome{outbox.OK()}, []outbox.Event{aRow(1, outbox.Upsert)})
	f.wantMetric(1, "outbox_inflight_events")
	told.Abandoned(errors.New("term is over"))
	f.wantMetric(0, "outbox_inflight_events")
	f.wantMetric(0, "outbox_inflight")
	lines := logs.All()
	if len(lines) != 1 || lines[0].Level != zapcore.InfoLevel || lines[0].ContextMap()["event"] != "projection.batch" ||
		lines[0].ContextMap()["result"] != "retry" || lines[0].ContextMap()["error"] != "term is over" {
		t.Errorf("got lines %v, want one at info that the batch was given up", lines)
	}
	f.wantMetric(0, "weft_batches_total")
}

// The lines of events have the keys of the contract, and the level that their fate deserves.
func TestLinesOfEvents(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.DebugLevel)
	first := aRow(1, outbox.Upsert)
	first.Correlation = "request-7"
	newFlight(t, Tracing{}, zap.New(core)).carry(outbox.Settled{At: time.Unix(9, 0)}, []outbox.Outcome{
		outbox.OK(), outbox.NoOp(outbox.NoopAlreadyApplied), outbox.Reject(outbox.ReasonES429, "busy"),
		{Verdict: outbox.Retry, Reason: outbox.ReasonUnknown, Detail: "strange"}, outbox.Reject(outbox.ReasonES4xx, "bad"),
	}, []outbox.Event{before(first, 6), first}, []outbox.Event{aRow(2, outbox.Upsert)}, []outbox.Event{aRow(3, outbox.Upsert)},
		[]outbox.Event{aRow(4, outbox.Upsert)}, []outbox.Event{aRow(5, outbox.Delete)})
	type line struct{ level, id, op, result, reason, error string }
	var got []line
	for _, l := range logs.All() {
		f := l.ContextMap()
		if f["event"] != "projection.event" {
			continue
		}
		for _, key := range []string{"claim_batch_id", "event_id", "entity_type", "entity_id", "op", "event_version", "attempts", "attempt", "batch_size", "result", "reason", "error", "latency_ms"} {
			if _, ok := f[key]; !ok {
				t.Errorf("line %v lacks %s", f, key)
			}
		}
		if f["attempts"] != int64(2) || f["attempt"] != int64(2) || f["batch_size"] != int64(6) || f["claim_batch_id"] != theBatch.String() {
			t.Errorf("line %v, want the second attempt, in the batch of six", f)
		}
		if id := f["correlation_id"]; f["event_id"] == eventID(1).String() && id != "request-7" {
			t.Errorf("the line of the first event has the correlation_id %v, want that of its row", id)
		}
		text := func(key string) string { s, _ := f[key].(string); return s }
		got = append(got, line{l.Level.String(), text("event_id"), text("op"), text("result"), text("reason"), text("error")})
	}
	want := []line{
		{"debug", eventID(6).String(), "upsert", "ok", "superseded", ""},
		{"debug", eventID(1).String(), "upsert", "ok", "", ""},
		{"info", eventID(2).String(), "upsert", "ok", "already_applied", ""},
		{"info", eventID(3).String(), "upsert", "retry", "es_429", "busy"},
		{"warn", eventID(4).String(), "upsert", "retry", "unknown_exception", "strange"},
		{"error", eventID(5).String(), "delete", "failed", "es_4xx", "bad"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got lines\n%v\nwant\n%v", got, want)
	}
	batch := logs.Filter(func(e observer.LoggedEntry) bool { return e.ContextMap()["event"] == "projection.batch" }).All()
	if len(batch) != 1 || batch[0].Level != zapcore.InfoLevel {
		t.Fatalf("lines of the batch: %v, want one at info", batch)
	}
	for key, want := range map[string]any{
		"claim_batch_id": theBatch.String(), "op": "mixed", "attempt": int64(2), "batch_size": int64(6), "result": "partial", "reason": "es_4xx",
		"ok_count": int64(3), "retry_count": int64(2), "failed_count": int64(1), "mismatch_count": int64(0),
	} {
		if got := batch[0].ContextMap()[key]; got != want {
			t.Errorf("the batch's line has %s=%v, want %v", key, got, want)
		}
	}
}

// At the default level a batch that went through says nothing, however many of its events
// were coalesced.
func TestNoLineAtInfoOfWhatWentThrough(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	e := aRow(1, outbox.Upsert)
	newFlight(t, Tracing{}, zap.New(core)).carry(outbox.Settled{At: time.Unix(9, 0)}, []outbox.Outcome{outbox.OK()}, []outbox.Event{before(e, 2), e})
	if n := logs.Len(); n != 0 {
		t.Errorf("got lines %v, want none", logs.All())
	}
}

// A storm of retries and no-ops is summed up: for each reason the lines that were written and
// those that they say were left out are as many as the counter has.
func TestStormIsSummedUp(t *testing.T) {
	t.Parallel()
	const batches = 300
	buffer := &zaptest.Buffer{}
	tel, err := telemetry.New(buffer, telemetry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFlight(t, Tracing{}, tel.Log.With(zap.String("projection", projName)))
	var workers sync.WaitGroup
	for range batches {
		b, told := f.answered([]outbox.Outcome{
			outbox.Reject(outbox.ReasonES429, "busy"), outbox.NoOp(outbox.NoopES404), outbox.Reject(outbox.ReasonESTimeout, "late"), outbox.Reject(outbox.ReasonES4xx, "bad"),
		}, []outbox.Event{aRow(1, outbox.Upsert)}, []outbox.Event{aRow(2, outbox.Delete)}, []outbox.Event{aRow(3, outbox.Upsert)}, []outbox.Event{aRow(4, outbox.Upsert)})
		workers.Go(func() { told.Settled(b, outbox.Settled{At: time.Unix(9, 0)}, time.Now()) })
	}
	workers.Wait()
	if err := tel.Log.Sync(); err != nil {
		t.Fatal(err)
	}
	written, told := map[string]int{}, map[string]int{}
	for _, text := range buffer.Lines() {
		var l struct {
			Event, Reason, Result string
			EventID               string `json:"event_id"`
			Left                  int    `json:"left_out"`
		}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		key := l.Event + " " + l.Reason
		written[key]++
		told[key] += 1 + l.Left
		if l.Event == "projection.event" && l.EventID == "" {
			t.Errorf("a line without its event: %s", text)
		}
	}
	for key, lines := range map[string]int{
		"projection.event es_429": 101, "projection.event es_404": 101, "projection.event es_timeout": 101, "projection.batch es_4xx": 101,
		"projection.event es_4xx": batches, // a dead letter is never left out
	} {
		if written[key] != lines || told[key] != batches {
			t.Errorf("%s: %d lines tell of %d, want %d of %d", key, written[key], told[key], lines, batches)
		}
	}
	f.wantMetric(2*batches, "outbox_retry_scheduled_total")
	f.wantMetric(batches, "outbox_idempotent_noop_total")
}

func TestPhasesAreShown(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	f := newFlight(t, Tracing{}, zap.New(core))
	before := schedule.State{Phase: schedule.Idle}
	for _, tt := range []struct {
		now   schedule.State
		event string // of the line it gets; empty for none
		level zapcore.Level
	}{
		{schedule.State{Phase: schedule.Running}, "", 0}, // a term begins: no news
		{schedule.State{Phase: schedule.Outage, Reason: outbox.ReasonESConnect, Detail: "refused"}, "projection.outage", zapcore.WarnLevel},
		{schedule.State{Phase: schedule.Trial, Reason: outbox.ReasonESConnect}, "", 0},
		{schedule.State{Phase: schedule.Outage, Reason: outbox.ReasonESConnect}, "", 0}, // the same outage
		{schedule.State{Phase: schedule.Trial, Reason: outbox.ReasonESConnect}, "", 0},
		{schedule.State{Phase: schedule.Running}, "projection.resumed", zapcore.InfoLevel},
		{schedule.State{Phase: schedule.Broken, Reason: outbox.ReasonES4xx, Detail: "mapping"}, "projection.breaker_open", zapcore.ErrorLevel},
		{schedule.State{Phase: schedule.Running}, "projection.resumed", zapcore.InfoLevel},
	} {
		f.o.Phase(before, tt.now, nil)
		for _, p := range schedule.Phases() {
			want := 0.0
			if p == tt.now.Phase {
				want = 1
			}
			f.wantMetric(want, "weft_pipeline_phase", "phase", string(p))
		}
		lines := logs.TakeAll()
		switch {
		case tt.event == "" && len(lines) > 0:
			t.Errorf("%s after %s: got line %v, want none", tt.now.Phase, before.Phase, lines[0])
		case tt.event == "":
		case len(lines) != 1 || lines[0].ContextMap()["event"] != tt.event || lines[0].Level != tt.level:
			t.Errorf("%s after %s: got lines %v, want one %v of %s", tt.now.Phase, before.Phase, lines, tt.level, tt.event)
		case lines[0].ContextMap()["reason"] != nil && lines[0].ContextMap()["reason"] != string(tt.now.Reason):
			t.Errorf("%s: the line gives the reason %v, want %s", tt.event, lines[0].ContextMap()["reason"], tt.now.Reason)
		}
		before = tt.now
	}
}

// The names by which people and rules look for lines stay as they are.
func TestLinesOfAPipeline(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	f := newFlight(t, Tracing{}, zap.New(core))
	err := errors.New("connection refused")
	_, told := f.answered([]outbox.Outcome{outbox.OK()}, []outbox.Event{aRow(1, outbox.Upsert)})
	for _, tt := range []struct {
		event string
		level zapcore.Level
		field string // besides the event
		want  any
		tell  func()
	}{
		{"outbox.fenced", zapcore.WarnLevel, "epoch", int64(7), func() { f.o.Fenced(7, outbox.ErrFenced) }},
		{"outbox.fault", zapcore.WarnLevel, "call", "lease", func() { f.o.DatabaseFault("lease", err) }},
		{"outbox.recovered", zapcore.InfoLevel, "error", nil, func() { f.o.DatabaseAnswers() }},
		{"outbox.foreign", zapcore.ErrorLevel, "error", nil, func() { f.o.Foreign(true, "py") }},
		{"outbox.foreign", zapcore.InfoLevel, "error", nil, func() { f.o.Foreign(false, "py") }},
		{"outbox.settle_fault", zapcore.WarnLevel, "error", err.Error(), func() { f.o.SettleRepeated(told, err) }},
		{"outbox.kept", zapcore.ErrorLevel, "error", err.Error(), func() { told.Settled(&schedule.Batch{}, outbox.Settled{Kept: err}, time.Now()) }},
		{"projection.panic", zapcore.ErrorLevel, "panic", "boom", func() { f.o.Panic(context.Background(), "boom", []byte("stack")) }},
		{"projection.drain_timeout", zapcore.WarnLevel, "batches", int64(3), func() { f.o.DrainTimeout(3) }},
	} {
		tt.tell()
		lines := logs.TakeAll()
		if len(lines) != 1 || lines[0].Level != tt.level || lines[0].ContextMap()["event"] != tt.event || lines[0].ContextMap()[tt.field] != tt.want {
			t.Errorf("got lines %v, want one %v of %s with %s=%v", lines, tt.level, tt.event, tt.field, tt.want)
		}
	}
	f.wantMetric(1, "weft_fenced_writes_total")
	f.wantMetric(1, "weft_finished_kept_total")
	f.o.Listed(&outbox.List{})
	f.o.Listed(&outbox.List{Due: make([]outbox.Row, 1)})
	f.wantMetric(1, "weft_looks_total", "found", "none")
	f.wantMetric(1, "weft_looks_total", "found", "rows")
	f.o.Waits(4, 2)
	f.wantMetric(4, "weft_blocked_entities")
	f.wantMetric(2, "weft_isolated_entities")
}
