// Package replay sends dead letters again, at a pace that live events do not notice,
// and watches their results.
//
// # What is guaranteed
//
//   - Every row that is sent again is counted in the audit, in the same transaction.
//   - Lower versions go first, and a row is sent at most once in a run: one that fails
//     again stays in failed.
//   - A replay that does no good stops by itself: a few events go first, and when
//     [Futile] of them have failed again with no success between, the rest stays where
//     it is. That is fewer than open the breaker of a pipeline.
//   - While a leader works, no more events are on their way than it settles in about two
//     seconds at the replay's pace. In an outage the replay waits with it, so that live
//     events find no backlog before them when it is over.
//   - It can be ended at any time and run again for the rest.
//
// # What is not guaranteed
//
//   - Without a leader, or with no pace, nothing is watched: all of it is pending at
//     once, and goes before later events.
package replay
