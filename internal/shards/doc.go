// Package shards names the shards that entities are dealt out to, and decides which of them an
// instance leads.
//
// A shard is a schema with tables of its own, and a group with a lock, an epoch and a leader of its
// own. All that package leader and package daemon guarantee of a group holds for each shard by
// itself: the election, the fence and the hand-over are theirs, and this package adds nothing to
// them. It says who should try, and who should hand over.
//
// # What is guaranteed
//
//   - One shard, the default, is the configuration as it is: no name changes.
//   - [Decide] is a function of what it is given. Instances that see the same decide alike: at most one
//     of them hands over at a time, and none of them unless another one leads at least two shards fewer.
//   - Once all see the same, no instance leads more than its share, shards / instances rounded up.
//   - A shard that nobody has led for a while is open to every instance, whatever its share.
//
// # What is not guaranteed
//
//   - Instances see one another up to a few seconds late, so that shares may differ for as long. What
//     an instance does on a wrong view costs a hand-over, and no event.
//   - Shards count alike, whatever their load.
package shards
