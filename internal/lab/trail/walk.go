package trail

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

// How much of a long answer is shown.
const (
	mostSpans = 6
	mostLines = 3
	mostRows  = 4
)

// shownTags are those that the walk prints of a span, as far as it has them.
func shownTags() []string {
	return []string{"attempt", "batch_size", "op", "result", "reason", "ok_count", "retry_count", "failed_count",
		"wordloom.outbox_event_id", "wordloom.claim_batch_id", "http.response.status_code", "error.type"}
}

// writeWalk writes trails as Markdown: what was asked at each step, and the answer.
func writeWalk(out io.Writer, e *evidence) error {
	w := &walk{}
	for _, part := range []struct {
		title, about string
		trail        *Trail
	}{
		{"Retry: Elasticsearch is away", "Taken while it was: the row waits for its time.", e.stillAway[0]},
		{"Failed: a document that Elasticsearch refuses", "The trace begins in the application that wrote the document.", e.of("failed")[0]},
		{"Partial: the batch that it was in", "A batch has a trace of its own. Its id leads to its events, in the traces of their producers.", e.of("partial")[0]},
		{"Done without a change: a delete of nothing", "Nothing is wrong here; the graph shows what delivering at least once costs.", e.of("noop")[0]},
	} {
		w.print("### %s\n\n%s\n\n", part.title, part.about)
		w.trail(part.trail)
	}
	_, err := io.WriteString(out, strings.TrimRight(w.String(), "\n")+"\n")
	return err
}

type walk struct{ strings.Builder }

func (w *walk) print(format string, args ...any) { fmt.Fprintf(w, format, args...) }

// block writes a fenced block, without the blanks that tables end lines with.
func (w *walk) block(kind, text string) {
	w.print("```%s\n", kind)
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		w.print("%s\n", strings.TrimRight(line, " \n"))
	}
	w.print("```\n\n")
}

func (w *walk) trail(t *Trail) {
	w.print("The graph:\n\n")
	w.block("", fmt.Sprintf("%s\n\n%s  %v → %v", t.Metric.Expression, labelText(t.Metric.Labels), t.Metric.Before, t.Metric.After))
	w.print("Its labels are the tags to ask Jaeger with:\n\n")
	w.block("", ask(t.Query)+"\n\ntrace "+t.Span.TraceID+"\n"+spanTable(t.tree()))
	if t.Span.Operation == spanBatch {
		events := make([]nested, len(t.Events))
		for i, e := range t.Events {
			events[i].Span = e
		}
		w.print("The events of the batch, those that failed first:\n\n")
		slices.SortStableFunc(events, func(a, b nested) int { return strings.Compare(tag(a.Span, "result"), tag(b.Span, "result")) })
		w.block("", ask(eventsOf(t.Span))+"\n\n"+spanTable(events))
	}
	w.print("What the log has of the trace:\n\n")
	lines := slices.Clone(t.Lines)
	slices.SortStableFunc(lines, func(a, b Line) int { return t.distance(a) - t.distance(b) })
	text := "$ grep " + t.Span.TraceID + " *.log\n"
	for _, line := range lines[:min(len(lines), mostLines)] {
		text += line.Instance + ".log:" + line.Raw + "\n"
	}
	w.block("console", text+more(len(lines)-mostLines, "line"))
	w.print("And the outbox:\n\n")
	ids := make([]string, len(t.Rows))
	for i, r := range t.Rows {
		ids[i] = "'" + r.ID.String() + "'"
	}
	w.block("sql", rowQuery+"where id in ("+strings.Join(ids[:min(len(ids), mostRows)], ",\n  ")+");")
	w.block("", t.rowTable())
}

// distance puts the lines of the span itself first.
func (t *Trail) distance(l Line) int {
	if l.text("span_id") == t.Span.ID {
		return 0
	}
	return 1
}

func more(n int, of string) string {
	switch {
	case n <= 0:
		return ""
	case n == 1:
		return "… and one " + of + " more\n"
	default:
		return fmt.Sprintf("… and %d %ss more\n", n, of)
	}
}

// ask writes a query as the path of Jaeger's API, unescaped for reading.
func ask(q watch.Query) string {
	var tags []string
	for _, key := range sortedKeys(q.Tags) {
		tags = append(tags, fmt.Sprintf("%q:%q", key, q.Tags[key]))
	}
	return fmt.Sprintf("GET /api/traces?service=%s&operation=%s&tags={%s}", q.Service, q.Operation, strings.Join(tags, ","))
}

// nested is a span with its depth in the trace.
type nested struct {
	watch.Span
	depth int
}

// tree puts the spans of the trace below their parents, in the order of their beginning,
// but that of the trail before its siblings.
func (t *Trail) tree() (all []nested) {
	spans := slices.Clone(t.Trace.Spans)
	slices.SortStableFunc(spans, func(a, b watch.Span) int { return a.Start.Compare(b.Start) })
	if i := slices.IndexFunc(spans, func(s watch.Span) bool { return s.ID == t.Span.ID }); i > 0 {
		spans = slices.Insert(slices.Delete(slices.Clone(spans), i, i+1), 0, spans[i])
	}
	known := map[string]bool{}
	for _, s := range spans {
		known[s.ID] = true
	}
	var below func(parent string, depth int)
	below = func(parent string, depth int) {
		for _, s := range spans {
			if of := parentOf(s); of == parent || parent == "" && !known[of] {
				all = append(all, nested{s, depth})
				below(s.ID, depth+1)
			}
		}
	}
	below("", 0)
	return all
}

func parentOf(s watch.Span) string {
	for _, r := range s.References {
		if r.Type == "CHILD_OF" && r.TraceID == s.TraceID {
			return r.SpanID
		}
	}
	return ""
}

func spanTable(spans []nested) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range spans[:min(len(spans), mostSpans)] {
		var tags []string
		for _, key := range shownTags() {
			if value := tag(s.Span, key); value != "" {
				tags = append(tags, key+"="+value)
			}
		}
		fmt.Fprintf(w, "%s\t%s%s\t%v\t%s\n", s.Service, strings.Repeat("  ", s.depth), s.Operation,
			s.Duration.Round(10*time.Microsecond), strings.Join(tags, " "))
	}
	_ = w.Flush() // into memory
	return b.String() + more(len(spans)-mostSpans, "span")
}

func (t *Trail) rowTable() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "id\tentity_id\top\tstatus\tattempts\tnext_retry_at\terror_reason\terror")
	for _, r := range t.Rows[:min(len(t.Rows), mostRows)] {
		at := ""
		if r.RetryAt != nil {
			at = r.RetryAt.UTC().Format("15:04:05.000")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", r.ID, r.Entity, r.Operation, r.Status, r.Attempts, at, r.Reason, r.Detail)
	}
	_ = w.Flush() // into memory
	return b.String()
}
