// Package desk serves the operator's page: who leads, how far each projection is, the dead
// letters, one event, the audit, the settings in effect. It only reads. Each page has its JSON:
// the same address with Accept: application/json, or with /api before it.
//
// # What is guaranteed
//
//   - Nothing changes by a request: only GET is answered, and the sessions with Postgres are
//     read-only by a setting of theirs.
//   - A request that names another host than localhost, 127.0.0.1, [::1] and those of
//     Options.Hosts gets 421, so that no foreign name leads a browser here.
//   - Off loopback the desk listens only with TLS and a login, and answers only while its web
//     configuration still asks for both.
//   - Texts from the database are shown as text: markup is escaped, characters that control a
//     terminal or the direction of writing are shown by their number.
//   - What a page costs does not grow with the backlog, nor with the number of finished events,
//     and all viewers of the overview share one reading of the database.
//   - Event streams are at most MaxStreams; a viewer that does not keep up is dropped. All have
//     ended when Run returns, and Run returns soon after its context ends.
//
// # What is not guaranteed
//
//   - Charts are of this instance since it started, and at most of the last hour. Everything
//     else is from the database, so a standby shows it, too.
//   - The election on the overview is up to a second old, the tables up to five seconds.
//   - The count of dead letters ends at 10,000.
//
// Files: server.go listens and runs, guard.go refuses, routes.go answers, read.go reads the
// overview, samples.go and chart.go keep and draw the last hour, stream.go sends what changes.
package desk
