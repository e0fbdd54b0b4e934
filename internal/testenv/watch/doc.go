// Package watch runs what an operator looks at weft with: a real Prometheus and a real
// Jaeger, on free loopback ports, and asks them over HTTP.
//
// # What is guaranteed
//
//   - The server that answers is the one that was started: Prometheus proves it by its
//     configuration file, Jaeger by the path of its API, which is this start's own.
//   - A server ends with its Close, and on Linux with this process, however that ends.
//   - Every question has a deadline. A server that ends by itself is reported by Close
//     with the end of its log.
//   - Prometheus is that of the PATH, as Debian's package prometheus puts it there. Jaeger
//     all-in-one is built from the sources that tools/jaeger pins, and kept in Go's build cache.
//
// # What is not guaranteed
//
//   - Both keep what they were sent for the length of a test: Jaeger in memory, Prometheus
//     in the directory that it was given, which is the caller's to remove.
//   - The first build of Jaeger takes minutes and needs the go command and this module's
//     sources. Its pages for browsers are not in it; its HTTP API is.
package watch
