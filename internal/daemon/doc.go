// Package daemon wires the parts of `weft run` together and runs them for the life
// of the process: the election, and under each term the reclaim of the old term's
// leases and one pipeline per projection; beside it, on leader and standby alike,
// health, metrics, presence and the gauges over the tables. Embed runs the same inside another
// program.
//
// # What is guaranteed
//
//   - A fault that may pass never ends the process: with Postgres or Elasticsearch
//     away, at the start or later, it stays up, is not ready, logs why once per
//     change, and resumes by itself. A fault that only a person can fix (wrong
//     password, wrong database, wrong environment, missing migration, a transaction
//     pooler) ends it at the start with one error. Of several shards, those without such a
//     fault are led all the same: the instance is not ready, names the others with the
//     reason, and leads them within seconds once they are fixed.
//   - At a stop the instance first stops claiming, then settles its batches in flight,
//     frees the lock, withdraws its presence, and closes its connections.
//   - The service manager, if there is one, gets the state of health. The progress of the
//     election and of each projection feeds its watchdog (package systemd): an outage
//     counts as progress, a part that hangs does not.
//   - From the request to stop, health says stopping and is not ready; a leader that
//     hands over says so until its work is settled.
//   - A reload applies new passwords, tokens, keys and certificates for both servers
//     without a change of the term. A value that cannot be read, or that a server refuses,
//     leaves the old one in force.
//   - A standby whose pool gets no connection to the tables is not ready and says why, and stays
//     in the election.
//   - Every goroutine has ended when Run returns, about a second after the last settle
//     even if Postgres no longer answers.
//
// # What is not guaranteed
//
//   - Readiness is up to a quarter of a second old. Of a standby's way to the tables it is up to
//     half a minute old: no single slow answer makes it not ready.
//   - The gauges over the tables are up to five seconds old on a leader and fifteen on a
//     standby, and older where reading takes long: reading takes at most 1% of the time,
//     unless one reading takes seconds. The same limit holds for the count of a backlog of
//     more than ten thousand events; the metrics say how old the count is.
package daemon
