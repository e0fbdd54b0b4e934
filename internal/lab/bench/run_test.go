package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const smallestHeap = 256 // MiB

func TestMain(m *testing.M) {
	stack.GuardIfAsked()
	testenv.MainNoServers(m)
}

// guarded is the number of events of a run whose cost is held.
const guarded = 20_000

func TestDistinct(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out, progress bytes.Buffer
	opts := Options{
		Out: &out, Progress: &progress, Environ: append(os.Environ(), "OUTBOX_BULK_SIZE=none of these counts"), HeapMB: smallestHeap,
		Scenarios: []string{"distinct"}, Rounds: 1, Events: guarded, Binary: testenv.Program(t, "weft"),
		JSON: filepath.Join(dir, "bench.json"), SVG: filepath.Join(dir, "bench.svg"),
	}
	if err := Run(t.Context(), opts); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &out, &progress)
	}
	t.Logf("%s", &out)
	text, err := os.ReadFile(opts.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var results map[string]Result
	if err := json.Unmarshal(text, &results); err != nil {
		t.Fatal(err)
	}
	got := results["distinct"]
	for what, figure := range map[string]float64{
		"weft_eps": got.EPS, "raw_eps": got.RawEPS, "p50": got.P50MS, "p99": got.P99MS, "memory": got.RSSMB, "claim p99": got.ClaimP99,
		"CPU of weft": got.CPU.Weft, "CPU of Postgres": got.CPU.Postgres, "CPU of Elasticsearch": got.CPU.Elasticsearch,
		"CPU of Elasticsearch for the loader": got.RawElastic, "allocations": got.Allocs, "WAL": got.WALBytes,
	} {
		if figure <= 0 {
			t.Errorf("%s: got %v, want more", what, figure)
		}
	}
	if got.Retries != 0 {
		t.Errorf("retries: got %v, want none: nothing is broken", got.Retries)
	}
	// A lease, a read, a bulk request and a settle for each batch: six while batches grow
	// and ten of two thousand; a few lists; and some for each second, of which there are
	// many on a busy machine.
	if n := got.RoundTrips * guarded; n < 4*12 || n > 4*16+60+12*guarded/got.EPS {
		t.Errorf("round trips: got %.0f for %d events", n, guarded)
	}
	// At full length it is 1.3. The start of the process is in this figure, and what it does in each
	// second, answers to the bench included.
	if limit := 3 + 0.4*guarded/got.EPS; got.Allocs > limit {
		t.Errorf("allocations per event: got %.2f, want at most %.2f", got.Allocs, limit)
	}
	if got.WALBytes > 800 {
		t.Errorf("WAL per event: got %.0f bytes, want at most 800", got.WALBytes)
	}
	if got.Rounds != 1 || got.Events != guarded || got.RatioToRaw == nil || got.RatioToRaw.Median != got.EPS/got.RawEPS {
		t.Errorf("got %+v, want one round and all events and the ratio of both rates", got)
	}
	if chart, err := os.ReadFile(opts.SVG); err != nil || !bytes.Contains(chart, []byte("distinct")) {
		t.Errorf("chart: %v\n%s", err, chart)
	}
	for _, want := range []string{"distinct 1/1 raw", "distinct 1/1 weft", "bare loader"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the output", want)
		}
	}
}

// Both sides begin as often as the other, and each has its samples.
func TestSidesTakeTurns(t *testing.T) {
	t.Parallel()
	var turns []string
	var sides []*side
	for _, name := range []string{"weft", sideRaw} {
		sides = append(sides, &side{name: name, run: func() sample {
			turns = append(turns, name)
			return sample{EPS: float64(len(turns))}
		}})
	}
	var out strings.Builder
	b := &bench{opts: Options{Rounds: 3}, screen: rig.NewScreen(&out, time.Hour), steps: 6}
	b.takeTurns(scenarioNamed(t, "distinct"), sides)
	if want := []string{sideRaw, "weft", "weft", sideRaw, sideRaw, "weft"}; !slices.Equal(turns, want) {
		t.Errorf("turns: got %v, want %v", turns, want)
	}
	if got, want := each(sides[0].samples, eps), []float64{2, 3, 6}; !slices.Equal(got, want) {
		t.Errorf("samples of weft: got %v, want %v", got, want)
	}
	if n := strings.Count(out.String(), " ev/s\n"); n != 6 {
		t.Errorf("got %d lines, want one for each turn:\n%s", n, &out)
	}
}

func TestBuildRevisionNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := rig.BuildRevision(t.Context(), t.TempDir(), "no-such-revision")
	if err == nil || !strings.Contains(err.Error(), "git rev-parse --verify") || !strings.Contains(err.Error(), "no-such-revision") {
		t.Errorf("got %v, want the command that failed", err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), Options{Scenarios: []string{"distinct"}, Compare: "a", Against: "b"})
	if got, want := errorText(err), "compare with a binary or with a revision, not with both"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for args, want := range map[string]string{
		"distinct --rounds 0":           "0 rounds of 0 events: want at least one round, and no negative number",
		"distinct --least -1":           "least ratio -1: want no negative number",
		"distinct trickle --least 0.9":  "trickle is compared with nothing, so it has no ratio to judge",
		"verify --against x --least .9": "verify is compared with nothing, so it has no ratio to judge",
	} {
		cmd := Command()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetErr(&bytes.Buffer{})
		if got := errorText(cmd.ExecuteContext(t.Context())); got != want {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
}
