// Package stacktest lets a test binary be the guardian of the servers that its tests
// start, as weftlab is of its own: they go down with the test process, whatever ends it.
//
// # What is guaranteed
//
//   - A process that [Guardian] has named guards, and runs no test.
//
// # What is not guaranteed
//
//   - [Guard] in another place than the first line of a TestMain comes too late.
package stacktest
