// Package failover loses the primary of a PostgreSQL pair under load, again and again,
// and measures and judges how weft gets over it.
//
// # What happens
//
// A primary with a streaming replica, two instances of weft and a writer, all with one
// URL that names both servers and asks for the one that takes writes. In each round the
// primary is stopped hard (SIGKILL of all its processes, or an immediate shutdown, by
// the seed) and the replica is promoted; then the lost server is made anew as a replica
// of the new primary.
//
// # What is checked
//
//   - On the record that the database keeps of itself, which goes over with the data: no
//     event of the new primary lost, none out of order or done twice, every verdict by the
//     lease on its event, one claimer at a time.
//   - With synchronous replication: nothing that the producer saw committed is lost.
//   - With asynchronous replication, where the replica is cut off a moment before the
//     primary is lost: what the producer saw committed and the new primary never had is
//     counted. It is a limit of the replication, not an error; a round without any has tested
//     nothing and fails. Every document that is newer than anything the new primary knows
//     must be named by weft's alarm once an event of its entity comes by, and a newer change
//     of the entity must put it right.
//   - Both stores are equal when all is drained.
//
// # What is not
//
//   - A primary that lives on beside the promoted replica: a test of this package shows
//     what holds then; the command always stops it.
//   - A failover manager, unless Patroni is asked for.
//
// # With Patroni
//
// Three members instead of the pair, and one fault of [faults.Members] in each round. The
// database is away as long as no probing client has a commit answered: one for each member, or
// one through HAProxy. weft has a second from the first commit until its first settled event.
// A fault that left no mark on the cluster makes the run fail. The checks are those above; with
// asynchronous replication the replicas are cut off before the primary is killed.
package failover
