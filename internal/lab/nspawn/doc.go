// Package nspawn boots machines: containers with a systemd of their own, over the files
// of this machine and in its network.
//
// # What is guaranteed
//
//   - PID 1 of a machine is Debian's systemd, with a journal, D-Bus and cgroups of its
//     own. It begins with the units of this machine's packages and with none of what an
//     administrator has enabled here.
//   - Nothing that a machine writes reaches this one: its files are an overlay in memory,
//     and last from one boot to the next, until [Machine.Close].
//   - What a machine leaves behind is nothing, however its owner ends. Its mounts are in a
//     namespace that a keeper holds, a process in a session of its own; when the owner
//     closes the machine or dies, the keeper kills all processes of the machine and
//     removes its cgroups and its directory, and the mounts go with it.
//   - [Check] says in one sentence what a machine that cannot do this lacks.
//
// # What is not guaranteed
//
//   - A network of its own: ports are shared, so that the servers of package stack are on
//     the loopback address there, too.
//   - A kernel of its own: it does not crash alone, and clocks are shared. [Machine.Cut]
//     stops everything at once, and to others it is as if the power were gone, except that
//     the kernel still acknowledges what they send until [Machine.Kill].
//   - What this machine's own packages do while a machine is up shows through, unless the
//     machine has changed the file before.
//   - A keeper that is killed leaves its machine.
package nspawn
