// Package faults is the one catalogue of what the workshop breaks: processes, sessions,
// networks, servers, answers, clocks. A fault is an entry in its family's file, and then
// every program can use it.
//
// # What is guaranteed
//
//   - weft is not told of a fault: it meets the signals, sessions, sockets and answers that it
//     would meet in operation. The instances are the production binary.
//   - [Injection.Heal] takes away what [Injection.Inject] has begun, also when that has
//     failed.
//   - What a fault needs and does not find is a [Skip] or a [Never] with the reason, not
//     another error.
//
// # What is not guaranteed
//
//   - When a fault begins and what it meets: processes and servers are real.
//   - That two faults at once can be told apart. Each heals the proxies of its member as a
//     whole.
//   - The disk is never full: Elasticsearch's answers say so.
package faults
