// Package history records what happens to an outbox table, its source and its documents
// while a workshop run lasts, and judges the record afterwards.
//
// # What is recorded
//
// [Install] puts triggers on the outbox table and on weft_leader, [InstallSource] on
// search_index. They write, in the transaction of the change itself, one row per changed
// event (transaction, event, entity, version, op, status before and after, owner, epoch,
// attempts, session), one per new epoch and one per changed source row into append-only
// tables beside them. Nothing of weft knows about it; no change can be hidden from it,
// and none is recorded that did not commit. Renewals of a lease change none of the
// recorded columns and are left out.
//
// The order is that of commit, from pg_xact_commit_timestamp. Of two transactions one
// of which waited for a lock of the other, which is what the checks are about, it is
// exact as long as the server's clock is not set back. On a server without
// track_commit_timestamp the time of the statement stands in, and [Log.Exact] is
// false: a statement that began before another one and committed after it then passes
// for the earlier one.
//
// What Elasticsearch was asked and what it answered comes from a recording proxy, as
// [Applied]; what is left in the end is read by [ReadEnd].
//
// # What is checked
//
// [Check] does all of it.
//
//   - [TwoActive]: one claimer. Epochs grow and belong to one instance each; no claim or
//     settle commits under one that is older than the newest; nobody takes what is
//     claimed, or settles or reclaims what is not its to settle or reclaim.
//   - [Lost]: every event has a fate. It ends done or failed, by a claim of its own or
//     with a later event of its entity in one transaction, with no gap in its record; what the producer saw committed is there. [Unprojected]: none is done
//     before Elasticsearch confirmed a version as new as its own.
//   - [Regressions]: versions never go back, in Elasticsearch's own order of writes, and
//     all its answers are those of a register that refuses older versions, with lost
//     answers meaning either. [Resurrected]: no deleted document comes back.
//   - [OutOfOrder]: an event that became done while an event of its entity with a lower
//     version, committed before it, was neither done nor failed, unless one transaction
//     settled both (the older one superseded). What a replay brings back counts from then.
//   - [Diverged]: documents are what the source rows say, apart from those of entities
//     whose newest event is a dead letter (unsettled).
//   - [Takeovers]: how long a fault was felt, and by how many events.
//
// A million changes are judged in a few seconds and within a gigabyte (BenchmarkCheck).
//
// # What is not
//
//   - Whether a reclaim was due. Who reclaimed or settled is known from sessions that are
//     named as weft names them, and otherwise taken to be the holder of the claim.
//   - Two events of one entity with one version: neither is the earlier.
//   - Order behind a dead letter: by default later events of its entity may proceed.
//   - What Elasticsearch does when it has forgotten a delete, after index.gc_deletes or
//     with a new primary term: it may take an older write, and that counts only when the
//     write brings the document back. A doubtful write is then taken to have done nothing.
//   - Documents that were there before the record began, and a document that is moved to
//     another index while it lasts: sequence numbers begin anew there.
//   - Skewed clocks between PostgreSQL and the recording process: they are one machine's.
package history
