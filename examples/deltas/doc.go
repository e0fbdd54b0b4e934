// Package deltas is an example of a projection whose events are deltas: it adds up the
// movements of accounts into a table of balances. Each movement counts once, and in its
// order, though weft may deliver it twice.
//
// Strict makes weft project every event of an account, one after the other: without it, weft
// would project the newest alone. The balance keeps the version of its last movement, and a
// movement that is not newer changes nothing. That makes repeats harmless, and needs the
// order: a movement that came late would be taken for a repeat.
//
// A movement that is refused, here one that overdraws the account, ends in failed. Later
// movements of the account wait, those of others go on, until somebody removes the cause and the
// program replays the movement, or discards it, by [outbox.DeadLetters].
//
// # What is guaranteed
//
//   - A balance is the sum of the account's movements up to its version, whatever instances
//     crash or take over.
//
// # What is not guaranteed
//
//   - Speed for a single account: one movement of it is in flight at a time, which takes some
//     milliseconds. Accounts do not wait for one another.
package deltas
