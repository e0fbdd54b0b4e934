package verify

import (
	"testing"
	"testing/synctest"
	"time"
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
