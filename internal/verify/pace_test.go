package verify

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// A run that stood still does not make up for it: what follows keeps the rate.
func TestRateHoldsAfterAStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := &verifier{Options: Options{Rate: 100}}
		room := func(n int) (waited time.Duration) {
			t.Helper()
			began := time.Now()
			if err := v.room(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		room(1000)
		if got := room(1000); got != 10*time.Second {
			t.Errorf("1000 rows at 100 a second: waited for %v", got)
		}
		time.Sleep(time.Hour)
		if got := room(1000); got != 9*time.Second {
			t.Errorf("after an hour: waited for %v, want a second less and no more", got)
		}
		if got := room(1000); got != 10*time.Second {
			t.Errorf("thereafter: waited for %v", got)
		}
	})
}

// What is too large at once is looked at in parts, each item in one of them; what fails for another cause ends it.
func TestItemsThatAreTooLargeAreLookedAtInParts(t *testing.T) {
	t.Parallel()
	v := &verifier{}
	var seen []int
	err := v.inParts(60, func(from, to int) error {
		if to-from > 1 && from < 7 && to > 3 || to-from > 10 {
			return fmt.Errorf("rows: %w", elastic.ErrOverBudget)
		}
		for i := from; i < to; i++ {
			seen = append(seen, i)
		}
		return nil
	})
	if err != nil || len(seen) != 60 || !slices.IsSorted(seen) || len(slices.Compact(seen)) != 60 {
		t.Errorf("got %v, %v, want each of 60 once", seen, err)
	}
	broken := errors.New("broken")
	if err := v.inParts(60, func(from, to int) error {
		if to-from == 60 {
			return elastic.ErrOverBudget
		}
		return broken
	}); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
