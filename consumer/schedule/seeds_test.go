//go:build !race

package schedule_test

// modelSeeds is how many worlds of each plan are tried: some two million steps.
const modelSeeds = 20
