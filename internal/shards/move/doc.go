// Package move takes a shard to another PostgreSQL server.
//
// Each server that holds a shard has the schemas and tables of all of them, so that an application
// writes to one name everywhere. A shard is at home in one database; in every other one its tables
// are empty and refuse writes, with SQLSTATE WF005 and the address to write to.
//
// # What is guaranteed
//
//   - At no time may two databases be written. The target's copy commits closed; then the source
//     commits that it is empty and where its shard is; then the target opens.
//   - Nobody leads the shard while it moves: one session in each database holds the lock of its group
//     and has the transaction in which its rows are copied or removed, so that one does not outlive
//     the other.
//   - The source lets go of what the target has: the rows of each table are counted and hashed on both
//     sides while nobody can write them.
//   - What was interrupted is finished by the same call again: a copy that the source has not let go of
//     is made anew, and one that it has let go of is opened.
//   - Nothing is removed at the target before both locks are held and the source has been looked at once
//     more: of two calls at the same time, the later one refuses what the other has done.
//   - The epochs of the target are higher than all that the source has given.
//   - Each wait for a lock is short and repeated, so that others get past it, and bounded in all. So is each
//     statement: a server that has frozen ends the move, and the other one lets its writers go on.
//   - A command that stands still, or whose host does, keeps its locks for half a minute: then each server
//     ends its sessions. However long a copy takes, the command gives signs of life beside it.
//
// # What is not guaranteed
//
//   - Writes of the shard wait while it is copied, and so do statements that PostgreSQL cannot tie to one
//     shard, such as an update that names no entity's id. Reads wait, too, when a transaction that has read
//     the shard waits to write it: it is let go, and the copy is made once more.
//   - An instance that was not told of the new home goes on leading an empty shard. It does nothing, is
//     not ready, and says why.
package move
