// Package doctor examines what an instance stands on: its configuration, Postgres, the outbox
// tables and Elasticsearch.
//
// # What is guaranteed
//
//   - Nothing is changed.
//   - A finding names what it is about, says how bad it is, with numbers, and how to fix it:
//     a statement, a request or a command where there is one.
//   - A check that could not be made is a finding itself; the others go on.
//   - It asks with the role and the credentials of the configuration: what these may not see
//     is not found. Statistics are those of the server that answers.
//
// # What is not guaranteed
//
//   - That nothing is wrong where nothing is found.
//   - A figure of the time left is the past average carried on. Postgres does not tell how much
//     of its disk is free.
package doctor
