// Package reclaim takes back leases that nobody can settle any more.
//
// # What is guaranteed
//
//   - Right after a takeover every row claimed under an earlier epoch is ready again:
//     its holder is fenced and cannot settle it. Nothing waits for a lease to end.
//   - From then on, once per interval, rows whose lease has expired are taken back,
//     whoever claimed them, and rows that were claimed without a lease or an epoch and
//     are processing for too long.
//   - Each reclaim is one guarded statement under the leader's epoch that also writes
//     the audit: who took how many rows, from which owner and epoch, and why.
//   - A reclaim counts an attempt. An event that was reclaimed many times in a row
//     without being settled ends in failed: it is what ends the process.
//
// # What is not guaranteed
//
//   - A row whose lock somebody else holds is left for the next interval.
//   - A worker of another kind that still lives loses nothing while its leases last;
//     if it goes on after they ended, its own settle decides what happens to its write.
package reclaim
