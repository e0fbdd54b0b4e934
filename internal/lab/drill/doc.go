// Package drill is the training ground: failures that an operator of weft meets, each with
// one command to trigger it, one to judge what it left behind, one to export its traces
// and one to clean up.
//
// # What is guaranteed
//
//   - The instances are production builds of weft. Faults are proxies, signals, or what the
//     servers do.
//   - A run ends: each wait is bounded, and so is the run. Its fault is undone at its end,
//     also when it fails; [Clean] undoes it when the run was killed.
//   - [Verify] judges the evidence and nothing else. A run without its fault, or one that did
//     not come to its end, is not taken for a good one.
//   - On servers that were named by the caller a drill works in a schema, an index and a
//     leader group of its own, and only where the database says that it is of environment
//     test or dev. It asks before it begins and again before each fault and each removal.
//
// # What is not
//
//   - A measurement. The times in the evidence are those of the machine it ran on.
//   - Elasticsearch has no sentinel: which environment it is of is the caller's word. A drill
//     touches its own index there.
//   - That a drill runs on the servers that the caller has named: one that stops servers
//     starts its own.
package drill
