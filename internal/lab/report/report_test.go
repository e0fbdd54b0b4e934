package report

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

const hostile = `<script>alert("x")</script>`

// ran is the evidence of a run of ten seconds, with text that would rather be markup.
func ran(t *testing.T) evidence.Dir {
	t.Helper()
	began := time.Date(2026, 11, 21, 16, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	d, err := evidence.Create(t.TempDir(), "es_429_inject", began)
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
	write(d.Write(evidence.RecipeFile, evidence.Recipe{
		Scenario: "es_429_inject", Run: d.Run, About: "about " + hostile, Outcome: evidence.Completed, Started: began, Ended: at(10),
		Parameters: map[string]any{"every_n": "3"}, Faults: []string{"a fault"},
		Settings: map[string]map[string]string{"a": {"OUTBOX_BULK_SIZE": "20"}},
		Events:   []evidence.Event{{ID: id, Entity: "block:x", Op: "upsert", Role: hostile}},
	}))
	write(d.Write(evidence.ResultFile, evidence.Result{Scenario: "es_429_inject", Run: d.Run, Checks: []evidence.Check{
		{Assertion: "the good one", Seen: "1", Needed: "1", Source: evidence.RecipeFile, Pass: true},
		{Assertion: "the bad one", Seen: hostile, Needed: "2", Source: evidence.SpansFile},
	}}))
	write(evidence.WriteLines(d, evidence.TimelineFile, []evidence.Mark{
		{At: at(1), Kind: evidence.Term, Instance: "a", What: "epoch 1 of a"},
		{At: at(2), Kind: evidence.Fault, What: "a fault"},
		{At: at(3), Kind: evidence.Step, What: "a step"},
		{At: at(6), Kind: evidence.Heal, What: "over: a fault"},
		{At: at(7), Kind: evidence.Term, Instance: "b", What: "epoch 2 of b"},
	}))
	write(evidence.WriteLines(d, evidence.SeriesFile, []evidence.Change{
		{At: at(2), Instance: "a", Values: map[string]float64{lag: 4, `outbox_retry_scheduled_total{op="upsert",reason="es_429"}`: 2}},
		{At: at(4), Instance: "a", Values: map[string]float64{lag: 1, `outbox_retry_scheduled_total{op="delete",reason="es_429"}`: 3}},
		{At: at(5), Instance: "b", Values: map[string]float64{`outbox_retry_scheduled_total{op="delete",reason="es_connect"}`: 1}},
	}))
	write(evidence.WriteLines(d, evidence.SpansFile, []collector.Span{{Name: "outbox.process", Trace: "abc123", Attrs: map[string]any{"wordloom.outbox_event_id": id.String()}}}))
	write(d.Write(evidence.ProbeFile("outbox"), []map[string]any{{"id": id, "status": "done", "attempts": 2, "error_reason": "es_429"}}))
	write(d.WriteText(evidence.LogDir+"/weft-a.jsonl", []byte(`{"ts":"2026-11-21T16:00:03Z","level":"warn","event":"projection.event","msg":"event is retried","error":"<b>bold</b>","trace_id":"abc123"}
{"ts":"2026-11-21T16:00:04Z","level":"debug","event":"poll","msg":"not worth telling"}
`)))
	return d
}

func page1(t *testing.T, d evidence.Dir, jaeger string) string {
	t.Helper()
	file, err := Write(d, jaeger)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
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
	d, err := evidence.Create(t.TempDir(), "x", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Write(d, ""); err == nil {
		t.Error("Write without a recipe: got no error")
	}
	if err := d.Write(evidence.RecipeFile, evidence.Recipe{Scenario: "x", Outcome: evidence.Running, Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if text := page1(t, d, ""); !strings.Contains(text, "not judged") || !strings.Contains(text, "No metric moved") || !strings.Contains(text, "running") {
		t.Error("page: want it to say that nothing is known")
	}
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	d := ran(t)
	e, err := evidence.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	got := newTimeline(e.Timeline, e.Recipe.Started, e.Recipe.Ended)
	x := scale(e.Recipe.Started, e.Recipe.Ended, bandLeft, bandRight)
	at := func(s int) float64 { return x(e.Recipe.Started.Add(time.Duration(s) * time.Second)) }
	want := []band{
		{Name: "leader", Bars: []bar{{X: at(1), Width: at(7) - at(1), Title: "epoch 1 of a"}, {X: at(7), Width: at(10) - at(7), Title: "epoch 2 of b", Color: 1}}},
		{Name: "fault", Bars: []bar{{X: at(2), Width: at(6) - at(2), Title: "a fault"}}},
	}
	for i := range got.Rows {
		got.Rows[i].Y, got.Rows[i].Mid, got.Rows[i].High = 0, 0, 0
		for j := range got.Rows[i].Bars {
			got.Rows[i].Bars[j].Text = ""
		}
	}
	if d := cmp.Diff(want, got.Rows); d != "" {
		t.Errorf("rows (-want +got):\n%s", d)
	}
	if len(got.Steps) != 1 || got.Steps[0].X != at(3) {
		t.Errorf("steps: got %+v", got.Steps)
	}
}

func TestChartFollowsSums(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	const a, b = `outbox_retry_scheduled_total{op="a",reason="x"}`, `outbox_retry_scheduled_total{op="b",reason="x"}`
	changes := []evidence.Change{
		{At: began.Add(3 * time.Second), Instance: "i", Values: map[string]float64{b: 5}},
		{At: began.Add(time.Second), Instance: "i", Values: map[string]float64{a: 1}},
		{At: began.Add(2 * time.Second), Instance: "k", Values: map[string]float64{a: 2}},
	}
	got := charts(changes, began, began.Add(4*time.Second), []time.Time{began.Add(2 * time.Second)})
	if len(got) != 1 || len(got[0].Lines) != 1 || got[0].Lines[0].Name != "x (8)" || len(got[0].Marks) != 1 {
		t.Fatalf("charts: got %+v, want one with one line and one mark", got)
	}
	// 0, 1, 3, 8 at a quarter of the width each.
	quarter := float64(plotRight-plotLeft) / 4
	for i, part := range strings.Split(got[0].Lines[0].Path, "H")[1:4] {
		want := plotLeft + quarter*float64(i+1)
		if !strings.HasPrefix(part, strings.TrimSuffix(strings.TrimSuffix(short(want), ".0"), "")) {
			t.Errorf("path: got %q at step %d, want it to begin at %v", part, i, want)
		}
	}
}

func TestTicks(t *testing.T) {
	t.Parallel()
	for most, want := range map[float64]float64{0: 1, 1: 0.5, 3: 1, 4: 1, 5: 2, 60: 20, 89: 50, 1000: 500} {
		if got := tickUnit(most); got != want {
			t.Errorf("tickUnit(%v): got %v, want %v", most, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 1500: "1500", 20000: "20k", 3e6: "3M"} {
		if got := short(v); got != want {
			t.Errorf("short(%v): got %s, want %s", v, got, want)
		}
	}
}

func TestDirectory(t *testing.T) {
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
