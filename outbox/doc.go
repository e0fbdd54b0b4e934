// Package outbox is the vocabulary of weft and the only place that holds SQL on
// outbox tables.
//
// # What is guaranteed
//
//   - Every write is fenced and guarded. A claim, settle, renewal or reclaim takes
//     a key-share lock on the leader's row for its own epoch in the same statement;
//     once a newer epoch has committed, the statement changes no row and the call
//     returns [ErrFenced]. A settle also names the row's id, status, owner, epoch
//     and the time of its claim: a row that has been reclaimed in between
//     is left alone and counted as a mismatch, never as an error.
//   - The cost of a claim follows the batch: it reads the heads of two partial
//     indexes (ready and due), never the done rows, the waiting rows or the length
//     of the backlog. [Store.List] says what is done when dead index entries pile up there.
//   - A replay changes rows in failed only, and counts each in the audit in the same
//     statement. It needs no leader and is not fenced: a leader touches no such row.
//   - All times in tables come from the database clock. Callers pass durations.
//   - No transaction stays open between two calls.
//
// # What is not guaranteed
//
//   - Two events of one entity are seen in version order only if the producer holds
//     a lock on the entity (normally the row it updates) while it writes both the
//     entity and the event. A producer that does not may commit version 5 before
//     version 4; weft then projects 5 first and 4 as already applied, because a
//     projection reads the entity's state when it runs, not when it was written.
//   - Delivery is at least once: a leader that dies between the projection and the
//     settle leaves rows that its successor projects again.
//
// # The life of an event
//
//	              ┌───────── lease given back, reclaimed ─────────┐
//	              ▼                                               │
//	enqueue ─▶ pending ──────────── claim ───────────────────▶ processing ──▶ done
//	              ▲  (ready, or due when next_retry_at has passed) │ │
//	              └──────────── retry: attempts+1, next_retry_at ──┘ └──────▶ failed
//	              ▲                                                  (dead letter)
//	              └──────────── replay, audited ────────────────────────────┘
//
// The columns and their meaning are listed in docs/architecture.md.
package outbox
