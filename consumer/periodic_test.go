package consumer

import (
	"errors"
	"testing"
	"time"
)

// A term leases nothing before what operators hold back is known: half of a proxy's sessions may still
// lead to the old primary then, and the next tick is half a second away.
func TestCallOfATickIsRepeatedSoonAfterAFault(t *testing.T) {
	t.Parallel()
	const every = 500 * time.Millisecond
	now := time.Unix(1_000_000, 1)
	var c periodic
	var asked []time.Duration
	begun := now
	for range 1000 {
		if c.begin(now, every) {
			asked = append(asked, now.Sub(begun).Round(time.Millisecond))
			c.end(now, errors.New("no answer"))
		}
		now = now.Add(time.Millisecond)
	}
	want := []time.Duration{0, 25, 75, 175, 375, 500}
	for i, w := range want {
		if i >= len(asked) || asked[i] != w*time.Millisecond {
			t.Fatalf("asked after %v, want %v ms first", asked, want)
		}
	}
	for !c.begin(now, every) {
		now = now.Add(time.Millisecond)
	}
	c.end(now, nil)
	if at := now; c.begin(at.Add(100*time.Millisecond), every) {
		t.Error("asked again before the next tick, though there was an answer")
	}
	if got := len(asked); got > 8 {
		t.Errorf("asked %d times in a second, want later each time", got)
	}
}
