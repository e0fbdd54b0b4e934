// Package testenv gives tests real servers with a place of their own in them.
//
// # What is guaranteed
//
//   - A schema, database or index made here is empty (or freshly migrated), belongs
//     to one test, and is gone when that test ends, failed or not.
//   - Tests may run in parallel, in one process and in several. Databases do not
//     even share advisory locks, which PostgreSQL keeps per database; schemas of
//     one database do.
//   - A package that needs servers fails at once, with one line, where none are
//     named. Nothing is skipped.
//   - [Program] builds weft and weftlab once for all test processes of a tree.
//   - [Main] and [MainNoServers] fail the package when a goroutine outlives its tests.
//
// # What is not guaranteed
//
//   - A test process that is killed leaves its databases, schemas and indices
//     behind. They are named weft_test_… and weft-test-…; in the servers of
//     `weftlab stack -- CMD` they go down with the servers.
//   - [Database] copies a template, weft_template_…, that is migrated once in a process
//     and dropped by [Main]; its tests share the migrations' one run.
//
// The servers are those of DATABASE_URL and ELASTIC_URL, which
//
//	go run ./cmd/weftlab stack -- go test ./...
//
// starts and exports (make test does the same). DATABASE_URL must be in URL form,
// for a role that may create databases.
package testenv
