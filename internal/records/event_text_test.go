package records

import (
	"math"
	"strings"
	"testing"
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
