// Package consumer is the ordered pipeline: claim, hold back, project, settle.
//
// # What is guaranteed
//
//   - Order per entity. At most one batch in flight holds events of an entity. Of
//     several claimed events of one entity the newest is projected and the others
//     settle with it as superseded. An event does not pass an earlier one of its
//     entity that waits for retry or is locked by somebody else: it waits too.
//   - No event is passed over. Every claimed event ends in exactly one of done,
//     superseded, retry, failed, waiting or given back; what is left when the term
//     is lost stays in processing and is reclaimed by the successor.
//   - One entity's trouble holds up no other entity. A projection that fails for a
//     whole batch without naming a shared fault is bisected down to the event.
//   - An outage ends no event in failed. A shared fault stops the claims, the
//     destination is probed, and work goes on with one small batch when it answers.
//   - A bad release does not empty the backlog into the dead letter: after a number
//     of final failures in a row the breaker opens and one event at a time is tried.
//   - A graceful end finishes what has been sent and gives back the rest.
//
// # What is not guaranteed
//
//   - Exactly one projection per event. A leader that dies after the projection and
//     before the settle leaves its events to be projected again.
//   - Order between entities, or between the batches of different terms, beyond what
//     the destination's versions hold.
//
// # States
//
//	       shared fault                     answers             batch done
//	open ───────────────▶ outage ─ probe ──────────▶ trial ───────────────▶ open
//	 │                       ▲                         │ shared fault
//	 │                       └─────────────────────────┘
//	 │ final failures in a row                    success
//	 └───────────────▶ broken ─ one event at a time ─────────────────────▶ open
package consumer
