package failover

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

func TestOneRound(t *testing.T) {
	t.Parallel()
	for _, kind := range []stack.Replication{stack.Synchronous, stack.Asynchronous} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			file := filepath.Join(t.TempDir(), "result.json")
			err := Run(t.Context(), Options{
				Out: &out, Progress: io.Discard, Environ: os.Environ(), Times: 1, Replication: kind, Lag: 300 * time.Millisecond, Seed: 3,
				ElasticURL: testenv.ElasticURL(t), Index: testenv.Index(t), Dir: t.TempDir(), JSON: file,
			})
			if err != nil {
				t.Errorf("verdict: got %v, want none", err)
			}
			t.Log(&out)
			var result Result
			if text, err := os.ReadFile(file); err != nil || json.Unmarshal(text, &result) != nil {
				t.Fatalf("result: %v", err)
			}
			if len(result.Rounds) != 1 || !result.Converged || result.Produced <= result.LostWithPrimary || result.Refused == 0 {
				t.Fatalf("result: got %+v, want a round with events and refusals", result)
			}
			round := result.Rounds[0]
			if round.SettleMS <= 0 || round.OutageMS <= 0 || round.Epoch < 2 || round.LeadMS > round.SettleMS {
				t.Errorf("round: got %+v, want times and a later term", round)
			}
			if lossy := kind == stack.Asynchronous; (round.Lost > 0) != lossy || (round.Ahead >= 3) != lossy || round.Lossy != lossy || round.Named != round.Ahead {
				t.Errorf("round: got %d lost, %d ahead, %d named; want losses only where commits do not wait, then three documents at least, and all named", round.Lost, round.Ahead, round.Named)
			}
			if want := "PASS (seed 3)"; !strings.Contains(out.String(), want) {
				t.Errorf("output: got %q, want %q in it", &out, want)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	clean := Result{Replication: stack.Synchronous, Converged: true, Rounds: []Round{{Fault: "sigkill"}}}
	if err := clean.Err(); err != nil {
		t.Errorf("clean run: got %v, want none", err)
	}
	for want, spoil := range map[string]func(*Result){
		"1 lost events":                func(r *Result) { r.Lost = 1 },
		"7 verdicts without a lease":   func(r *Result) { r.Unleased = 7 },
		"8 events done twice":          func(r *Result) { r.Twice = 8 },
		"2 events out of order":        func(r *Result) { r.OutOfOrder = 2 },
		"3 acts of a second claimer":   func(r *Result) { r.TwoClaimers = 3 },
		"4 dead letters":               func(r *Result) { r.Failed = 4 },
		"5 documents ahead of the":     func(r *Result) { r.Unnamed = 5 },
		"6 acknowledged events lost ":  func(r *Result) { r.LostWithPrimary = 6 },
		"the stores differ":            func(r *Result) { r.Converged = false },
		"9 faults that did not happen": func(r *Result) { r.Unseen = 9 },
		"no round took place":          func(r *Result) { r.Rounds = nil },
		"judged by the times of state": func(r *Result) { r.Inexact = true },
		"first event settled 1001 ms after the database took writes again, want 1000": func(r *Result) {
			r.Route, r.Rounds = "hosts", []Round{{Fault: faults.PrimaryKilled, SettleMS: 1001}}
		},
	} {
		bad := clean
		spoil(&bad)
		if err := bad.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("verdict: got %v, want %q", err, want)
		}
	}
	for want, rounds := range map[string][]Round{
		"": {{Fault: "sigkill", Lossy: true, Lost: 6, Ahead: 3, Named: 3}, {Fault: faults.PrimaryKilled}},
		"round 2, immediate with the replica cut off: 0 events lost and 3 documents ahead": {
			{Fault: "sigkill", Lossy: true, Lost: 6, Ahead: 4}, {Fault: "immediate", Lossy: true, Ahead: 3},
		},
		"round 1, member-killed with the replica cut off: 6 events lost and 2 documents ahead": {{Fault: faults.PrimaryKilled, Lossy: true, Lost: 6, Ahead: 2}},
	} {
		lossy := Result{Replication: stack.Asynchronous, LostWithPrimary: 6, Converged: true, Rounds: rounds}
		if err := lossy.Err(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("asynchronous loss, which is the limit, and must be seen: got %v, want %q", err, want)
		}
	}
	if err := Run(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "times: 0, want 1 or more") {
		t.Errorf("no rounds: got %v, want a refusal", err)
	}
}
