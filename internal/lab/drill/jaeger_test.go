//go:build observability

package drill

import (
	"bytes"
	"os"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

// A real Jaeger is forwarded the spans of a run, and has as many of each event and batch as
// the run has received itself.
func TestExportFromJaeger(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "") // for the client, which reads it itself
	j, err := watch.StartJaeger(t.Context(), t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	var out bytes.Buffer
	opts := testOptions(t, &out, weft(t))
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", j.OTLPHTTP())
	opts.Environ = append(os.Environ(), "OTEL_SERVICE_NAME=wordloom-search-outbox-worker")
	e := ranOnce(t, opts, "es_bulk_partial")
	counts := func(jaegerURL string) (x verdict.Exported) {
		t.Helper()
		if err := Export(t.Context(), ExportOptions{Out: &out, Evidence: opts.Evidence, JaegerURL: jaegerURL, Limit: 20}, "es_bulk_partial"); err != nil {
			t.Fatalf("export from %q: %v\n%s", jaegerURL, err, &out)
		}
		if err := e.Read(verdict.ExportedFile, &x); err != nil {
			t.Fatal(err)
		}
		return x
	}
	captured, asked := counts(""), counts(j.URL())
	if asked.Source != verdict.Address(j.URL()) || asked.Service != "wordloom-search-outbox-worker" {
		t.Errorf("exported: got %+v, want those of Jaeger", asked)
	}
	if asked.Traces != captured.Traces || asked.Spans != captured.Spans || len(asked.Queries) != len(captured.Queries) || asked.Spans == 0 {
		t.Errorf("Jaeger: got %d traces with %d spans, want the %d with %d of the capture", asked.Traces, asked.Spans, captured.Traces, captured.Spans)
	}
}
