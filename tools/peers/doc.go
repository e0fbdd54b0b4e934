// Command peers measures weft beside what one would pick instead of it, on the same PostgreSQL
// and the same Elasticsearch: how long a backlog takes, how many documents are wrong afterwards,
// and how long a takeover takes. `weftlab peers` starts it; docs/peers.md has what it found.
// It is a module of its own, because only it needs what it imports.
//
// # What is guaranteed
//
//   - All peers get a database and an index of their own on the same servers, one after the
//     other; the programs run with the settings that are printed.
//   - Each document is compared with its row, field by field.
//   - A takeover is timed by rows that were committed after the fault: the struck instance
//     cannot have written their documents.
//   - A peer that cannot be run is named with the error, and has no figures.
//   - No process outlives this one.
//
// # What is not guaranteed
//
//   - That the settings are the best that a peer has.
//   - That another machine, other rows or other versions give the same figures.
package main
