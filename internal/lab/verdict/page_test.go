package verdict

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

const hostile = `<script>alert("x")</script>`

// ran is the evidence of a run of ten seconds, with text that would rather be markup.
func ran(t *testing.T) Dir {
	t.Helper()
	began := time.Date(2026, 11, 21, 16, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	d, err := Create(t.TempDir(), "es_429_inject", began)
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.MustParse("11111111-2222-4333-8444-555555555555")
	const lag = `outbox_lag_events{projection="p"}`
	write := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write(d.Write(RecipeFile, Recipe{
		Scenario: "es_429_inject", Run: d.Run, About: "about " + hostile, Outcome: Completed, Started: began, Ended: at(10),
		Parameters: map[string]any{"every_n": "3"}, Faults: []string{"a fault"},
		Settings: map[string]map[string]string{"a": {"OUTBOX_BULK_SIZE": "20"}},
		Events:   []Event{{ID: id, Entity: "block:x", Op: "upsert", Role: hostile}},
	}))
	write(d.Write(ResultFile, Result{Scenario: "es_429_inject", Run: d.Run, Checks: []Check{
		{Assertion: "the good one", Seen: "1", Needed: "1", Source: RecipeFile, Pass: true},
		{Assertion: "the bad one", Seen: hostile, Needed: "2", Source: SpansFile},
	}}))
	write(WriteLines(d, TimelineFile, []Mark{
		{At: at(1), Kind: Term, Instance: "a", What: "epoch 1 of a"},
		{At: at(2), Kind: Fault, What: "a fault"},
		{At: at(3), Kind: Step, What: "a step"},
		{At: at(6), Kind: Heal, What: "over: a fault"},
		{At: at(7), Kind: Term, Instance: "b", What: "epoch 2 of b"},
	}))
	write(WriteLines(d, SeriesFile, []Change{
		{At: at(2), Instance: "a", Values: map[string]float64{lag: 4, `outbox_retry_scheduled_total{op="upsert",reason="es_429"}`: 2}},
		{At: at(4), Instance: "a", Values: map[string]float64{lag: 1, `outbox_retry_scheduled_total{op="delete",reason="es_429"}`: 3}},
		{At: at(5), Instance: "b", Values: map[string]float64{`outbox_retry_scheduled_total{op="delete",reason="es_connect"}`: 1}},
	}))
	write(WriteLines(d, SpansFile, []collector.Span{{Name: "outbox.process", Trace: "abc123", Attrs: map[string]any{"wordloom.outbox_event_id": id.String()}}}))
	write(d.Write(ProbeFile("outbox"), []map[string]any{{"id": id, "status": "done", "attempts": 2, "error_reason": "es_429"}}))
	write(d.WriteText(LogDir+"/weft-a.jsonl", []byte(`{"ts":"2026-11-21T16:00:03Z","level":"warn","event":"projection.event","msg":"event is retried","error":"<b>bold</b>","trace_id":"abc123"}
{"ts":"2026-11-21T16:00:04Z","level":"debug","event":"poll","msg":"not worth telling"}
`)))
	return d
}

func page1(t *testing.T, d Dir, jaeger string) string {
	t.Helper()
	if err := WritePage(d, jaeger); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(d.File(ReportFile))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPage(t *testing.T) {
	t.Parallel()
	text := page1(t, ran(t), "http://127.0.0.1:16686/")
	for _, want := range []string{
		"es_429_inject", "failed</span>", "What is not as it must be", "the bad one", "the good one", "epoch 2 of b", "a step",
		`href="http://127.0.0.1:16686/trace/abc123"`, "event is retried", "Retries, by reason", "es_429 (5)", "es_connect (1)", "OUTBOX_BULK_SIZE", "11111111-2222-4333-8444-555555555555",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("page: no %q in it", want)
		}
	}
	for _, not := range []string{"<script", "<b>bold", "not worth telling", " src=", "@import", "ZgotmplZ"} {
		if strings.Contains(text, not) {
			t.Errorf("page: %q is in it", not)
		}
	}
	links := 0
	for part := range strings.SplitSeq(text, `href="`) {
		if strings.HasPrefix(part, "http") && !strings.HasPrefix(part, "http://127.0.0.1:16686/") {
			t.Errorf("page: a link to %.60s", part)
		}
		links++
	}
	if links < 5 {
		t.Errorf("page: got %d links", links)
	}
	if without := page1(t, ran(t), ""); strings.Contains(without, "http://127") || !strings.Contains(without, "abc123") {
		t.Error("page without a Jaeger: want the ids of traces, and no links to them")
	}
	wellFormed(t, text)
}

// wellFormed reads the pictures as XML does.
func wellFormed(t *testing.T, text string) {
	t.Helper()
	n := 0
	for part := range strings.SplitSeq(text, "<svg") {
		picture, _, ok := strings.Cut(part, "</svg>")
		if !ok {
			continue
		}
		n++
		for dec := xml.NewDecoder(strings.NewReader("<svg" + picture + "</svg>")); ; {
			if _, err := dec.Token(); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("picture %d: %v", n, err)
				}
				break
			}
		}
	}
	if n < 3 {
		t.Errorf("page: got %d pictures, want a timeline and charts", n)
	}
}

// A run that was killed has a recipe and little else.
func TestPageOfARunThatCrashed(t *testing.T) {
	t.Parallel()
	d, err := Create(t.TempDir(), "x", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := WritePage(d, ""); err == nil {
		t.Error("WritePage without a recipe: got no error")
	}
	if err := d.Write(RecipeFile, Recipe{Scenario: "x", Outcome: Running, Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if text := page1(t, d, ""); !strings.Contains(text, "not judged") || !strings.Contains(text, "No metric moved") || !strings.Contains(text, "running") {
		t.Error("page: want it to say that nothing is known")
	}
}

func TestTimelineBars(t *testing.T) {
	t.Parallel()
	e, err := Open(ran(t))
	if err != nil {
		t.Fatal(err)
	}
	got := timeline(e.Timeline, span{e.Recipe.Started, e.Recipe.Ended})
	want := []row{
		{"leader", []bar{{10, 60, "epoch 1 of a", "f0"}, {70, 30, "epoch 2 of b", "f1"}}},
		{"fault", []bar{{20, 40, "a fault", "faultbar"}}},
		{"steps", []bar{{30, shortest, "a step", "step"}}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("timeline (-want +got):\n%s", d)
	}
}

func TestChartFollowsSums(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	const a, b = `outbox_retry_scheduled_total{op="a",reason="x"}`, `outbox_retry_scheduled_total{op="b",reason="x"}`
	changes := []Change{
		{At: began.Add(3 * time.Second), Instance: "i", Values: map[string]float64{b: 5}},
		{At: began.Add(time.Second), Instance: "i", Values: map[string]float64{a: 1}},
		{At: began.Add(2 * time.Second), Instance: "k", Values: map[string]float64{a: 2}},
	}
	got := charts(changes, span{began, began.Add(4 * time.Second)}, []time.Time{began.Add(2 * time.Second)})
	// 0, 1, 3, 8 at a quarter of the width each.
	want := []chart{{
		Title: "Retries, by reason", Metric: "outbox_retry_scheduled_total", Top: "8", Faults: []float64{50},
		Lines: []line{{"x (8)", "M0 100H25.00V87.50H50.00V62.50H75.00V0.00H100"}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("charts (-want +got):\n%s", d)
	}
}

func TestDrawBars(t *testing.T) {
	t.Parallel()
	out, err := DrawBars("ratios", []Panel{
		{"bare loader — more is better", []Bar{{"distinct", Range{0.25, 0.6, 0.7}}, {"a < b", Range{1.2, 1.6, 1.7}}}},
		{"p99 — less is better", []Bar{{"backlog", Range{1, 2, 2.5}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var bars, texts []string
	for d := xml.NewDecoder(bytes.NewReader(out)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, out)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "rect" {
				bars = append(bars, token.Attr[slices.IndexFunc(token.Attr, func(a xml.Attr) bool { return a.Name.Local == "width" })].Value)
			}
		case xml.CharData:
			texts = append(texts, strings.TrimSpace(string(token)))
		}
	}
	// The longest of the first panel is 1.7, that of the second 2.5.
	if diff := cmp.Diff([]string{"165.9", "442.4", "376.0"}, bars); diff != "" {
		t.Errorf("lengths of the bars (-want +got):\n%s", diff)
	}
	for _, want := range []string{"distinct", "a < b", "backlog", "0.60 (0.25–0.70)", "1.60 (1.20–1.70)", "p99 — less is better"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q in %q", want, texts)
		}
	}
}

func TestReportDirectory(t *testing.T) {
	t.Parallel()
	d := ran(t)
	root := strings.TrimSuffix(d.Path, "/es_429_inject/"+d.Run)
	for _, c := range []struct{ named, run string }{{d.Path, ""}, {"es_429_inject", ""}, {"es_429_inject", d.Run}} {
		if got, err := directory(root, c.named, c.run); err != nil || got != d {
			t.Errorf("directory(%v): got %v, %v; want %v", c, got, err, d)
		}
	}
	if _, err := directory(root, "nothing", ""); err == nil || !strings.Contains(err.Error(), "name a scenario or the directory of a run") {
		t.Errorf("directory of nothing: got %v", err)
	}
}
