package drill

import (
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// The run's own servers keep times of commits; on others a record without them is judged, and says so.
func TestRecordMustBeExact(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		servers     string
		exact, want bool
		seen        string
	}{
		{"embedded", true, true, "times of commits"},
		{"embedded", false, false, "times of statements, not of commits"},
		{"given", true, true, "times of commits"},
		{"given", false, true, "times of statements, not of commits"},
	} {
		dir, err := verdict.Create(t.TempDir(), "some", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		j := &judge{verdict.NewJudge(&verdict.Evidence{Dir: dir, Recipe: verdict.Recipe{Servers: tc.servers, Outcome: verdict.Completed}})}
		j.exact(&history.Log{Exact: tc.exact})
		result, err := j.Result()
		if err != nil {
			t.Fatal(err)
		}
		if last := result.Checks[len(result.Checks)-1]; result.OK != tc.want || last.Seen != tc.seen {
			t.Errorf("%s servers, exact %v: got %v with %+v, want %v", tc.servers, tc.exact, result.OK, last, tc.want)
		}
	}
}

// A run that was broken off has left a part of its evidence. It is told of as that, and not as many assertions that do not hold.
func TestRunThatWasBrokenOffIsNotJudged(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	for outcome, seen := range map[verdict.Outcome]string{
		verdict.Interrupted: "interrupted at 2026-05-04T03:03:01Z",
		verdict.Running:     "begun at 2026-05-04T03:02:01Z, and killed since or still running",
	} {
		dir, err := verdict.Create(t.TempDir(), "es_bulk_partial", began)
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.Write(verdict.RecipeFile, verdict.Recipe{Scenario: dir.Scenario, Outcome: outcome, Started: began, Ended: began.Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		result, err := Verify(dir)
		if err != nil || result.OK || len(result.Checks) != 1 || result.Checks[0].Seen != seen {
			t.Errorf("%s: got %+v, %v, want %q alone", outcome, result, err, seen)
		}
	}
}
