// Package reclaim takes back events that their holders can no longer settle.
//
// # What is guaranteed
//
//   - Before the first list of a term, every lease of another term is ended: its holder is
//     fenced and cannot settle it. The events that nothing has touched since are due at
//     once. Nothing waits for a lease to end.
//   - Rows in processing are another worker's, or an older build's. Those that an older
//     build has claimed under an earlier term are taken back at the same time; those of
//     another worker when their lease has ended, or, without one, after some time. The
//     reclaimer looks for both once per interval from then on.
//   - Each reclaim is one guarded statement under the leader's epoch, a page of rows at
//     most, that also writes the audit: who took how many rows, from which owner and epoch,
//     and why.
//   - A reclaim counts an attempt. An event that was reclaimed many times in a row
//     without being settled ends in failed: it is the likely cause of crashes.
//
// # What is not guaranteed
//
//   - A row whose lock somebody else holds is not counted; it is open all the same.
//   - A worker of another kind that still lives loses nothing while its leases last;
//     if it goes on after they ended, its own settle decides what happens to its write.
package reclaim
