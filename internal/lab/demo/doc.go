// Package demo shows weft at work on real input: two instances carry the
// documentation of Go's standard library from PostgreSQL into Elasticsearch while
// writers change it and the leader is killed.
//
// # What is guaranteed
//
//   - The figures are measured on what happened, not on what weft says of itself: the
//     record of package history for order, loss and leadership, package reconcile for
//     the documents. A run succeeds only if all loss figures are 0.
//   - Takeover is the time from just before the SIGKILL until the commit of the first
//     event that another instance finished, both read from this machine's clock. The
//     leader is killed while it holds claimed events and is close behind the edits.
//   - Every process it starts ends with it: on success, error, panic and Ctrl-C by its
//     process group, and when the demo itself is killed by the kernel. Only --keep
//     leaves them.
//   - It ends within 90 s after the downloads and the build, in an error that names the
//     step when that is not enough.
//   - On servers that DATABASE_URL and ELASTIC_URL name it works in a schema and an index
//     of its own and removes both.
//
// # What is not guaranteed
//
//   - Its speed is that of a small load on a shared machine with a recording trigger on
//     the outbox table; the benchmarks are elsewhere.
//   - The bound of 90 s takes for granted that the servers start within 40 s; a slower
//     start comes on top.
//   - With servers on another machine takeover_ms contains the difference of the clocks.
package demo
