package history

import (
	"slices"
	"time"
)

// LongestPause returns the longest time in which no event was settled as done, from the commit of
// the first event to the last settle, and when it began.
func (l *Log) LongestPause() (longest time.Duration, began time.Time) {
	settles := l.settles()
	slices.SortFunc(settles, func(a, b *Change) int { return a.At.Compare(b.At) })
	from := l.firstEvent()
	for _, s := range settles {
		if pause := s.At.Sub(from); !from.IsZero() && pause > longest {
			longest, began = pause, from
		}
		from = s.At
	}
	return longest, began
}

// firstEvent returns when the first event was committed; zero where the record has none.
func (l *Log) firstEvent() (first time.Time) {
	for _, c := range l.Changes {
		if c.From == "" && (first.IsZero() || c.At.Before(first)) {
			first = c.At
		}
	}
	return first
}
