// Package systemd tells the service manager how the process is, in the words of
// sd_notify(3). Without a manager, which is to say without $NOTIFY_SOCKET, it says
// nothing and only keeps the log of what stalls.
//
// # What is guaranteed
//
//   - READY is sent once, when the caller can do its work. Until then the manager's
//     timeout for the start is extended, by the rule that feeds the watchdog: a start
//     that waits for a server does not time out, one that hangs does.
//   - The watchdog is fed while every [Part] with something to do made progress within
//     its limit, and not for the sake of a timer that still ticks. A part makes progress
//     by an answer, or by learning that a server it needs is away: an outage, however
//     long, keeps no food back. A call that does not end at its deadline, a wait that
//     nobody ends and a loop that turns without asking anything do.
//   - A part that stalls is logged once with its name, and again when it goes on. The
//     manager hears of it in STATUS, then hears nothing, then acts.
//   - STATUS is sent when its text changes, as one line of at most 240 characters.
//   - STOPPING comes with the time that the stop may take, so that a grace that is
//     configured longer than the unit's TimeoutStopSec is granted all the same.
//
// # What is not guaranteed
//
//   - That progress is useful. A part that is answered, and does the wrong thing with
//     it, is fed.
//   - A message that cannot be sent is logged and dropped; STATUS and READY are tried
//     again with the next call.
package systemd
