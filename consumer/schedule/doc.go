// Package schedule decides what the leader does next with the events of one outbox
// table: what to list, which entities to lease together, what to send, what becomes of
// each event, and when to stop and probe. It is pure: it makes no call, starts no
// goroutine and reads no clock. [Scheduler.Next] names one action at a time; whoever
// carries it out reports the answer to the method that is named after it. The answers,
// the times and the source of randomness that are handed in decide everything.
//
// # What is guaranteed
//
//   - One order everywhere: by (event_version, id). An entity is in one batch at a time,
//     as one group of its lowest rows. The newest event of a group is projected, the
//     others are superseded by it, or stay behind the earliest one.
//   - Under strict order a group is a single event: none is superseded, and a failed one
//     holds up its entity until it is replayed or discarded.
//   - No event is skipped. Every leased event is settled with a verdict or stays open; a
//     later list shows it again.
//   - The database decides, at the lease, which rows wait behind an earlier one. The
//     barriers kept here avoid asking again, for five seconds at most, and may be dropped at
//     any time. An entity that could not be settled waits up to the longest backoff, one in
//     quarantine until its release.
//   - No entity holds up another. Due and ready entities take turns. An entity with which
//     whole requests fail is tried beside the others, in requests of its own. An entity that
//     cannot be settled, or may be the cause of crashes, is set aside. When rows that must
//     wait fill the lists, they are put off in the table, and lists begin behind them; so are
//     rows behind a request that hangs, or behind the first of an entity that waits for a batch
//     without others. Beside as many such requests as there are batches in
//     flight go as many small ones; when these hang, too, all wait until a deadline.
//   - A slow destination is not overrun: after a request that took two seconds batches have
//     fewer entities, and more again after quick ones. After a refusal because it is busy fewer
//     batches are in flight, and more again while they go well.
//   - An entity in quarantine is not leased until it is released; its rows are put off when they
//     fill the lists. A throttle spends an allowance of events that fills evenly.
//   - An outage needs proof: a probe that fails, or faults of several entities with none
//     that goes through. It ends no event in failed. While a part of the destination is away the entities
//     of that part fail again and again, which proves nothing about the others.
//   - Memory is bounded by two lists, a look back and the entities met while they are used.
//
// # What is not guaranteed
//
//   - That a list is complete. It is a hint; a later one shows what it has missed.
//   - That two instances decide alike: a term begins with an empty memory.
package schedule
