// Package proxy injects faults between weft and its servers. A [Link] is a TCP proxy that
// delays, holds or cuts connections. A [Tap] is an HTTP proxy before Elasticsearch that
// records every bulk item and corrupts answers.
//
// # What is guaranteed
//
//   - Without a fault every byte passes a link unchanged and in order, and a tap passes
//     what was asked and answered; only the columns of a filtered answer change their order.
//   - A half-open link loses nothing: bytes sent during the fault arrive after
//     [Link.Heal], as does the end of a connection, and healing ends no connection. A
//     request arrives even when its sender is long gone.
//   - The [Recorder] holds the answers of Elasticsearch itself, before any corruption: each
//     item of each bulk request that reached the tap, once. Elasticsearch decided about an
//     item between its two times.
//   - A request that has reached the tap is sent on even when its sender is gone.
//   - Each corrupted answer says so in the header X-Weftlab-Injected and is counted.
//   - Close waits for requests in flight and records them.
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
//   - A request is recorded when it ends: the record has none that is in flight.
package proxy
