package bench

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func scenarioNamed(t *testing.T, name string) scenario {
	t.Helper()
	s, err := pick([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return s[0]
}

// result of a scenario whose sides were so fast and so slow to claim in three rounds.
func result(t *testing.T, name, other string) *Result {
	t.Helper()
	s := scenarioNamed(t, name)
	weft := &side{name: "weft", samples: []sample{
		{EPS: 60, P99MS: 10, Claims: []float64{1, 4}}, {EPS: 50, P99MS: 30, Claims: []float64{1, 3}}, {EPS: 70, P99MS: 20, Claims: []float64{2, 5}}}}
	sides := []*side{weft}
	if other != "" {
		sides = append(sides, &side{name: other, samples: []sample{
			{EPS: 100, P99MS: 20, Claims: []float64{1, 2}}, {EPS: 200, P99MS: 20, Claims: []float64{1, 3}}, {EPS: 100, P99MS: 20, Claims: []float64{1, 2}}}})
	}
	return newResult(s, s.load, sides)
}

func TestResultRatios(t *testing.T) {
	t.Parallel()
	rates, claimTimes, latencies := &Spread{0.25, 0.6, 0.7}, &Spread{1, 2, 2.5}, &Spread{0.5, 1, 1.5}
	for _, c := range []struct {
		scenario, other string
		of              func(*Result) *Spread
		want            *Spread
		compared        string
	}{
		{"distinct", sideRaw, func(r *Result) *Spread { return r.RatioToRaw }, rates, ""},
		{"adopted", sideOwn, func(r *Result) *Spread { return r.RatioToOwn }, rates, ""},
		{"traced", sideUntraced, func(r *Result) *Spread { return r.Traces }, rates, ""},
		{"backlog", sideReference, func(r *Result) *Spread { return r.ClaimRatio }, claimTimes, ""},
		{"hot", sideBase, func(r *Result) *Spread { return r.HeadToBase }, rates, "events per second"},
		{"longtx", sideBase, func(r *Result) *Spread { return r.HeadToBase }, claimTimes, "list and lease p99"},
		{"trickle", sideBase, func(r *Result) *Spread { return r.HeadToBase }, latencies, "latency p99"},
		{"trickle", "", func(*Result) *Spread { return nil }, nil, ""},
	} {
		r := result(t, c.scenario, c.other)
		if diff := cmp.Diff(c.want, c.of(r)); diff != "" {
			t.Errorf("%s against %s (-want +got):\n%s", c.scenario, c.other, diff)
		}
		if got, _, _ := r.ratio(); got != c.of(r) {
			t.Errorf("%s against %s: the ratio to show is %v, want %v", c.scenario, c.other, got, c.of(r))
		}
		if r.Compared != c.compared {
			t.Errorf("%s against %s: got a ratio of %q, want %q", c.scenario, c.other, r.Compared, c.compared)
		}
	}
}

func TestJSONByScenario(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bench.json")
	if err := writeJSON(file, []*Result{result(t, "distinct", sideRaw), result(t, "backlog", sideReference)}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	distinct := got["distinct"]
	for _, name := range []string{"rounds", "ratio_to_raw", "weft_eps", "raw_eps", "p50_ms", "p99_ms", "rss_mb", "cpu_us_per_event",
		"allocs_per_event", "wal_bytes_per_event", "round_trips_per_event", "claim_p99_ms"} {
		if _, ok := distinct[name]; !ok {
			t.Errorf("distinct has no %s:\n%s", name, text)
		}
	}
	if diff := cmp.Diff(map[string]any{"min": 0.25, "median": 0.6, "max": 0.7}, distinct["ratio_to_raw"]); diff != "" {
		t.Errorf("ratio_to_raw (-want +got):\n%s", diff)
	}
	if got["backlog"]["claim_p99_ms"] != 5.0 || got["backlog"]["raw_eps"] != nil {
		t.Errorf("backlog: got %v, want the p99 of all claims and no bare loader", got["backlog"])
	}
	if err := writeJSON(filepath.Join(file, "below"), nil); err == nil || !strings.HasPrefix(err.Error(), "write result: ") {
		t.Errorf("a file that cannot be written: got %v", err)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := result(t, "distinct", sideRaw)
	r.WeftEPS = 41230.4
	if err := writeTable(&out, []*Result{r, result(t, "trickle", "")}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"41,230", "0.60 (0.25–0.70)", "bare loader", "trickle"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for f, want := range map[float64]string{0: "–", 7: "7", 999.6: "1,000", 41230: "41,230", 1234567: "1,234,567"} {
		if got := number(f); got != want {
			t.Errorf("number(%v): got %q, want %q", f, got, want)
		}
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	results := []*Result{result(t, "distinct", sideRaw), result(t, "hot", sideRaw), result(t, "trickle", ""), result(t, "backlog", sideReference)}
	results[1].RatioToRaw = &Spread{1.2, 1.6, 1.7}
	var out strings.Builder
	if err := drawChart(&out, results); err != nil {
		t.Fatal(err)
	}
	var bars, texts []string
	for d := xml.NewDecoder(strings.NewReader(out.String())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, &out)
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
	// The longest of the first panel is 1.7, its scale ends at 2; that of the second at 2.5.
	if diff := cmp.Diff([]string{"141.0", "376.0", "376.0"}, bars); diff != "" {
		t.Errorf("lengths of the bars (-want +got):\n%s", diff)
	}
	for _, want := range []string{"distinct", "hot", "backlog", "0.60 (0.25–0.70)", "1.60 (1.20–1.70)", "list and lease p99 at 20,000 — less is better"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q in %q", want, texts)
		}
	}
	if slices.Contains(texts, "trickle") {
		t.Error("trickle has no ratio, and is drawn")
	}
}

func TestTickStep(t *testing.T) {
	t.Parallel()
	for most, want := range map[float64]float64{1: 0.2, 1.2: 0.2, 1.7: 0.5, 3: 0.5, 3.5: 1, 12: 2, 13: 5, 60: 10} {
		if got := tickStep(most); got < want*0.999 || got > want*1.001 {
			t.Errorf("step up to %v: got %v, want %v", most, got, want)
		}
	}
}
