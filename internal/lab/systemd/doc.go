// Package systemd drills the pair as an operator runs it: the Debian package, in two
// machines with a systemd of their own (package nspawn), against a PostgreSQL and an
// Elasticsearch, under load.
//
// # What is guaranteed
//
//   - What is drilled is what ships: the package of this tree, built twice under two
//     versions, installed and upgraded with apt-get, and the units that are in it,
//     unchanged. Only configuration is added, where an administrator adds it.
//   - A drill begins in calm: both units active, one leading, the other standing by, the
//     outbox close behind the producer. It passes when systemd and the journal show what
//     has to be, both units are well again, and the time limit that it has is kept.
//   - In the end the record that the database keeps of itself (package history) and both
//     stores (package reconcile) are judged: nothing lost, out of order or in the dead
//     letter, one claimer at a time, both stores equal.
//   - Everything it starts ends with it, on Ctrl-C and when it is killed, too.
//
// # What is not guaranteed
//
//   - Networks that differ: the machines share this one's. Package chaos cuts ways.
//   - A lost machine is as silent as a frozen one, see package nspawn.
//   - Times are those of this machine, with two systemds, both servers and the producer
//     beside. Commits are timed by the database, faults by this machine's clock, which is
//     the same.
package systemd
