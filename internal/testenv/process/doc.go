// Package process runs servers as children of this process, on free loopback ports, each in
// its own process group, with its output in a file; and programs to their end ([Tool]).
//
// # What is guaranteed
//
//   - On Linux a child with a death signal does not outlive this process: the kernel sends it the
//     signal when the thread that forked it ends, which lasts as long as the child.
//   - [Process.Stop] returns when the process is gone and has been waited for, and kills
//     its whole group if it does not go by itself.
//
// # What is not guaranteed
//
//   - A port from [FreePort] was free a moment ago; start again on another one when the
//     server says that it is taken.
//   - What a child has started itself, in a group of its own, is not found. Package stack
//     has a guardian for that.
package process
