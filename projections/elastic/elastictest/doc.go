// Package elastictest is a small Elasticsearch for tests that need answers which a
// real one gives only when it is in trouble.
//
// # What is guaranteed
//
//   - Over HTTP on the loopback address it answers _bulk and requests about one index
//     by name. It keeps documents with external versions and remembers the versions
//     of deleted ones for ever.
//   - Whole requests and single items fail as scripted: by status, cut or garbled
//     answers, stalls and resets. Every request is recorded.
//
// # What is not guaranteed
//
//   - Mappings, searches, refreshes, other version types and other requests.
//   - That a real server behaves so: the tests of the sink against one say that.
package elastictest
