// Package weft runs an instance of weft inside a program: it carries events from outbox
// tables in Postgres to their destinations, as `weft run` does, with projections that are
// declared, built in, or written in Go.
//
//	w := weft.New(weft.Options{Settings: settings, Logger: log, Registerer: registry})
//	if err := w.Register("order_totals", newOrderTotals); err != nil {
//		return err
//	}
//	return w.Run(ctx)
//
// # What is guaranteed
//
//   - Of all instances of a group, in this process, in others and of the program weft, one
//     leads and works; the others stand by. Order per entity, and what survives a crash, are
//     as docs/guarantees.md says.
//   - Run blocks until ctx ends, or until a fault that only a person can fix: a wrong password,
//     a missing migration. Other faults are logged and retried. When ctx ends, Run settles what
//     is in flight, frees the leadership and returns nil.
//   - All goroutines of Run have ended when it returns, its connections are closed and its
//     metrics are unregistered. The same value can Run again.
//   - Nothing is global. Several instances in one process work, whether they are of one group
//     or of several.
//   - The package handles no signals, speaks to no service manager, listens on no port, does
//     not exit the process and leaves the limits of the Go runtime alone.
//
// # What is not guaranteed
//
//   - That an event is projected once only. A crash or a lost answer repeats it: a projection
//     makes repeats harmless, for instance by the event's version.
//   - That a panic of a projection stays in the instance. It ends the program, as any panic.
//   - That the environment has no influence. The libraries read theirs: pgx the PG* variables,
//     for what the database's URL leaves out, and net/http the proxy for Elasticsearch. Weft's
//     own variables are read only through [LoadSettings].
//   - Compatibility before version 1.0. The packages outbox and projections are what a
//     projection is written against.
package weft
