package drill

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// Each trouble of an exercise has a runbook to be found.
func TestExercisesLeadToRunbooks(t *testing.T) {
	t.Parallel()
	for _, x := range troubles() {
		if len(Runbooks(x.drill)) == 0 {
			t.Errorf("%s rehearses no runbook", x.drill)
		}
		if _, err := lookUp([]string{x.drill}); err != nil {
			t.Error(err)
		}
	}
	if err := Exercise(t.Context(), ExerciseOptions{}, "weather"); err == nil || !strings.Contains(err.Error(), "want one of any, elasticsearch, leader, queue") {
		t.Errorf("an exercise about the weather: got %v", err)
	}
}

// A person who errs once, finds the runbook and has the fault healed gets their times, the fault
// and the page; one whose input ends has given up.
func TestExercise(t *testing.T) {
	t.Parallel()
	binary := weft(t)
	for name, c := range map[string]struct {
		typed string
		tries int
		gave  bool
	}{
		"Found":  {"frozen-leader\n\nlag-growing\nlater\nfix\n", 2, false},
		"GaveUp": {"throttled\ngive up\n", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, drill bytes.Buffer
			opts := ExerciseOptions{Options: testOptions(t, &drill, binary), In: strings.NewReader(c.typed), Within: 10 * time.Millisecond}
			opts.Out = &out
			if err := Exercise(t.Context(), opts, "queue"); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			e := newest(t, opts.Options, "exercise")
			var got verdict.Exercised
			if err := e.Read(verdict.ExerciseFile, &got); err != nil {
				t.Fatal(err)
			}
			if got.Fault != "db_claim_contention" || got.Tries != c.tries || got.GaveUp != c.gave || (got.Detection == nil) != c.gave || (got.Repair == nil) != c.gave {
				t.Errorf("got %+v, want %d tries, given up: %v", got, c.tries, c.gave)
			}
			before, after, _ := strings.Cut(out.String(), "It was: a lock of another session on the table of leases.")
			if strings.Contains(before, "lock") || !strings.Contains(before, "/metrics") || !strings.Contains(after, "lag-growing.md") {
				t.Errorf("got %s, want the fault and its runbook at the end alone", &out)
			}
			past, err := verdict.ReadPast(opts.Evidence)
			if err != nil || len(past) != 1 || (past[0].Repair == nil) != c.gave {
				t.Errorf("in the history: %+v, %v, want the times of the person", past, err)
			}
		})
	}
}
