// Package chaos breaks everything around a group of real weft processes, one fault
// after the other, and checks afterwards that nothing was lost, mixed up or taken back.
//
// # What is guaranteed
//
//   - The schedule is a function of the seed and the choice of faults. When a fault
//     begins and what it meets is not: processes and servers are real.
//   - The instances are the production binary with its default settings. They know
//     nothing of the run; each has ways of its own to both servers, which package proxy
//     can slow down, cut and corrupt.
//   - What is judged was not written by weft: the record that the database keeps (package
//     history), what passed on the way to Elasticsearch (package wire), and both stores
//     (package reconcile). A run passes only when every figure is 0.
//   - The domain is that of Wordloom, or the shop of examples/shop: the same faults and the
//     same judge, with a declared projection, events of triggers, children that move, and
//     products that move between tenants, which are routings. Documents are compared as a
//     whole with the answer of a query that weft does not know; one that is left on the shard
//     of an old tenant is an extra one.
//   - With another build, by --upgrade, every start of an instance takes the one that its
//     last process was not of, so that all successions occur: of each build by itself and by
//     the other. Migrations and commands are those of this build.
//   - With --shards entities are dealt out to shards, which the instances share, and an application
//     writes to the one name. Each shard is judged by its own record, by what was sent for its
//     entities, and by their documents; an event or a row in another shard than its entity's is a
//     finding. Two more faults are drawn: an instance stays away until the others lead all
//     shards, and another one comes and is handed its share.
//   - A run that did nothing does not pass: one without a fault, without bulk requests or leases
//     in its record, with bulk requests that the record could not read, with too few rebuilds, or
//     whose order is that of statements although the server is its own.
//   - A fault that could not be injected is counted as skipped, with the reason. One that was skipped
//     again and again, and never injected, fails the run, unless its options rule it out. An
//     instance that ends without being asked to, or does not end well, fails the run; so
//     does one that is not well again within a minute and a half of the heal.
//   - A fault begins in calm: all instances ready, one leading for a second and a half,
//     close behind the writer and settling; of shards each has such a leader, and no instance leads
//     two more than another. Only an open snapshot goes on beside others.
//   - Everything it starts ends with it. Servers are its own; none that the environment
//     names is touched.
//
// # What is not guaranteed
//
//   - Faults do not overlap, but for the snapshot: what two of them do together is seen
//     only where the effect of one outlasts the calm.
//   - A takeover is measured by the times of commits in the record and, for the fault
//     itself, by this machine's clock, which the server shares. Load on the machine is part
//     of it, that of the writer, the proxies and the triggers included.
//   - A restart of PostgreSQL ends an open snapshot; the schedule opens the next one.
//   - The ledger, the recording and the judging of both take memory with the length of the
//     run: 1.4 GB at the end of eight minutes at 300 events a second (measured).
//   - The disk is never full: Elasticsearch is made to say so.
//
// # Measures
//
//	takeover             fault → first event settled under a newer epoch
//	after last settle    last event of the old term → first of the next (SIGTERM, resign)
//	after the server was first connection that a restarted PostgreSQL took, or first write to
//	                     another index when the shard of weft's has started → first settled event
//
// With shards a takeover is that of one shard: a fault of an instance that leads two is timed twice.
//
// An event is delayed by a fault when it took more than a second from commit to done,
// and some of that between the fault and the calm after it.
package chaos
