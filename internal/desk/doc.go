// Package desk serves the operator's page: who leads, how far each projection is, the dead
// letters, one event, the audit, the settings in effect. Each page has its JSON: the same address
// with Accept: application/json, or with /api before it. Actions are off unless Options.Actions.
//
// # What is guaranteed
//
//   - Without actions nothing changes by a request: only GET is answered, and the sessions with
//     Postgres are read-only by a setting of theirs.
//   - With actions, a POST of one of Options.Operators changes something, if it comes from no
//     other page, gives a reason, and what its preview has shown is still so. A change of the
//     log's level needs no preview. The name is one that the web configuration has verified, and
//     the audit keeps it.
//   - A request that names another host than localhost, 127.0.0.1, [::1] and those of
//     Options.Hosts gets 421, so that no foreign name leads a browser here.
//   - Off loopback the desk listens only with TLS and a login, and answers only while its web
//     configuration still asks for both.
//   - Texts from the database are shown as text: markup is escaped, characters that control a
//     terminal or the direction of writing are shown by their number.
//   - What a page costs does not grow with the backlog, nor with the number of finished events,
//     and all viewers of the overview share one reading of the database.
//   - Event streams are at most MaxStreams; a viewer that does not keep up is dropped. All have
//     ended when Run returns. Run returns soon after its context ends, as soon as Postgres answers
//     the statements under way or their sessions are cut.
//
// # What is not guaranteed
//
//   - Charts are of this instance since it started, and at most of the last hour. Everything
//     else is from the database, so a standby shows it, too.
//   - The election on the overview is up to a second old, the tables up to five seconds.
//   - The tables may be up to five minutes old where reading them takes long, and half a minute
//     after a reading that failed.
//   - The count of dead letters ends at 10,000.
//   - An action ends with its instance. What a replay has not sent by then stays in failed.
//
// Files: server.go listens and runs, guard.go refuses, login.go says who asks, routes.go answers,
// views.go reads the pages, read.go the overview, samples.go and chart.go keep and draw the last
// hour, stream.go sends what changes; act.go checks an action, act_letters.go and act_control.go
// plan and do it, jobs.go keeps its result; text.go writes values for people.
package desk
