package drill

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// testDatabase is a database of environment env.
func testDatabase(t *testing.T, env string) string {
	t.Helper()
	url := testenv.Database(t)
	if _, err := testenv.Pool(t, url).Exec(t.Context(), `insert into environment_sentinel (id, env) values (1, $1)`, env); err != nil {
		t.Fatal(err)
	}
	return url
}

// testOptions are for the test's servers; what runs there says which weft.
func testOptions(t *testing.T, out io.Writer, binary string) Options {
	t.Helper()
	return Options{
		Out: out, Progress: io.Discard, Environ: os.Environ(), Evidence: t.TempDir(), Binary: binary,
		DatabaseURL: testDatabase(t, "test"), ElasticURL: testenv.ElasticURL(t),
	}
}

// weft builds the program.
func weft(t *testing.T) string {
	t.Helper()
	binary, err := rig.Build(t.Context(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// Each scenario leaves evidence that is accepted, and without its fault evidence that is not.
func TestScenarios(t *testing.T) {
	t.Parallel()
	binary := weft(t)
	var named, owned, clustered []string
	for _, s := range Scenarios() {
		if s.Minutes && testenv.Volume(0, 1) == 0 {
			continue
		}
		if why := s.impossible(); why != "" {
			t.Logf("%s is left out: %s", s.Name, why)
			continue
		}
		switch {
		case s.nodes > 1:
			clustered = append(clustered, s.Name)
		case s.Owned:
			owned = append(owned, s.Name)
		default:
			named = append(named, s.Name)
		}
	}
	// Those that stop servers do so to their own, all of them to one pair, and not to those
	// that are named.
	t.Run("Owned", func(t *testing.T) {
		t.Parallel()
		opts := goodAndRefused(t, binary, owned...)
		for _, name := range owned {
			r := newest(t, opts, name).Recipe
			if r.Servers != "embedded" || r.Postgres == verdict.Address(opts.DatabaseURL) || r.Elastic == verdict.Address(opts.ElasticURL) {
				t.Errorf("%s ran on %s and %s, which are not its own", name, r.Postgres, r.Elastic)
			}
		}
	})
	if len(clustered) > 0 {
		t.Run("Clustered", func(t *testing.T) {
			t.Parallel()
			goodAndRefused(t, binary, clustered...)
		})
	}
	for _, name := range named {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goodAndRefused(t, binary, name)
		})
	}
	t.Run("ExportOfTheCapture", func(t *testing.T) {
		t.Parallel()
		exportOfTheCapture(t, binary)
	})
}

// goodAndRefused runs scenarios with their faults and without.
func goodAndRefused(t *testing.T, binary string, names ...string) Options {
	t.Helper()
	var out bytes.Buffer
	opts := testOptions(t, &out, binary)
	opts.HeapMB = 300
	if err := Run(t.Context(), opts, names...); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	for _, name := range names {
		wantGood(t, opts, name)
	}
	opts.WithoutFault = true
	if err := Run(t.Context(), opts, names...); err != nil {
		t.Fatalf("run without fault: %v\n%s", err, &out)
	}
	for _, name := range names {
		wantRefused(t, opts, name)
	}
	return opts
}

func wantGood(t *testing.T, opts Options, name string) {
	t.Helper()
	result := judged(t, opts, name)
	var table strings.Builder
	result.WriteTable(&table)
	t.Logf("%s\n%s", opts.Out, &table)
	if !result.OK {
		t.Error("verify: got a failure")
	}
}

func wantRefused(t *testing.T, opts Options, name string) {
	t.Helper()
	result := judged(t, opts, name)
	if result.OK {
		t.Errorf("verify of %s without its fault: got a good result", name)
	}
	if !result.Checks[0].Pass {
		t.Errorf("verify of %s without its fault: got %+v; it must fail for what it shows", name, result.Checks[0])
	}
	if err := VerifyAll(io.Discard, opts.Evidence, "", name); err == nil {
		t.Errorf("verify of %s: got no error for a run without its fault", name)
	}
}

// newest is the evidence of the last run of a scenario.
func newest(t *testing.T, opts Options, scenario string) *verdict.Evidence {
	t.Helper()
	d, err := verdict.Find(opts.Evidence, scenario, "")
	if err != nil {
		t.Fatal(err)
	}
	e, err := verdict.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func judged(t *testing.T, opts Options, scenario string) *verdict.Result {
	t.Helper()
	result, err := Verify(newest(t, opts, scenario).Dir)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// evidenceTime is one second for several runs.
func evidenceTime() time.Time { return time.Date(2026, 11, 21, 17, 0, 0, 0, time.UTC) }

func TestNamesAndParameters(t *testing.T) {
	t.Parallel()
	for want, do := range map[string]func() error{
		"no scenario is named \"es_up\"; `weftlab list` names them": func() error { return Run(t.Context(), Options{}, "es_up") },
		`parameter "x": want NAME=VALUE`:                            func() error { return Run(t.Context(), Options{Set: []string{"x"}}, "es_429_inject") },
		"no parameter is named \"ratoi\" here; `weftlab list` names them": func() error {
			return Run(t.Context(), Options{Set: []string{"ratoi=1"}}, "es_429_inject")
		},
		`a run is of one scenario`: func() error { return VerifyAll(io.Discard, t.TempDir(), "x", "all") },
	} {
		if err := do(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := VerifyAll(io.Discard, t.TempDir(), "", "all"); err == nil || !strings.Contains(err.Error(), "es_429_inject") {
		t.Errorf("verify without evidence: got %v, want it to name the scenarios", err)
	}
}

// Without the program ip no node can be cut off, whoever runs it.
func TestAllSaysWhatItLeavesOut(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, want := range map[string]bool{"all": true, "es_429_inject": false} {
		var out strings.Builder
		_ = VerifyAll(&out, t.TempDir(), "", name) // there is no evidence
		if said := strings.Contains(out.String(), "left out: elastic_node_cut_off: cutting nodes off takes root"); said != want {
			t.Errorf("%s: said %v, want %v:\n%s", name, said, want, &out)
		}
	}
}

// The page that leads from drills to runbooks lists all of them, in their order.
func TestPageListsTheScenarios(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/drills.md")
	if err != nil {
		t.Fatal(err)
	}
	_, ground, _ := strings.Cut(string(text), "\n## The training ground\n")
	var listed, want []string
	for line := range strings.Lines(ground) {
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ = strings.Cut(name, "`")
			listed = append(listed, name)
		}
	}
	for _, s := range Scenarios() {
		want = append(want, s.Name)
	}
	if d := cmp.Diff(want, listed); d != "" {
		t.Errorf("the table of docs/drills.md does not list the drills in their order: each has a row (-drills +table):\n%s", d)
	}
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if says := fmt.Sprintf("`make drills`: %d failures", len(want)); !strings.Contains(string(readme), says) {
		t.Errorf("README.md does not say %q, which is how many there are", says)
	}
}

func TestRetriedThenDone(t *testing.T) {
	t.Parallel()
	for results, want := range map[string]bool{
		"retry(1), ok(2)": true, "retry(1), retry(2), ok(3)": true,
		"": false, "ok(1)": false, "retry(1)": false, "retry(1), ok(3)": false, "failed(1), ok(2)": false, "retry(1), failed(2)": false,
	} {
		if got := retriedThenDone(results); got != want {
			t.Errorf("%q: got %v, want %v", results, got, want)
		}
	}
}

// A pause of the whole machine does not change the pace of two claimers.
func TestPaceLeavesAStallOut(t *testing.T) {
	t.Parallel()
	var claims []claimEntry
	at := evidenceTime()
	for i := range 10 {
		if i == 4 {
			at = at.Add(8 * time.Second)
		}
		claims = append(claims, claimEntry{At: at.Add(time.Duration(i/2) * time.Second / 2), Claimed: 20})
	}
	if got := pace(claims); got != 80 {
		t.Errorf("two batches of 20 each half a second: got %v events a second, want 80", got)
	}
	if got := pace(claims[:2]); got != 0 {
		t.Errorf("two batches: got %v, want no pace", got)
	}
}
