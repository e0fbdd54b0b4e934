// Package fleet builds weft, or a variant of it, and runs processes of it.
//
// # What is guaranteed
//
//   - An [Instance] is a process of its own with a process group, a metrics port and a
//     log file of its own; the logs of one name follow each other in one file.
//   - No process outlives its parent, whatever ends that one: [Fleet.Stop] ends all, the
//     stopped (SIGSTOP) ones too, and on Linux the kernel kills what is left when the
//     parent dies. Only [Fleet.Keep] leaves them.
//   - The times that [Instance.Kill] and [Instance.Signal] return are from just before
//     the signal.
//   - A variant differs from the sources in the named files only, and a replacement that
//     does not apply exactly once is an error: no variant is silently the original.
//
// # What is not guaranteed
//
//   - A port is free when it is chosen; another process may take it before weft does.
//     weft then listens on another one, and [Instance.Ready] ends in an error.
//   - [SkewedClock] moves what package time calls the wall clock. A program that asks the
//     kernel itself sees the true one.
//   - Variants need the go command, the module's sources and minutes for the first build
//     of a skewed clock: everything depends on package time.
package fleet
