package records

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// An event that a quarantine puts off stands behind no version of its entity.
func TestLineOfAnEventThatIsPutOff(t *testing.T) {
	t.Parallel()
	for behind, want := range map[int64]string{
		7: "put off behind version 7 of its entity", math.MinInt64: "put off by a quarantine of its entity",
	} {
		place := Story{Place: "behind"}
		place.Behind = &behind
		if got := place.Where(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := (Earlier{Behind: &behind}).Line(); !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want %q at its end", got, want)
		}
	}
}

// Who has an event in flight is at work on it only while he leads.
func TestAdviceOnAnEventInFlight(t *testing.T) {
	t.Parallel()
	state := leader.State{Epoch: 7, Instance: "a", LockHeld: true, LockMatches: true}
	story := &outbox.Story{Holder: outbox.Holder{Owner: "a", Epoch: 7}}
	if got := adviseInFlight(story, state, time.Minute); got != "Wait: a is projecting it." {
		t.Errorf("while it leads: got %q", got)
	}
	state.LockHeld = false
	if got := adviseInFlight(story, state, time.Minute); !strings.HasPrefix(got, "Wait: a had it in flight when its term ended; ") {
		t.Errorf("while nobody leads: got %q", got)
	}
}
