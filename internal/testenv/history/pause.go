package history

import (
	"slices"
	"time"
)

// LongestPause returns the longest time in which no event was settled as done, between the first
// one and the last, and when it began.
func (l *Log) LongestPause() (longest time.Duration, began time.Time) {
	var at []time.Time
	for i := range l.Changes {
		if c := &l.Changes[i]; c.Done() && c.Settles() {
			at = append(at, c.At)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	for n := 1; n < len(at); n++ {
		if pause := at[n].Sub(at[n-1]); pause > longest {
			longest, began = pause, at[n-1]
		}
	}
	return longest, began
}
