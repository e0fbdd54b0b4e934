// Package docstest holds the tests that keep the documents usable, and no code.
//
// # What is guaranteed
//
//   - Every SQL block of every document runs as written on a migrated database, an empty
//     one and one in use. The queries of a runbook's diagnosis need no more than the right
//     to read.
//   - Every command line of weft and weftlab in the documents names a command and flags
//     that are there.
//   - The state machine of docs/drills.md is the one that the statements on the outbox
//     table make, observed in the database; that of docs/architecture.md is its outline.
//   - docs/from-wordloom.md leads from a database as the Python workers leave it to weft, and back.
//   - What docs/scaling.md says about shards works, with two of them.
//   - Every runbook has its four sections, three queries, and one page; the index leads to
//     all of them.
//
// # What is not guaranteed
//
//   - That an answer helps. Who follows a page in a drill finds that out.
package docstest
