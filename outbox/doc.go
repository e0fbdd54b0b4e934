// Package outbox is the vocabulary of weft and the only place that holds SQL on
// outbox tables. Each statement stands whole in a file of the folder sql.
//
// # What is guaranteed
//
//   - Every write is fenced. A lease, settle, put-off or reclaim takes a key-share lock on
//     the fence row of its own term in the same transaction; once a newer term has
//     begun, nothing changes and the call returns [ErrFenced].
//   - Nothing is settled without its lease, and no lease twice. A settle deletes the row of
//     weft_lease first and is all or nothing with it, so that after an answer that was
//     lost [Store.Resolve] can tell whether it took place.
//   - An entity is settled whole or not at all. When another session has changed or locked
//     one of its rows, the entity stays open and the others of the batch are settled. When the
//     database refuses the write, nothing is settled, and the batch can be split.
//   - No event is leased while an earlier one of its entity is open outside the batch. The
//     lease finds an earlier event that waits, is parked, is put off or is another worker's.
//     It also finds a ready one, unless a list from the head has shown that there is none.
//   - Cost follows the batch, never the rows that are done, wait or lie in the backlog.
//   - A replay changes rows in failed only, and counts each in the audit in the same
//     statement. It needs no leader and is not fenced: a leader touches no such row.
//   - All times in tables come from the database clock. Callers pass durations.
//   - Every statement has a deadline and a bound on its rows, and no transaction stays
//     open between two calls.
//
// # What is not guaranteed
//
//   - Two events of one entity are seen in version order only if the producer holds
//     a lock on the entity (normally the row it updates) while it writes both the
//     entity and the event. A producer that does not may commit version 5 before
//     version 4; weft may then project 5 first and 4 as already applied.
//   - Delivery is at least once: a leader that dies between the projection and the
//     settle leaves events that its successor projects again.
//
// # The life of an event
//
// A pending row is ready; or due or waiting, by its next_retry_at; or put off behind an
// earlier one of its entity. A row in processing is one that another worker, which knows no
// leases, has claimed. docs/architecture.md draws it and lists the columns.
package outbox
