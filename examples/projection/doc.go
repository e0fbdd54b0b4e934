// Package projection is an example of a projection in Go: it keeps contacts up to date at an
// HTTP service, to which it puts each contact that has changed.
//
//	w := weft.New(weft.Options{Settings: settings})
//	err := w.Register(projection.Name, projection.New("https://mail.example"))
//
// The table is in schema.sql; `weft outbox create --table crm.contact --apply` gives it an
// outbox.
//
// # What is guaranteed
//
//   - The service gets the newest state of each contact that has changed, at least once, and
//     never an older state after a newer one from the same term of leadership.
//   - A service that does not answer is an outage: events wait, and none ends in failed. A
//     contact that the service refuses ends in failed, and no other with it.
//
// # What is not guaranteed
//
//   - That an old leader's request is not late. The service compares the version that each
//     request carries, and answers 409 to an older one.
package projection
