// Package producer is the application of a drill: it changes rows of search_index and
// enqueues their events, in one transaction, and remembers what it saw committed.
//
// # What is guaranteed
//
//   - It goes on whatever the database does: four goroutines, some three hundred events a
//     second, each transaction with a deadline. None is tried again.
//   - Each goroutine has entities of its own, so that versions grow in the order of commit.
//   - [Producer.Ledger] has exactly the events whose commit was answered. An event whose
//     commit was not may exist all the same.
//
// # What is not guaranteed
//
//   - The same events for the same seed: their versions are times.
package producer
