// Package trail breaks something around a pair of instances and follows it as an
// operator does: from the graph that moved to the trace, from the trace to the lines in
// the log, from there to the rows in Postgres. Each step is taken with nothing but what
// the step before has shown.
//
// # What is guaranteed
//
//   - Everything is real: two instances, PostgreSQL, Elasticsearch behind a link that is
//     cut, a document that Elasticsearch refuses, Prometheus, and Jaeger.
//   - Every series that has moved is followed, not only the first. A step that finds
//     nothing, or something that says otherwise than the step before, is an error.
//   - What the page shows is what was asked and answered in that run, cut to the fields
//     that matter.
//
// # What is not guaranteed
//
//   - Times and ids are those of one run. The next one has others.
package trail
