// Package traffic is the application of all workshop programs: it changes rows of
// search_index and writes their outbox events in the same transactions, or it changes the
// tables of a shop, whose triggers do.
//
//   - [Application] carries out changes and keeps a ledger of what it saw committed.
//   - [Stream] is everyday traffic: several writers that meet at the same entities until the
//     context ends, with commits in the order of versions or not.
//   - [Shop] is everyday traffic in examples/shop, and says what its documents must be.
//   - [Run] is a load with a number of operations, and its figures: `weftlab load`.
//
// # What is guaranteed
//
//   - The version of a change is taken under the lock of the entity's row, so that versions of
//     an entity grow in the order of commit. Only [Application.WriteLate] does otherwise.
//   - Keys are locked in one order, so that two transactions never wait for each other.
//   - A loop is open: operation n is due n/rate after the begin, whatever became of those
//     before it. A latency counts from then, so that a stall shows in the operations that had
//     to wait for it, too.
//   - A transaction that has begun is brought to its end when the context ends: a commit that
//     is cut off has an unknown fate.
//   - A load writes to a database of environment test or dev only.
//
// # What is not guaranteed
//
//   - More operations than the loop's Concurrency are never under way. Where that is too few
//     for the rate, the result says how late operations began.
//   - An operation that fails is counted and not repeated.
//   - The ledger takes some 100 bytes of memory for each event.
package traffic
