// Package legacy makes a database as a Wordloom deployment has it before weft: the
// application's tables with SQLAlchemy's habits, and rows in every state a Python
// worker leaves behind.
//
// # What is guaranteed
//
//   - Defaults are the client's: nearly no column has one on the server, so a
//     producer names all of them, as [Produce] does.
//   - Every column that SQLAlchemy would index has its own index, chronicle tables
//     refer to books and blocks, and nothing of weft's is there.
//   - [Fill] is the same data for the same n, apart from row ids and the clock. An entity's
//     events are in order: done or failed ones, then one the dead worker had claimed,
//     then pending ones.
//   - Search events carry microseconds as event_version. Chronicle events carry 0,
//     all of them, as the application writes them.
//
// # What is not guaranteed
//
//   - The tables hold what the outbox needs; the rest of the application is missing.
package legacy
