//go:build !race

package schedule_test

// modelSeeds is how many worlds of each plan are tried, and modelSeconds how long each lives:
// some two million steps.
const (
	modelSeeds   = 20
	modelSeconds = 120
)
