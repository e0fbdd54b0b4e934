// Package trail holds the test that follows what goes wrong as an operator does: from the
// graph that moved to the trace, from the trace to the lines in the log, from there to the
// rows in PostgreSQL. Each step knows only what the step before has found. It has no code
// that runs elsewhere.
//
// # What is guaranteed
//
//   - Everything is real: two instances, PostgreSQL, Elasticsearch behind a link that is
//     cut, a document that Elasticsearch refuses, Prometheus, and Jaeger.
//   - The test follows every series that has moved, not only the first. A step that finds
//     nothing, or something that contradicts the step before, is an error.
//   - The vocabulary of docs/observability.md is the one that metrics, spans and lines use.
//
// # What is not guaranteed
//
//   - The walk in docs/observability.md is of one run. The next one has other times and ids.
package trail
