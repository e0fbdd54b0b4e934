// Package archtest holds the tests that keep the tree in shape, and no code.
//
// # What is guaranteed
//
//   - The import arrows of docs/architecture.md: what each package may import of
//     ours, which third-party modules belong to one package, and what the
//     production binary never reaches.
//   - Every package says in doc.go what it is for; the public ones say what they
//     guarantee and what they do not.
//   - No production package has an init function, or a package-level variable that
//     something can change.
//   - No public name is lost: testdata/frozen.txt is a snapshot of log keys, metrics,
//     flags, settings, SQL names and all else that others rely on, and only grows.
//   - The parts of README.md that come from the code agree with it.
//
// # What is not guaranteed
//
//   - That a package is good because it passes. The rules stop drift, no more.
package archtest
