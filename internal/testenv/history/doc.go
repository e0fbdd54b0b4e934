// Package history records what happens to an outbox table, its source and its documents
// while a workshop run lasts, and judges the record afterwards.
//
// # What is recorded
//
// [Install] puts triggers on the outbox table, its history, weft_lease and weft_leader,
// [InstallSource] on search_index. They write, in the transaction of the change itself,
// into append-only tables beside them: one row per changed event (transaction, event,
// entity, version, op, status before and after, attempts, session), also when it leaves
// the table or comes into the history; two per lease, its begin with the events and its
// end; one per new epoch and one per changed source row. Nothing of weft knows about it; no
// change can be hidden from it, and none is recorded that did not commit. What only puts an
// event off changes none of the recorded columns and is left out.
//
// An event is in flight from the commit of a lease that names it to the commit of the
// lease's end. [Read] attributes a change to the lease that its transaction has ended: that
// is whose verdict it is. An older build of weft claims in the row, and so do other
// workers: such a claim is the lease of one event, so that the checks judge a run in which
// both builds lead in turns.
//
// The order is that of commit, from pg_xact_commit_timestamp. Of two transactions one
// of which waited for a lock of the other, which is what the checks are about, it is
// exact as long as the server's clock is not set back. On a server without
// track_commit_timestamp the time of the statement stands in, and [Log.Exact] is
// false: a statement that began before another one and committed after it then passes
// for the earlier one.
//
// What Elasticsearch was asked and what it answered comes from a recording proxy, as
// [Applied]; [ReadEnd] reads the documents and rows at the end.
//
// # What is checked
//
// [Check] does all of it.
//
//   - [TwoActive]: one claimer. Epochs grow and belong to one instance each; no lease or
//     settle commits under one that is older than the newest; nobody leases what another
//     term holds, and nobody settles or reclaims the leases of another.
//   - [Unleased]: every verdict belongs to the lease that its transaction has ended.
//   - [Verdict.SentEarly]: nothing is sent for an entity before a lease on one of its events has
//     committed.
//   - [Lost]: every event has a fate. It ends done or failed, in the table, in the history
//     or deleted by a settle, with no gap in its record; no dead letter leaves the table; what
//     the producer saw committed is there. [Unprojected]: none is done before Elasticsearch
//     confirmed a version as new as its own. [Twice]: none is done or archived more than once.
//   - [Verdict.Regressions]: versions never go back, in Elasticsearch's own order of writes, and
//     all its answers are those of a register that refuses older versions, with lost
//     answers meaning either. [Verdict.Resurrected]: no deleted document comes back.
//   - [OutOfOrder]: an event that became done while an event of its entity with a lower
//     version, committed before it, was neither done nor failed, unless one transaction
//     settled both (the older one superseded). What a replay brings back counts from then.
//   - [Diverged]: documents are what the source rows say, apart from those of entities
//     whose newest event is a dead letter (unsettled).
//   - [Misplaced]: where entities are dealt out to shards, each is in its own. [Deal] gives each
//     shard its part of a run; all of the above is checked for each.
//   - [Takeovers]: how long a fault was felt, and by how many events.
//
// A million changes are judged in some ten seconds and within two gigabytes (BenchmarkCheck).
//
// # What is not
//
//   - Whether a reclaim was due. Who reclaimed or settled is known from sessions that are
//     named as weft names them, and otherwise taken to be the holder of the lease.
//   - A send without a lease that could be a late one of an earlier lease: a version that
//     was known before that lease ended.
//   - What a crash of PostgreSQL takes back: weft does not wait for the disk, and neither
//     does the record of what it does.
//   - Two events of one entity with one version: neither is the earlier.
//   - Order behind a dead letter: by default later events of its entity may proceed.
//   - What Elasticsearch does when it has forgotten a delete, after index.gc_deletes or
//     with a new primary term: it may take an older write, and that counts only when the
//     write brings the document back. A doubtful write is then taken to have done nothing.
//   - Documents that were there before the record began, and a document that is moved to
//     another index while it lasts: sequence numbers begin anew there.
//   - Skewed clocks between PostgreSQL and the recording process: they are one machine's.
package history
