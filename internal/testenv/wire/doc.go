// Package wire puts faults between weft and its servers: a [Link] is a TCP way that
// slows down, falls silent or breaks; a [Tap] stands before Elasticsearch, keeps a record
// of every bulk item and corrupts answers.
//
// # What is guaranteed
//
//   - Without a fault every byte passes a link unchanged and in order, and a tap passes
//     what was asked and answered; only the columns of a filtered answer change their order.
//   - A link that is half open loses nothing: what was sent meanwhile arrives after
//     [Link.Heal], the end of a connection included, and no connection is ended by the
//     heal. A request whose sender is long gone still arrives.
//   - The [Recorder] has what Elasticsearch itself answered, whatever weft was told: each
//     item of each bulk request that reached the tap, once. The two times of an item
//     enclose the moment at which Elasticsearch decided about it.
//   - A request that has reached the tap is sent on even when its sender is gone.
//   - Each corrupted answer says so in the header [InjectedHeader] and is counted.
//   - Close joins everything; what is under way by then has come to its end and into the
//     record.
//
// # What is not guaranteed
//
//   - A broken connection ends as the kernel ends it: with a reset where bytes were under
//     way, else with an ordinary end. A server that is down shows as a connection that is
//     accepted and ended at once, not as a refused one.
//   - While a link is half open it takes what it is sent into memory; a real network would
//     make the sender wait after some megabytes.
//   - The two ends of a half-open connection talk to the link's kernel: their keep-alive
//     probes are answered.
//   - A record is made when the request has ended. Requests under way are not in it.
package wire
