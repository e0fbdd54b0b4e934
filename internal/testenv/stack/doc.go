// Package stack runs a real PostgreSQL and a real Elasticsearch on loopback ports for
// the tests, the demo and the drills.
//
// # What is guaranteed
//
//   - The servers and their data end with their owner, however that ends. They belong
//     to a guardian, a process in its own session that holds the read end of a pipe
//     from the owner. At end of file it stops the servers, removes their data and exits.
//     If the guardian is killed, the kernel kills its servers (parent-death signal), and
//     the next start removes their data.
//   - The versions are pinned: mvn fetches the archives with the user's settings, and
//     their SHA-256 must match. A server is unpacked under another name and renamed when
//     it is complete, so an interrupted fetch starts again.
//   - The ports are free. Start returns when each server has proved, by its data
//     directory or cluster name, that it is the one started here.
//   - A replica streams from its primary when Start returns. The guardian owns both,
//     whichever of them takes writes.
//   - Several nodes of Elasticsearch are one cluster when Start returns, and each can be
//     stopped, killed and started apart. With [Options.Cables] one can be cut off from the
//     others: a network namespace for each, which the kernel removes with the servers.
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
//   - There is no automatic failover: [Promote] promotes a replica, also beside a
//     primary that still runs. A primary keeps at most 1 GB of its log for a replica.
package stack
