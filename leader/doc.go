// Package leader elects one leader of a group on one PostgreSQL session advisory
// lock and gives every term of leadership a number, its epoch.
//
// # What is guaranteed
//
//   - Epochs of a group only grow, and each belongs to one term of one instance. The
//     bump is made on the session that holds the lock, by a statement that first sees
//     that lock in pg_locks.
//   - A writer that takes weft_leader's row for its own epoch with FOR KEY SHARE is
//     fenced: the next bump waits for its transaction, and once it has committed the
//     old epoch's row is no longer there to be locked. Heartbeats do not conflict
//     with such writers.
//   - [Term.Check] refuses once the last proof of leadership is older than the trust
//     window, on the monotonic clock, and never accepts again in that term. A process
//     that was stopped for longer than the window is refused before it does anything.
//   - The lock is freed only after [Work] has returned. The exception is a term that
//     was lost: then the server may have freed it already, which is what the epoch
//     and the trust window are for.
//   - A leader that stops beating loses the lock: the server ends its session after
//     the idle timeout, which is longer than the trust window. Transactions of an old
//     term that hold up the bump are ended if they are the group's own, and waited
//     for if they are not.
//   - A lock session holds no snapshot between two statements, so it does not hold back
//     vacuum.
//   - A request to hand over ([Resign]) reaches the term that it names and no other. The
//     leader sees it at the notification, at the latest with its next heartbeat, drains
//     like at a stop, and then lets others try. Being notified does not make a frozen
//     leader's session any less idle.
//   - One heartbeat that takes up to trust window less heartbeat (2 s by default), or some
//     that fail within that time, end nothing.
//
// # What is not guaranteed
//
//   - At no time is it certain that nobody else believes to lead; only that nobody
//     else's guarded write succeeds. A write to a server that cannot check the epoch
//     needs [Term.Check] right before it, a deadline, and a version of its own.
//   - The trust window does not see time that the monotonic clock does not count, such
//     as the suspension of a whole virtual machine. Epochs do.
//   - A failover to a replica that had not received the last bump may give one epoch
//     out twice. Synchronous replication prevents it.
//   - A leader of a build from before migration 4 does not hear a request to hand over.
//   - On a server so slow that two heartbeats in a row take longer than the trust window,
//     terms are lost, as they must be; each takes a new session, and a rest while nobody else leads.
//   - Behind a transaction pooler nothing holds. A new session proves that it has a
//     backend of its own and is refused with [ErrPooled] otherwise.
//
// # The life of a term
//
//	            proven            lock                  epoch
//	disconnected ────▶ standby ─────────▶ (bump waits) ───────▶ leader
//	   ▲  ▲               ▲                    │                 │ │
//	   │  └─ session ends ┴──── bump fails ────┘                 │ │ draining when asked to stop
//	   │                  └── Work returned: row marked, unlock ─┘ │
//	   └───── lost: ctx cancelled with ErrLost, Work joined ───────┘
package leader
