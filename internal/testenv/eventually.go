package testenv

import (
	"testing"
	"time"
)

const pollInterval = 5 * time.Millisecond

// Eventually returns as soon as cond holds, and fails the test, naming what, when it
// does not within d. cond runs on the caller's goroutine, at least once, about every 5 ms.
func Eventually(t testing.TB, d time.Duration, cond func() bool, what string) {
	t.Helper()
	deadline := time.Now().Add(d)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(pollInterval)
	}
}
