// Package records reads what weft's tables say of a group: who leads, how far the projections
// are, the dead letters, one event, the audit. The commands print these records, and the desk
// shows them, so that both say the same in the same words.
//
// # What is guaranteed
//
//   - The JSON names and units of the records stay; fields may be added.
//   - Nothing is written.
//   - With [Scope.Most] set, the cost of a status does not grow with the backlog.
//
// # What is not guaranteed
//
//   - A record is no snapshot: its parts are read one after the other.
//   - Texts of a record are as the database has them, control characters included; [Plain]
//     makes one fit for a terminal.
package records
