// Package verify compares the source of a projection with its destination, and has what
// differs written anew.
//
// # What is guaranteed
//
//   - Each entity that has a row, and each document, is looked at once; entities that change
//     meanwhile belong to the pipeline.
//   - A document of an entity that belongs to another shard is that shard's to compare.
//   - What differs at first sight is a suspect and no more: it counts only once the pipeline
//     has nothing open of the entity, and the row stayed the same while the newest state of
//     the document was read. So a running pair causes no false report.
//   - A run goes on where an earlier one ended, among rows and among documents, and counts nothing twice.
//   - A repair writes events and leaves the rest to the pipeline. It counts once the document
//     has been looked at again, and is right.
//   - No snapshot of the database is older than one statement, and memory is bounded by a few
//     pages, whatever the size of either side.
//
// # What is not guaranteed
//
//   - Without a leader, open events never settle: their entities are unsettled at the end.
//   - An entity with a dead letter, or whose row makes no document, is counted as failed, whatever
//     its document.
//   - A document that is written after the look at documents has begun may not be looked at.
//   - Where a pipeline of Elasticsearch alters documents, only versions are compared.
package verify
