// Package history records every change of state of an outbox table while a
// workshop run lasts, and judges the record afterwards.
//
// # What is recorded
//
// [Install] puts triggers on the outbox table and on weft_leader. They write, in the
// transaction of the change itself, one row per changed event (transaction, event,
// entity, version, op, status before and after, owner, epoch, attempts) and one per
// new epoch into append-only tables beside them. Nothing of weft knows about it; no
// change can be hidden from it, and none is recorded that did not commit. Renewals of
// a lease change none of the recorded columns and are left out.
//
// The order is that of commit, from pg_xact_commit_timestamp. Of two transactions one
// of which waited for a lock of the other, which is what the checks are about, it is
// exact as long as the server's clock is not set back. On a server without
// track_commit_timestamp the time of the statement stands in, and [Log.Exact] is
// false: a statement that began before another one and committed after it then passes
// for the earlier one.
//
// # What is checked
//
//   - [TwoActive]: a claim or settle that committed under an epoch older than the newest
//     one committed, or under an epoch that has another owner, or under none.
//   - [OutOfOrder]: an event that became done while an event of its entity with a lower
//     version, committed before it, was neither done nor failed, unless one
//     transaction settled both (the older one superseded).
//   - [LostEvents]: an event that was enqueued and is not done at the end, whose done is
//     in the table and not in the record, or whose row is gone; and an event that the
//     producer saw committed and that was never recorded.
//
// # What is not
//
//   - What was written to the destination, and when. Package reconcile compares the
//     result; a late write that a newer one then corrected is seen by neither.
//   - Whether a reclaim was due: it is told apart from a settle by its count of reclaims,
//     and only the claims and settles of its author show the author's epoch.
//   - Two events of one entity with one version: neither is the earlier.
//   - Order behind a dead letter: by default later events of its entity may proceed.
package history
