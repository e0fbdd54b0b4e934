// Package bench measures weft against the least that the same work can cost, and one
// build of weft against another.
//
// # What is guaranteed
//
//   - The two sides of a ratio are measured in turns, on the same servers, with the
//     same documents: what the bare loader sends are the bodies that weft's own
//     projection makes, into an index that weft's own code creates.
//   - A round begins with fresh tables (the binary's own migrations, vacuumed and
//     analysed), a fresh index made by the binary itself, a checkpoint and an Elasticsearch at rest. Nothing of
//     that is in the measured time, nor is the first, uncounted pass that warms up.
//   - A rate is events / (first lease → last acknowledgement), from processing_started_at
//     and processed_at of the table or the history, and from Postgres's own log where
//     finished events are deleted; that of the loader is events / (first request → last
//     answer). A side counts only if every event is done, none is failed
//     and the index holds as many documents as the source has rows.
//   - What weft does is measured from outside: CPU from the kernel, by server; WAL from
//     its position; leases, lists and round trips from Postgres's own log, which writes down
//     every statement of weft in all rounds alike; allocations from weft's metrics.
//     (pg_stat_statements knows neither percentiles nor which statements were one round
//     trip.)
//
// # What is not guaranteed
//
//   - Figures of different runs are comparable only on the same machine at rest; the
//     ratios of one run are what counts.
//   - The last acknowledgement is the start of the last settle: its few milliseconds are
//     not counted.
//   - Latencies of a drain are lease → acknowledgement; those of trickle are commit →
//     commit, from Postgres's commit timestamps.
//   - The time of a lease or a list is what Postgres logs for all statements of its
//     transaction: parse, plan and run, neither the network nor the commit.
//   - Round trips count transactions of Postgres and bulk requests. A transaction of
//     several round trips would count once; weft has none on the way of an event.
//   - A vacuum that the drain makes necessary is measured by one that is run after it;
//     what autovacuum has done of it by then is in the CPU of the drain.
//   - CPU is counted in steps of 10 ms and covers the servers' own housekeeping.
package bench
