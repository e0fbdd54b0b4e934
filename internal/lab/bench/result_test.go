package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
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
		{EPS: 60, P99MS: 10, Claims: verdict.Distribution{1, 4}}, {EPS: 50, P99MS: 30, Claims: verdict.Distribution{1, 3}}, {EPS: 70, P99MS: 20, Claims: verdict.Distribution{2, 5}}}}
	sides := []*side{weft}
	if other != "" {
		sides = append(sides, &side{name: other, samples: []sample{
			{EPS: 100, P99MS: 20, Claims: verdict.Distribution{1, 2}}, {EPS: 200, P99MS: 20, Claims: verdict.Distribution{1, 3}}, {EPS: 100, P99MS: 20, Claims: verdict.Distribution{1, 2}}}})
	}
	return newResult(s, s.load, sides)
}

func spread(least, median, most float64) *verdict.Range {
	return &verdict.Range{Min: least, Median: median, Max: most}
}

func TestResultRatios(t *testing.T) {
	t.Parallel()
	rates, claimTimes, latencies := spread(0.25, 0.6, 0.7), spread(1, 2, 2.5), spread(0.5, 1, 1.5)
	for _, c := range []struct {
		scenario, other string
		of              func(*Result) *verdict.Range
		want            *verdict.Range
		compared        string
	}{
		{"distinct", sideRaw, func(r *Result) *verdict.Range { return r.RatioToRaw }, rates, ""},
		{"adopted", sideOwn, func(r *Result) *verdict.Range { return r.RatioToOwn }, rates, ""},
		{"traced", sideUntraced, func(r *Result) *verdict.Range { return r.Traces }, rates, ""},
		{"shards-2", sideOne, func(r *Result) *verdict.Range { return r.RatioToOne }, rates, ""},
		{"backlog", sideReference, func(r *Result) *verdict.Range { return r.ClaimRatio }, claimTimes, ""},
		{"hot", sideBase, func(r *Result) *verdict.Range { return r.HeadToBase }, rates, "events per second"},
		{"longtx", sideBase, func(r *Result) *verdict.Range { return r.HeadToBase }, claimTimes, "list and lease p99"},
		{"trickle", sideBase, func(r *Result) *verdict.Range { return r.HeadToBase }, latencies, "latency p99"},
		{"trickle", "", func(*Result) *verdict.Range { return nil }, nil, ""},
	} {
		r := result(t, c.scenario, c.other)
		if diff := cmp.Diff(c.want, c.of(r)); diff != "" {
			t.Errorf("%s against %s (-want +got):\n%s", c.scenario, c.other, diff)
		}
		if got := r.ratio; got != c.of(r) {
			t.Errorf("%s against %s: the ratio to show is %v, want %v", c.scenario, c.other, got, c.of(r))
		}
		if r.Compared != c.compared {
			t.Errorf("%s against %s: got a ratio of %q, want %q", c.scenario, c.other, r.Compared, c.compared)
		}
	}
}

func TestTooSlow(t *testing.T) {
	t.Parallel()
	rates, times, alone := result(t, "hot", sideBase), result(t, "longtx", sideBase), result(t, "trickle", "") // 0.6, twice the time, none
	for _, c := range []struct {
		results []*Result
		least   float64
		want    string
	}{
		{[]*Result{rates, times, alone}, 0, ""},
		{[]*Result{rates}, 0.6, ""},
		{[]*Result{rates}, 0.61, "too slow: hot has 0.60 (0.25–0.70) (events per second, head to base), want at least 0.61"},
		{[]*Result{times}, 0.5, ""},
		{[]*Result{times}, 0.9, "too slow: longtx has 2.00 (1.00–2.50) (list and lease p99, head to base), want at most 1.11"},
		{[]*Result{rates, alone}, 0.5, "too slow: trickle has no ratio"},
	} {
		if got := errorText(tooSlow(c.results, c.least)); got != c.want {
			t.Errorf("at least %v: got %q, want %q", c.least, got, c.want)
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
	r.EPS = 41230.4
	writeTable(&out, []*Result{r, result(t, "trickle", "")})
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

func TestPanels(t *testing.T) {
	t.Parallel()
	results := []*Result{result(t, "distinct", sideRaw), result(t, "hot", sideRaw), result(t, "trickle", ""), result(t, "backlog", sideReference)}
	ratio := func(r *Result) verdict.Range { return *r.ratio }
	want := []verdict.Panel{
		{Title: "events per second, those of the bare loader being 1 — more is better", Bars: []verdict.Bar{
			{Name: "distinct", Range: ratio(results[0])}, {Name: "hot", Range: ratio(results[1])}}},
		{Title: "list and lease p99 at 20,000 — less is better", Bars: []verdict.Bar{{Name: "backlog", Range: ratio(results[3])}}},
	}
	if diff := cmp.Diff(want, panels(results)); diff != "" {
		t.Errorf("panels, without trickle, which has no ratio (-want +got):\n%s", diff)
	}
}

func TestMiddle(t *testing.T) {
	t.Parallel()
	got := middle([]sample{
		{EPS: 1, RSSMB: 9, MaxMS: 3, CPU: cpu{Weft: 5}, Claims: verdict.Distribution{1, 2}},
		{EPS: 3, RSSMB: 7, MaxMS: 8, CPU: cpu{Weft: 6}, Claims: verdict.Distribution{3}},
		{EPS: 2, RSSMB: 8, MaxMS: 5, CPU: cpu{Weft: 1}},
	})
	want := sample{EPS: 2, RSSMB: 9, MaxMS: 8, CPU: cpu{Weft: 5}, Claims: verdict.Distribution{1, 2, 3}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("medians, and peaks of memory and latency (-want +got):\n%s", diff)
	}
}
