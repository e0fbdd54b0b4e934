// Package sentinel says whether a database is one on which drills and loads may run: of
// environment test or dev, and of no other.
//
// # What is guaranteed
//
//   - A database without a sentinel, and with a name that says neither, is refused.
//
// # What is not guaranteed
//
//   - That it stays what it was: ask again before each step that destroys something.
package sentinel
