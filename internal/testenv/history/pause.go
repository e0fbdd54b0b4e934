package history

import (
	"slices"
	"time"
)

// LongestPause returns the longest time in which no event was settled as done, between the first
// one and the last, and when it began.
func (l *Log) LongestPause() (longest time.Duration, began time.Time) {
	settles := l.settles()
	slices.SortFunc(settles, func(a, b *Change) int { return a.At.Compare(b.At) })
	for n := 1; n < len(settles); n++ {
		if pause := settles[n].At.Sub(settles[n-1].At); pause > longest {
			longest, began = pause, settles[n-1].At
		}
	}
	return longest, began
}
