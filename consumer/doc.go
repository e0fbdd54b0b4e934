// Package consumer is the pipeline of one outbox table while a term lasts. Package schedule
// decides; this package carries out each action (list, lease, send, settle, probe) in a
// goroutine of its own and hands the answer back. Package observe tells of it.
//
// # What is guaranteed
//
//   - Nothing is sent before its lease is committed, and nothing without a proof of
//     leadership that is fresh.
//   - A settle is repeated until the database has answered or the term is over. After an
//     answer that was lost the lease tells whether the settle took place: nothing is sent a
//     second time for it.
//   - A term ends when the outbox has given no connection or answer for [Config].CutOff,
//     although the lock session lives: another instance may get one. Until then a database
//     that is away ends no term.
//   - While another worker claims rows of the table nothing is leased.
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
