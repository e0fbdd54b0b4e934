//go:build observability

package trail

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

// Trail is one series that has moved, followed to the rows.
type Trail struct {
	Symptom string
	Metric  Delta
	Query   watch.Query
	Found   int        // traces that the query found
	Span    watch.Span // the newest one that matches
	Trace   watch.Trace
	// Events are the spans of the events: Span itself, or those of its batch.
	Events []watch.Span
	Lines  []Line // of all logs, with the trace's id
	Rows   []Row
}

// Row is an event as it stands in the outbox.
type Row struct {
	ID        uuid.UUID
	Entity    uuid.UUID
	Operation string
	Status    string
	Attempts  int
	RetryAt   *time.Time
	Reason    zeronull.Text
	Detail    zeronull.Text
}

const rowQuery = `select id, entity_id, op, status, attempts, next_retry_at, error_reason, error
from search_outbox_events
`

// follow goes from a series that has moved to the rows. What a step finds is all that the
// next one knows.
func (l *lab) follow(ctx context.Context, s *symptom, d Delta) (*Trail, error) {
	t := &Trail{Symptom: s.Name, Metric: d, Query: s.query(d.Labels)}
	err := l.await(ctx, fmt.Sprintf("trace with %s %v", t.Query.Operation, t.Query.Tags), func(ctx context.Context) (bool, error) {
		return l.findTrace(ctx, t)
	})
	if err == nil {
		err = l.await(ctx, "spans of the events of "+t.Span.ID, func(ctx context.Context) (bool, error) { return l.findEvents(ctx, t) })
	}
	if err == nil {
		err = l.await(ctx, "lines of the span "+t.Span.ID, func(context.Context) (bool, error) { return l.findLines(t) })
	}
	if err == nil {
		err = l.findRows(ctx, t)
	}
	if err == nil {
		err = t.check()
	}
	if err != nil {
		return nil, fmt.Errorf("follow %s of %s: %w", s.Name, labelText(d.Labels), err)
	}
	return t, nil
}

func (l *lab) findTrace(ctx context.Context, t *Trail) (bool, error) {
	traces, err := l.jaeger.Find(ctx, t.Query)
	if err != nil {
		return false, err
	}
	t.Found = len(traces)
	for _, trace := range traces {
		for _, span := range trace.Spans {
			if matches(span, t.Query) && span.Start.After(t.Span.Start) {
				t.Trace, t.Span = trace, span
			}
		}
	}
	return t.Span.ID != "", nil
}

// matches says whether a span of a found trace is one that the query asked for.
func matches(s watch.Span, q watch.Query) bool {
	if s.Service != q.Service || s.Operation != q.Operation {
		return false
	}
	for key, want := range q.Tags {
		if tag(s, key) != want {
			return false
		}
	}
	return true
}

// findEvents returns whether as many events are there as the batch says it has spans for.
func (l *lab) findEvents(ctx context.Context, t *Trail) (bool, error) {
	if t.Span.Operation == spanEvent {
		t.Events = []watch.Span{t.Span}
		return true, nil
	}
	events, err := l.spans(ctx, eventsOf(t.Span))
	t.Events = events
	return err == nil && len(events) > 0 && float64(len(events)) == t.Span.Tags["wordloom.event_spans"], err
}

// eventsOf is the query for the events of a batch.
func eventsOf(batch watch.Span) watch.Query {
	const key = "wordloom.claim_batch_id"
	return watch.Query{Service: service, Operation: spanEvent, Tags: map[string]string{key: tag(batch, key)}}
}

// spans returns those that a query asks for, of all the traces that it finds.
func (l *lab) spans(ctx context.Context, q watch.Query) (all []watch.Span, err error) {
	traces, err := l.jaeger.Find(ctx, q)
	for _, trace := range traces {
		for _, span := range trace.Spans {
			if matches(span, q) {
				all = append(all, span)
			}
		}
	}
	return all, err
}

// findLines returns whether one is of the span itself.
func (l *lab) findLines(t *Trail) (ok bool, err error) {
	t.Lines, err = l.grep(t.Span.TraceID)
	for _, line := range t.Lines {
		ok = ok || line.text("span_id") == t.Span.ID
	}
	return ok, err
}

func (l *lab) findRows(ctx context.Context, t *Trail) error {
	ids := make([][16]byte, len(t.Events))
	for i, e := range t.Events {
		id, err := uuid.Parse(tag(e, "wordloom.outbox_event_id"))
		if err != nil {
			return fmt.Errorf("event of the span %s: %w", e.ID, err)
		}
		ids[i] = id
	}
	rows, err := l.pool.Query(ctx, rowQuery+"where id = any($1) order by status desc, id", ids)
	if err == nil {
		t.Rows, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	}
	if err != nil {
		return fmt.Errorf("rows: %w", err)
	}
	return nil
}

// check compares what the steps have found.
func (t *Trail) check() error {
	var errs []error
	want := func(what string, got, want any) {
		if got != want {
			errs = append(errs, fmt.Errorf("%s: got %v, want %v", what, got, want))
		}
	}
	want("rows", len(t.Rows), len(t.Events))
	want("ERROR of the span", t.Span.Tags["error"] == true, tag(t.Span, "result") == "failed")
	spans := map[string]watch.Span{t.Span.ID: t.Span}
	for _, e := range t.Events {
		spans[e.ID] = e
	}
	of := map[string]bool{}
	for _, line := range t.Lines {
		span, ok := spans[line.text("span_id")]
		if !ok {
			continue // of another span of the trace, such as an earlier attempt
		}
		of[span.ID] = true
		want("trace of a line", line.text("trace_id"), span.TraceID)
		for _, term := range vocabulary() {
			value, ok := line.Fields[term.log]
			if ok && term.attribute != "" && has(span, term.attribute) {
				want(term.log+" of a line", fmt.Sprint(value), tag(span, term.attribute))
			}
		}
	}
	if !of[t.Span.ID] {
		errs = append(errs, errors.New("no line is of the span"))
	}
	rows := map[string]Row{}
	for _, r := range t.Rows {
		rows[r.ID.String()] = r
	}
	for _, e := range t.Events {
		row := rows[tag(e, "wordloom.outbox_event_id")]
		want("entity of a row", row.Entity.String(), tag(e, "wordloom.entity_id"))
		want("op of a row", row.Operation, tag(e, "op"))
		switch result := tag(e, "result"); {
		case result == "ok":
			want("status of a row", row.Status, "done")
		case result == "failed":
			want("status of a row", row.Status, "failed")
			want("reason of a row", string(row.Reason), tag(e, "reason"))
		case row.Status == "pending": // a retry that has not come
			want("reason of a row", string(row.Reason), tag(e, "reason"))
			want("time of the retry is set", row.RetryAt != nil, true)
			want("attempts of a row", fmt.Sprint(row.Attempts), tag(e, "attempt"))
		}
	}
	return errors.Join(errs...)
}

// tag is a tag of a span or of its process as text; numbers without a fraction have none.
func tag(s watch.Span, key string) string {
	for _, tags := range []map[string]any{s.Tags, s.Resource} {
		if value, ok := tags[key]; ok {
			return fmt.Sprint(value)
		}
	}
	return ""
}

func has(s watch.Span, key string) bool {
	_, span := s.Tags[key]
	_, process := s.Resource[key]
	return span || process
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// attributeOf returns the attribute that stands for a label.
func attributeOf(label string) string {
	for _, t := range vocabulary() {
		if t.label == label {
			return t.attribute
		}
	}
	return ""
}
