package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

func clean() *Result {
	return &Result{
		Seed: 7, Faults: 3, Seconds: 12.5, Produced: 1000, Broken: verdict.Broken{Failed: 2}, Bulk: 900, Leases: 40, Terms: 3, Converged: true,
		Injected: map[string]int{faults.SIGKILL: 2, faults.WriteBlock: 1}, Skipped: map[string]int{faults.Resign: 1},
		TakeoverMS: map[string]verdict.Latency{faults.SIGKILL: {N: 2, P50: 83, P99: 1204, Max: 1204}}, Delayed: map[string]int{faults.SIGKILL: 5},
	}
}

// Rebuilds during the faults are shown, and judged by their searches.
func TestResultOfRebuilds(t *testing.T) {
	t.Parallel()
	long := clean()
	long.Seconds, long.Rebuilds = severalRebuilds.Seconds()+1, &Rebuilds{Done: 1, Searches: traffic.Searches{Answered: 9}}
	if err := long.Err(); err == nil || !strings.Contains(err.Error(), "1 rebuilds and 9 searches") {
		t.Errorf("one rebuild in a long run: got %v, want it to be too few", err)
	}
	for want, rebuilds := range map[string]Rebuilds{
		"PASS": {Done: 3, Searches: traffic.Searches{Answered: 100, Away: 7}},
		"FAIL: the run is not clean: 1 searches without an index": {Done: 3, Searches: traffic.Searches{Answered: 100, Failed: 1}},
		"FAIL: the run is not clean: 2 stale searches":            {Done: 3, Searches: traffic.Searches{Answered: 100, Stale: 2}},
		"FAIL: the run is not clean: 0 rebuilds and 9 searches":   {Searches: traffic.Searches{Answered: 9}},
	} {
		var out bytes.Buffer
		r := clean()
		r.Rebuilds = &rebuilds
		r.write(&out)
		for _, text := range []string{want, fmt.Sprintf("%d rebuilds", rebuilds.Done)} {
			if !strings.Contains(out.String(), text) {
				t.Errorf("got %s, want %q in it", &out, text)
			}
		}
	}
}

func TestResultTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	clean().write(&out)
	got := out.String()
	for _, want := range []string{
		"sigkill      2               83 ms         1.20 s  1.20 s  5",
		"resign       0      1",
		"3 faults in 12 s, 3 terms, 0 of them without a fault; 1000 events produced, 2 of them ended in the dead letter",
		"PASS (seed 7)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("table: no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, faults.SIGSTOP) {
		t.Errorf("table: a fault that was not drawn is in\n%s", got)
	}
}

// Every figure of the verdict alone turns it red, and says which.
func TestResultErr(t *testing.T) {
	t.Parallel()
	if err := clean().Err(); err != nil {
		t.Errorf("clean run: got %v", err)
	}
	for want, spoil := range map[string]func(*Result){
		"4 lost events":                       func(r *Result) { r.Lost = 4 },
		"1 events out of order":               func(r *Result) { r.OutOfOrder = 1 },
		"1 writes back to an older version":   func(r *Result) { r.Regressions = 1 },
		"1 resurrected documents":             func(r *Result) { r.Resurrected = 1 },
		"1 acts of a second claimer":          func(r *Result) { r.TwoClaimers = 1 },
		"2 verdicts without a lease":          func(r *Result) { r.Unleased = 2 },
		"3 sends without a lease":             func(r *Result) { r.SentEarly = 3 },
		"1 events done twice":                 func(r *Result) { r.Twice = 1 },
		"1 finished events that stayed":       func(r *Result) { r.Kept = 1 },
		"0 of 3 terms of the other build":     func(r *Result) { r.Upgrade = "v1" },
		"3 of 3 terms of the other build":     func(r *Result) { r.Upgrade, r.OtherTerms = "v1", 3 },
		"1 events or rows in another shard":   func(r *Result) { r.Misplaced = 1 },
		"1 columns with times of another":     func(r *Result) { r.WallClock = 1 },
		"1 instances that ended by themselve": func(r *Result) { r.Surprises = 1 },
		"1 missing documents":                 func(r *Result) { r.Missing, r.Converged = 1, false },
		"1 extra documents":                   func(r *Result) { r.Extra, r.Converged = 1, false },
		"1 stale documents":                   func(r *Result) { r.Stale, r.Converged = 1, false },
		"not converged":                       func(r *Result) { r.Converged = false },
		"no fault was injected":               func(r *Result) { r.Faults = 0 },
		"resign 2 times skipped and never":    func(r *Result) { r.Skipped[faults.Resign] = 2 },
		"nothing was recorded: 0 items":       func(r *Result) { r.Bulk = 0 },
		"900 items and 0 leases":              func(r *Result) { r.Leases = 0 },
		"2 bulk requests that could not be":   func(r *Result) { r.Unread = 2 },
		"judged by the times of statements":   func(r *Result) { r.Inexact = true },
	} {
		r := clean()
		spoil(r)
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		var out bytes.Buffer
		r.write(&out)
		if !strings.Contains(out.String(), "FAIL: ") {
			t.Errorf("%s: verdict is not FAIL in\n%s", want, &out)
		}
	}
}

// What the run could not help is shown, and is no fault of it.
func TestResultOfWhatIsRuledOut(t *testing.T) {
	t.Parallel()
	r := clean()
	r.Inexact, r.Named = true, true
	r.Skipped[faults.Resign], r.Impossible = 2, []string{faults.Resign}
	r.Skipped[faults.SIGKILL] = 3 // it was injected, too
	var out bytes.Buffer
	r.write(&out)
	for _, want := range []string{"judged by the times of statements, not of commits: the server has track_commit_timestamp off", "PASS"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want %q in it", &out, want)
		}
	}
}

func TestResultJSON(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "result.json")
	if err := rig.WriteResult(file, clean()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"seed", "faults", "lost", "out_of_order", "regressions", "resurrected", "two_claimers", "unleased", "sent_early", "done_twice", "converged"} {
		if _, ok := got[name]; !ok {
			t.Errorf("no %q in %s", name, text)
		}
	}
	want := map[string]any{"sigkill": map[string]any{"n": 2.0, "p50": 83.0, "p99": 1204.0, "max": 1204.0}}
	if diff := cmp.Diff(want, got["takeover_ms"]); diff != "" {
		t.Errorf("takeover_ms (-want +got):\n%s", diff)
	}
	if err := rig.WriteResult(filepath.Join(file, "below"), clean()); err == nil || !strings.Contains(err.Error(), "write result: ") {
		t.Errorf("a file that cannot be written: got %v", err)
	}
}

// at is a moment of a record, in milliseconds.
func at(ms int) time.Time {
	return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
}

func settledAt(ms int, epoch int64) history.Change {
	return history.Change{At: at(ms), From: history.Pending, To: history.Done, Epoch: epoch, Owner: fmt.Sprint(epoch)}
}

func TestResultCount(t *testing.T) {
	t.Parallel()
	log := &history.Log{Terms: []history.Term{{At: at(50), Epoch: 4}, {At: at(290), Epoch: 5}}, Changes: []history.Change{
		settledAt(100, 4), settledAt(250, 4),
		{At: at(300), From: history.Pending, To: history.Pending, Epoch: 4, Owner: "4", Reclaim: true},
		{At: at(320), From: history.Pending, To: history.Pending, Epoch: 5, Owner: "5"}, // a retry carries nothing
		settledAt(330, 5),
	}}
	for _, tc := range []struct {
		kind string
		led  bool
		want verdict.Latency
	}{
		{faults.SIGKILL, true, verdict.Latency{N: 1, P50: 130, P99: 130, Max: 130}},
		{faults.SIGKILL, false, verdict.Latency{}},
		{faults.SIGTERM, true, verdict.Latency{N: 1, P50: 80, P99: 80, Max: 80}},             // from the settle at 250
		{faults.PostgresRestartFast, true, verdict.Latency{N: 1, P50: 30, P99: 30, Max: 30}}, // from the answer at 300
		{faults.Throttle429, true, verdict.Latency{}},
	} {
		var r Result
		met := []rig.Leadership{{Epoch: 4, Instance: "b"}}
		if tc.led {
			met[0].Instance = "a"
		}
		r.count([]*history.Log{log}, []*injection{
			{
				Step: Step{Kind: tc.kind}, Instance: "a", met: met, Healed: at(310), Calm: at(400),
				Injection: &faults.Injection{Fault: faults.Named(tc.kind), Leader: tc.led, Epoch: 4, At: at(200), Accepts: at(300)},
			},
			{Step: Step{Kind: tc.kind}, Injection: &faults.Injection{Leader: tc.led, Epoch: 5}, Skipped: "not now"},
			{Step: Step{Kind: faults.Resign}, Injection: &faults.Injection{}, Skipped: "not here", never: true},
			{Step: Step{Kind: faults.Resign}, Injection: &faults.Injection{}, Skipped: "not here", never: true},
		})
		if got := r.TakeoverMS[tc.kind]; got != tc.want {
			t.Errorf("%s (leader %v): got %+v, want %+v", tc.kind, tc.led, got, tc.want)
		}
		if diff := cmp.Diff([]string{faults.Resign}, r.Impossible); diff != "" {
			t.Errorf("impossible faults (-want +got):\n%s", diff)
		}
		if r.Spontaneous != 0 {
			t.Errorf("%s: got %d terms without a fault, want none: the first of the group, and one of the fault", tc.kind, r.Spontaneous)
		}
		if r.Faults != 1 || r.Injected[tc.kind] != 1 || r.Skipped[tc.kind] != 1 {
			t.Errorf("%s: got %d faults, injected %v, skipped %v, want one of each", tc.kind, r.Faults, r.Injected, r.Skipped)
		}
	}
}

func TestOtherTerms(t *testing.T) {
	t.Parallel()
	starts := []start{{"a", at(0), true}, {"b", at(1), false}, {"a", at(100), false}, {"b", at(200), true}}
	terms := []history.Term{{At: at(50), Instance: "a"}, {At: at(90), Instance: "b"}, {At: at(150), Instance: "a"}, {At: at(250), Instance: "b"}, {At: at(300), Instance: "c"}}
	if got := otherTerms(terms, starts); got != 2 {
		t.Errorf("terms of the other build: got %d, want the first and the fourth", got)
	}
}
