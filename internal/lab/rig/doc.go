// Package rig holds what every program of the workshop stands on: servers and a corner of
// them ([Place]), weft processes ([Fleet], [Group]), who leads, waiting ([Await]), the
// terminal ([Screen]), and how a run begins and ends ([Dir.Run]).
//
// # What is guaranteed
//
//   - No process outlives its parent, whatever ends the parent: [Fleet.Stop] ends all, also
//     those that SIGSTOP has frozen, and on Linux the kernel kills the rest when the parent
//     dies. Only [Fleet.Keep] leaves them.
//   - [Instance.Signal] returns the time just before the signal.
//   - A variant of weft differs from the sources in the named files only. A replacement that
//     does not apply exactly once is an error, so that no variant is silently the original.
//   - [Await] returns the cause of the caller's context at once; after its bound it says what
//     was missing, with the last error seen in time.
//   - [Place.Close] removes what the place has made: servers, schema, indices.
//   - [CheckEnvironment] refuses a database that is neither test nor dev.
//
// # What is not guaranteed
//
//   - A port is free when it is chosen; another process may take it before weft does. weft
//     then listens on another one, and [Instance.Ready] ends in an error.
//   - [SkewedClock] moves what package time calls the wall clock. A program that asks the
//     kernel itself sees the true one.
//   - Variants need the go command and the module's sources. The first build of a skewed
//     clock takes minutes, because everything depends on package time.
//   - A condition that Await has seen may end a moment later.
package rig
