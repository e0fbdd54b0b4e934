// Package console writes what a long run of weftlab shows to people: lines, and below
// them one status line.
//
// # What is guaranteed
//
//   - On a terminal the status line is rewritten in place and cut to its width; lines
//     appear above it. Elsewhere it is a line like others, at most one per period.
//   - A Console is safe for concurrent use.
//
// # What is not guaranteed
//
//   - Errors of the output are not reported: nobody would read them.
package console
