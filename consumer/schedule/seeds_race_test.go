//go:build race

package schedule_test

// modelSeeds is how many worlds of each plan are tried, and modelSeconds how long each lives:
// under the race detector, which has nothing to find in one goroutine, a step takes ten times as
// long; make test-model tries more.
const (
	modelSeeds   = 1
	modelSeconds = 40
)
