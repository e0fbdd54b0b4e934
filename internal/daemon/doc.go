// Package daemon wires the parts of `weft run` together and runs them for the life
// of the process: the election, and under each term the reclaim of the old term's
// leases and one pipeline per projection; beside it, on leader and standby alike,
// health, metrics, presence and the gauges over the tables.
//
// # What is guaranteed
//
//   - Trouble that waiting can heal never ends the process: with Postgres or
//     Elasticsearch away, at the start or later, it stays up, is not ready, says why
//     once per change, and goes on by itself. Trouble that only a person can heal
//     (wrong password, wrong database, wrong environment, missing migration, a
//     transaction pooler) ends it at the start with one error.
//   - The order of an end is: stop claiming, settle what is in flight, free the lock,
//     withdraw the presence, close the servers' connections.
//   - The service manager, if there is one, hears what health knows, and its watchdog is
//     fed by the progress of the election and of each projection (package systemd): an
//     outage feeds it, a part that hangs does not.
//   - From the moment that a stop is asked for, health says stopping and is not ready;
//     a leader that hands over says so until its work is settled.
//   - A reload takes up new passwords, tokens, keys and certificates for both servers
//     without a change of the term. What cannot be read, and what a server refuses, changes
//     nothing.
//   - Everything that was started has ended when Run returns, about a second after the
//     last settle even if Postgres does not answer any more.
//
// # What is not guaranteed
//
//   - Readiness is up to a quarter of a second old.
//   - The gauges over the tables are up to five seconds old on a leader and fifteen on a
//     standby, and older where reading takes long: reading takes 1 % of the time at most,
//     unless one reading takes seconds. A backlog of more than ten thousand is counted by
//     that rule; the metrics say how old the count is.
package daemon
