// Package postgres opens connections and explains their faults.
//
// # What is guaranteed
//
//   - A connection that this package opens does not hang on a dead peer: the dialer
//     sets TCP keep-alive and TCP_USER_TIMEOUT, and the server side is asked for
//     the same and for statement, lock and idle-in-transaction timeouts.
//   - With several hosts in the URL and no target_session_attrs, only a server that
//     accepts writes is taken.
//   - [Diagnose] and every error of this package leave out the password and the URL.
//
// # What is not guaranteed
//
//   - [NewPool] does not connect; the first query does. Callers give every query a
//     deadline of their own.
//   - A pooler in transaction mode is recognised by the errors that it causes, not by name.
package postgres
