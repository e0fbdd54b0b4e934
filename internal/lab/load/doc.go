// Package load is an application that writes: rows of search_index and their outbox events,
// each pair in one transaction, at a pace that nothing slows down.
//
// # What is guaranteed
//
//   - The load is an open loop: operation n is due n/rate after the begin, whatever became
//     of those before it. What began late is made up for as fast as the connections allow.
//   - A latency is from when an operation was due, so that a stall shows in those that had
//     to wait for it, too.
//   - Versions are taken under the lock of the entity's row, by the database's clock, and
//     grow with each change.
//   - It writes to a database of environment test or dev only.
//
// # What is not
//
//   - More than Concurrency operations are never under way. When that is not enough for the
//     rate, the summary says by how much the begins were late.
//   - An operation that fails is counted and not repeated.
package load
