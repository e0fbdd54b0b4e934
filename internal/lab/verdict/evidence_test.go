package verdict

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

const text = `# HELP outbox_processed_total Events.
# TYPE outbox_processed_total counter
outbox_processed_total{op="upsert",projection="p"} 3
outbox_processed_total{op="delete",projection="p"} 1
# HELP took_seconds Time.
# TYPE took_seconds histogram
took_seconds_bucket{le="0.1"} 1
took_seconds_bucket{le="+Inf"} 2
took_seconds_sum 1.5
took_seconds_count 2
# HELP lag Lag.
# TYPE lag gauge
lag 7
`

func parse(t *testing.T, text string) Families {
	t.Helper()
	f, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	one := parse(t, text)
	other := parse(t, strings.Replace(text, `op="upsert",projection="p"} 3`, `op="upsert",projection="p"} 5`, 1))
	merged, err := Merge(map[string]Families{"b": other, "a": one})
	if err != nil {
		t.Fatal(err)
	}
	m := parse(t, string(merged)).Samples()
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"outbox_processed_total", nil, 10},
		{"outbox_processed_total", []string{"op=upsert"}, 8},
		{"outbox_processed_total", []string{"op=upsert", "instance=b"}, 5},
		{"outbox_processed_total", []string{"op=other"}, 0},
		{"took_seconds_count", nil, 4},
		{"took_seconds_sum", []string{"instance=a"}, 1.5},
		{"took_seconds_bucket", []string{"le=0.1"}, 2},
		{"lag", nil, 14},
		{"nothing", nil, 0},
	} {
		if got := m.Sum(c.name, c.labels...); got != c.want {
			t.Errorf("%s %v: got %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	last := map[string]float64{}
	Changed(last, one.Samples())
	if d := cmp.Diff(map[string]float64{`outbox_processed_total{op="upsert",projection="p"}`: 5}, Changed(last, other.Samples())); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	odd := model.Metric{model.MetricNameLabel: "x", "a": `}",=\`, "b": ""}
	if got := parseSeries(seriesOf(odd)); !cmp.Equal(got, odd) {
		t.Errorf("parseSeries of %s: got %v", seriesOf(odd), got)
	}
	if _, err := Parse([]byte("a b c")); err == nil {
		t.Error("Parse: got no error for what is no text format")
	}
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	root, now := t.TempDir(), time.Date(2026, 11, 21, 16, 42, 7, 0, time.UTC)
	if _, err := Find(root, "a", ""); !errors.Is(err, ErrNone) {
		t.Errorf("Find in nothing: got %v, want ErrNone", err)
	}
	var made []string
	for range 11 {
		d, err := Create(root, "a", now)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, d.Run)
	}
	if made[0] != "20261121T164207Z" || made[10] != "20261121T164207Z-11" {
		t.Errorf("runs: got %v", made)
	}
	if err := os.MkdirAll(root+"/a/notes", 0o755); err != nil { // somebody's own
		t.Fatal(err)
	}
	dirs, err := Runs(root, "a")
	if err != nil {
		t.Fatal(err)
	}
	var read []string
	for _, d := range dirs {
		read = append(read, d.Run)
	}
	if d := cmp.Diff(made, read); d != "" {
		t.Errorf("Runs (-want +got):\n%s", d)
	}
	if d, err := Find(root, "a", ""); err != nil || d.Run != made[10] {
		t.Errorf("Find: got %v, %v; want the newest", d, err)
	}
	if d, err := Find(root, "a", made[3]); err != nil || d.Run != made[3] {
		t.Errorf("Find: got %v, %v; want %s", d, err, made[3])
	}
	if _, err := Find(root, "a", "x"); err == nil || !strings.Contains(err.Error(), "no run x of a below") {
		t.Errorf("Find: got %v, want it to name the run", err)
	}
	if removed, err := Keep(root, "a", 1); err != nil || len(removed) != 10 {
		t.Errorf("Keep: got %d, %v; want 10 removed", len(removed), err)
	}
	if _, err := os.Stat(root + "/a/notes"); err != nil {
		t.Errorf("Keep: %v", err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	d, err := Create(t.TempDir(), "a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(d); err == nil {
		t.Error("Open without a recipe: got no error")
	}
	write := func(name, text string) {
		t.Helper()
		if err := d.WriteText(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	write(RecipeFile, `{"scenario": "a", "outcome": "running"}`)
	if e, err := Open(d); err != nil || e.Recipe.Outcome != Running || len(e.Lines) != 0 {
		t.Errorf("Open of a run that crashed: got %+v, %v", e, err)
	}
	write(BeforeFile, text)
	write(AfterFile, strings.ReplaceAll(text, "lag 7", "lag 9"))
	write(LogDir+"/weft-a.jsonl", `{"ts":"2026-11-21T16:42:07.5Z","level":"error","attempts":12345678,"event":"x"}
goroutine 1 [running]:
{"ts":"2026-11-21T16:42:08Z","event":"y","ok":true}
{"half":`)
	write(SpansFile, `{"Name":"outbox.process","Trace":"t","Attrs":{"attempt":2,"noop":true,"id":"i"}}`)
	e, err := Open(d)
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Delta("lag"); got != 2 {
		t.Errorf("Delta: got %v, want 2", got)
	}
	if got := e.Find("event=x", "attempts=12345678"); len(e.Lines) != 2 || len(got) != 1 || got[0].At.Nanosecond() != 5e8 || got[0].File != "weft-a.jsonl" {
		t.Errorf("lines: got %+v of %d", got, len(e.Lines))
	}
	if got := e.SpansOf("outbox.process", "attempt=2", "noop=true", "id=i"); len(got) != 1 {
		t.Errorf("spans: got %v", got)
	}
	if got := e.SpansOf("outbox.process", "attempt=3"); len(got) != 0 {
		t.Errorf("spans of attempt 3: got %v", got)
	}
	var v int
	if err := e.Read(ProbeFile("x"), &v); err == nil || !strings.Contains(err.Error(), "_probe_x.json") {
		t.Errorf("Probe: got %v, want it to name the file", err)
	}
	write(AfterFile, "a b c")
	if _, err := Open(d); err == nil {
		t.Error("Open: got no error for metrics that are none")
	}
}

func TestNoSecretIsWrittenDown(t *testing.T) {
	t.Parallel()
	got := Settings([]string{
		"HOME=/root", "WEFT_GROUP=g", "DATABASE_URL=postgres://u:secret@h/d", "ELASTIC_URL=http://u:secret@h", "ELASTIC_PASSWORD=secret",
		"ELASTIC_API_KEY=secret", "ELASTIC_INDEX=i", "OTEL_EXPORTER_OTLP_HEADERS=a=secret", "OUTBOX_BULK_SIZE=1", "OUTBOX_BULK_SIZE=2",
	})
	if d := cmp.Diff(map[string]string{"WEFT_GROUP": "g", "ELASTIC_INDEX": "i", "OUTBOX_BULK_SIZE": "2"}, got); d != "" {
		t.Errorf("Settings (-want +got):\n%s", d)
	}
	for raw, want := range map[string]string{
		"postgres://u:secret@h:1/d?password=secret": "h:1/d", "http://u:secret@h:9200": "h:9200", "%": "",
	} {
		if got := Address(raw); got != want {
			t.Errorf("Address: got %q, want %q", got, want)
		}
	}
}

func TestPathsAreShownAsTheyAreTyped(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(here, "evidence", "x", "1"): filepath.Join("evidence", "x", "1"), "/elsewhere/x/1": "/elsewhere/x/1",
	} {
		if got := (Dir{Path: path}).String(); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
