// Package admin serves health and metrics over HTTP.
//
// # What is guaranteed
//
//   - /health/live (also /healthz) answers 200 while the process lives; it looks at
//     nothing else.
//   - /health/ready (also /readyz) answers 200 when every dependency that counts is
//     usable, on a leader and on a standby alike, and 503 otherwise. Its JSON body
//     says the role, the epoch and the state of every dependency and projection, and
//     names those that fail.
//   - It asks no server: readiness is what the parts of the process last reported,
//     with the time since when. A probe costs a lock and a few hundred bytes.
//   - A request from another host, or through a proxy, gets the names of dependencies and
//     projections and the reasons in readiness, not the words of servers and people.
//   - Run returns after the listeners are closed and their goroutines have ended.
//
// # What is not guaranteed
//
//   - A projection that paused itself (breaker) or waits out an outage is shown, but
//     alone does not make the process unready: bad documents must not stop the
//     roll-out of the build that fixes them.
//   - There is no authentication. It listens on all interfaces unless an address is
//     configured, and shows no secret and no event.
package admin
