// Package consumer is the pipeline of one outbox table while a term lasts. Package schedule
// decides; this package carries out each action (list, lease, send, settle, probe) in a
// goroutine of its own and hands the answer back. Package observe records it in metrics,
// spans and log lines.
//
// # What is guaranteed
//
//   - Nothing is sent before its lease is committed, and nothing without a proof of
//     leadership that is fresh.
//   - A settle is repeated until the database has answered or the term is over. When an
//     answer is lost, the lease shows whether the settle took place, so nothing is sent
//     twice because of it. A settle that the database refuses, or that takes longer than its
//     deadline, is repeated in halves; an entity that cannot be settled by itself stays open.
//   - A term ends when the outbox has given no connection or answer for [Config].CutOff,
//     although the lock session lives: another instance may get through. A shorter outage of
//     the database ends no term.
//   - While another worker claims rows of the table the pipeline leases nothing.
//   - A graceful end settles what was sent, within the grace, releases the rest, and begins
//     nothing.
//   - Every goroutine has ended when Run returns.
//
// # What is not guaranteed
//
//   - Exactly one projection per event. A leader that dies after the projection and
//     before the settle leaves its events to be projected again.
//   - Order between entities, or between the batches of different terms, beyond what
//     the destination's versions hold.
package consumer
