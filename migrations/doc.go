// Package migrations holds weft's schema and brings a database to it: an empty one,
// one of an earlier weft, or one that belongs to a running Wordloom deployment.
//
// # What is guaranteed
//
//   - [Up] creates what is missing and adopts what is there. Rows, constraints, types
//     and indexes of the application are never changed, and no table is rewritten.
//     Every column that a producer does not name is nullable or has a default.
//   - Writers keep writing. A statement that needs an exclusive lock waits at most
//     500 ms for it (1.5 s behind an autovacuum worker, which yields only after a
//     second), then makes room and tries again; indexes on tables with rows are
//     built concurrently.
//   - One migrator per schema works at a time, under a session advisory lock that
//     is polled for, so that waiting holds no snapshot. Another one waits.
//   - Every step can be repeated. An index left invalid by an interrupted build is
//     dropped and built again. On a schema that is up to date [Up] brings the views and
//     the history tables to the columns that the outbox tables have now.
//   - A table whose columns do not fit is refused before anything is changed.
//   - [Down] removes what is weft's own and leaves the tables, columns and rows of
//     the contract. A history table that has finished events in it stays.
//   - The tables of a shard have the columns of the table that deals rows out to them. A migration
//     adds a column with addColumns, to all shards of that database at once and to their histories
//     first: the shards that are not migrated yet, or are at home elsewhere, have it too, and the build
//     before goes on beside it. [Down] on a shard leaves the columns, because other shards may use them.
//   - An instance of the build before works on this schema: a trigger moves the fence
//     for it, and its indexes stay until somebody drops them (see [FindCostly]).
//   - [CreateOutbox] gives a table of the application an outbox: a table of events, a version
//     row for each entity, and triggers that write one event for each entity that a statement
//     touches, in its transaction. Versions have the order of the commits. [DropOutbox] takes
//     it back. weft_outbox names these tables; [Up] keeps what weft needs of them.
//   - Everything happens in the schema that is current under the search_path of the
//     URL; several schemas of one database may migrate at the same time.
//
// # What is not guaranteed
//
//   - A concurrent build ends no sooner than the transactions that were open when it
//     began. It names them through [WithProgress] and gives up after [WithWait].
//   - The steps are not one transaction. A migration that stops half-way is finished
//     by the next [Up]; until then [Check] reports the older version.
//   - Views pin the columns that they show: while they are there, the application can
//     neither drop a column of an outbox table nor change its type (see views.go).
//   - Triggers do not fire in sessions that replicate, nor for rows that logical replication
//     applies, nor for a partition: [CreateOutbox] refuses the tables of which it can tell.
//   - A migrator behind a transaction pooler is refused only when the pooler has
//     moved its lock session; use a direct connection.
package migrations
