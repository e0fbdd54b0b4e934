//go:build race

package schedule_test

// modelSeeds is how many worlds of each plan are tried: under the race detector, which has
// nothing to find in one goroutine, a step takes ten times as long; make test-model tries more.
const modelSeeds = 1
