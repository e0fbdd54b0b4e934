// Package projections holds what weft projects into, behind one interface, and the registry:
// the projection of search_index, which is a declaration as those of the configuration are,
// that of the chronicle, and what an embedding program registers.
//
// # What is guaranteed
//
//   - A projection is full state: it reads the entity's source row when it runs and
//     writes that state, so a repeated, late or skipped event does no harm and of
//     several events of one entity only the newest needs to be projected.
//   - The source row decides, the op is a hint. A source row that is newer than a
//     delete is projected; an upsert whose source row is gone removes the projection.
//   - A document that is newer than anything the source knows of its entity, as after a
//     restore to an older state, is named once an event of that entity comes by.
//   - Project returns exactly one outcome per event, in order, or an error that means
//     that no event's fate is known.
//
// # What is not guaranteed
//
//   - Writes are at least once. Each destination makes repeats harmless in its own
//     way: Elasticsearch by external versions, Postgres by the epoch and the key.
//   - The search for such documents costs the size of the outbox, so its duration and its
//     rate are bounded, and a metric counts the conflicts that were not examined. For an
//     entity without a row, a version that only a pruned event had raises no alarm when
//     the document is gone; for a row whose version the application does not keep, it does.
package projections
