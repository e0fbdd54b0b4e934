// Package patroni runs a PostgreSQL that fails over by itself: Patroni with three members,
// three etcd and an HAProxy, on loopback ports. Each of three hosts has one Patroni, its
// PostgreSQL and one etcd.
//
// # What is guaranteed
//
//   - The programs are those of the PATH, PostgreSQL that of Debian's newest package. Start
//     names the packages that are not installed.
//   - Patroni's times are its defaults (ttl 30 s, loop_wait 10 s, retry_timeout 10 s), unless
//     [Options.Quick] is set.
//   - Start returns when one member takes writes and the two others stream from it; in
//     synchronous mode, when commits wait for one of them.
//   - Close stops all processes and removes their data. As root, they run as nobody.
//
// # What is not guaranteed
//
//   - A PostgreSQL whose Patroni was killed belongs to nobody until that Patroni is started
//     again. It outlives this process if that is killed at this time.
//   - The three hosts share one kernel and one clock. No watchdog fences a member.
package patroni
