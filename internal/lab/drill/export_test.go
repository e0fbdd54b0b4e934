package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// ranOnce runs a scenario and returns its evidence.
func ranOnce(t *testing.T, opts Options, scenario string) *verdict.Evidence {
	t.Helper()
	if err := Run(t.Context(), opts, scenario); err != nil {
		t.Fatalf("run: %v\n%s", err, opts.Out)
	}
	return newest(t, opts, scenario)
}

func exportOfTheCapture(t *testing.T, binary string) {
	t.Helper()
	var out bytes.Buffer
	opts := testOptions(t, &out, binary)
	e := ranOnce(t, opts, "es_bulk_partial")
	poisoned := e.Recipe.Events[0].ID.String()
	export := ExportOptions{Out: &out, Evidence: opts.Evidence, Limit: 20}
	if err := Export(t.Context(), export, "es_bulk_partial"); err != nil {
		t.Fatal(err)
	}
	var counts verdict.Exported
	if err := e.Read(verdict.ExportedFile, &counts); err != nil {
		t.Fatal(err)
	}
	batches := 0
	by := map[string]int{}
	for _, q := range counts.Queries {
		by[q.By]++
		if q.Traces == 0 || q.Spans < q.Traces {
			t.Errorf("exported: got %+v, want traces", q)
		}
		if q.By == "batch" {
			batches++
		}
	}
	if by["event"] != 11 || by["entity"] != 11 || by["schema"] != 1 || by["claims"] != 1 || batches == 0 || counts.Source != "capture" {
		t.Errorf("exported: got %v of %s, want 11 events and entities, their batches, and those of the schema", by, counts.Source)
	}
	for file, want := range map[string][]string{"services": {"weft"}, "operations": {spanBatch, spanClaim, spanEvent}} {
		var names struct{ Data []string }
		if err := e.Read(verdict.ExportDir+"/"+file+".json", &names); err != nil {
			t.Fatal(err)
		}
		for _, name := range want {
			if !slices.Contains(names.Data, name) {
				t.Errorf("%s: got %v, want %s among them", file, names.Data, name)
			}
		}
	}

	export.Events = []string{poisoned}
	if err := Export(t.Context(), export, "es_bulk_partial"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(e.File(verdict.ExportDir + "/traces-event-" + poisoned + ".json"))
	if err != nil {
		t.Fatal(err)
	}
	// It reads as an answer of Jaeger does.
	var answer struct {
		Data []struct {
			Spans []struct {
				Operation string `json:"operationName"`
				Process   string `json:"processID"`
				Tags      []struct {
					Key   string `json:"key"`
					Value any    `json:"value"`
				} `json:"tags"`
			} `json:"spans"`
			Processes map[string]struct {
				Service string `json:"serviceName"`
			} `json:"processes"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range answer.Data[0].Spans {
		for _, tag := range s.Tags {
			found = found || s.Operation == spanEvent && tag.Key == "wordloom.outbox_event_id" && tag.Value == poisoned &&
				answer.Data[0].Processes[s.Process].Service == "weft"
		}
	}
	if len(answer.Data) != 1 || !found {
		t.Errorf("export: got %.2000s, want a trace of the poisoned event", text)
	}

	export.Events = []string{"00000000-0000-0000-0000-000000000001"}
	if err := Export(t.Context(), export, "es_bulk_partial"); err == nil || !strings.Contains(err.Error(), "no trace of event 00000000-0000-0000-0000-000000000001 in capture; the run has received ") {
		t.Errorf("export of nothing: got %v, want it to say so", err)
	}
}

func TestForwarder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		environ []string
		to, err string
	}{
		{nil, "", ""},
		{[]string{"JAEGER_URL=http://127.0.0.1:16686"}, "http://127.0.0.1:4318", ""},
		{[]string{"JAEGER_URL=nonsense"}, "", "JAEGER_URL: want a URL with a host"},
		{[]string{"JAEGER_URL=http://127.0.0.1:16686", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317"}, "http://127.0.0.1:4317", ""},
	} {
		f, err := newForwarder(t.Context(), c.environ)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%v: got %v, want %q", c.environ, err, c.err)
			}
			continue
		}
		if err != nil || (f == nil) != (c.to == "") || f != nil && f.to != c.to {
			t.Errorf("%v: got %+v, %v; want %q", c.environ, f, err, c.to)
		}
		if err := f.close(context.Background(), io.Discard); err != nil {
			t.Error(err)
		}
	}
}
