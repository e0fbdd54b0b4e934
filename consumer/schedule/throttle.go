package schedule

import "time"

const (
	// throttleStep is how much of the allowance is let go at once, so that a throttled flow is
	// smooth, and a batch is worth its request.
	throttleStep = 100 * time.Millisecond
	// throttleList bounds the age of a list while its rows go slowly: a later one shows what has
	// come since.
	throttleList = time.Second
)

// throttle is a bucket of events that may be leased. The zero value does not limit.
type throttle struct {
	rate float64 // events a second; 0 for no limit
	left float64
	at   time.Time // of left
}

// set changes the rate.
func (t *throttle) set(now time.Time, rate float64) {
	t.fill(now)
	t.rate, t.at = rate, now
	t.left = min(t.left, t.step())
}

// step is the size of the bucket.
func (t *throttle) step() float64 { return max(1, t.rate*throttleStep.Seconds()) }

func (t *throttle) fill(now time.Time) {
	if t.rate > 0 && now.After(t.at) {
		t.left, t.at = min(t.left+now.Sub(t.at).Seconds()*t.rate, t.step()), now
	}
}

// allowed returns how many events may be leased now, at most most of them. It waits until half
// of the bucket is full.
func (t *throttle) allowed(now time.Time, most int) int {
	if t.rate == 0 {
		return most
	}
	t.fill(now)
	if t.left < max(1, t.step()/2) {
		return 0
	}
	return min(most, int(t.left))
}

// next returns when allowed is more than nothing; that is in the past where it is already.
func (t *throttle) next() time.Time {
	lacking := max(1, t.step()/2) - t.left
	if lacking <= 0 {
		return t.at
	}
	return t.at.Add(time.Duration(lacking/t.rate*float64(time.Second)) + time.Microsecond)
}

// spend counts events that are leased; a negative number returns what was not leased.
func (t *throttle) spend(n int) {
	if t.rate > 0 {
		t.left -= float64(n)
	}
}
