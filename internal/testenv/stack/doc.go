// Package stack runs a real PostgreSQL and a real Elasticsearch on loopback ports for
// the tests, the demo and the drills.
//
// # What is guaranteed
//
//   - The servers and their data go when their owner goes, however it goes: they
//     belong to a guardian, a process in a session of its own that holds the read end
//     of a pipe from the owner. End of file on it means stop everything, remove the
//     data, exit. Should the guardian itself be killed, the kernel kills its servers
//     (parent-death signal) and the next start removes the data they left.
//   - What runs is what is pinned here: the archives are fetched with mvn, by the
//     user's own settings, and their SHA-256 must match. A server is unpacked under
//     another name and renamed when it is whole, so a cut fetch starts again.
//   - The ports are free ones, and each server has proved that it is ours, by its data
//     directory or cluster name, before it is handed out.
//   - A replica follows its primary when it is handed out, and it is as much the
//     guardian's as the primary is, whichever of them takes writes.
//   - As root, the servers run as nobody.
//
// # What is not guaranteed
//
//   - Linux on amd64 and arm64 only. Elsewhere, name running servers in DATABASE_URL
//     and ELASTIC_URL; then nothing is started.
//   - The Elasticsearch is the build that the client libraries test with: no GET /, no
//     reindex, no ingest, no scripts. Security is off, and trust is all that PostgreSQL asks,
//     unless [Options.Secured] is set; Elasticsearch hands out no API keys even then.
//   - A server that ends by itself is reported, not started again.
//   - Nobody decides about a failover: a replica is promoted when it is told to, also
//     beside a primary that lives on, and what a primary kept of its log for a replica is
//     bounded.
package stack
