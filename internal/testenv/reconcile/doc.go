// Package reconcile compares a source, such as search_index, with the Elasticsearch
// documents made of it, document by document and field by field.
//
// # What is guaranteed
//
//   - It shares no code with weft: it reads both sides itself, and what a document must
//     be comes from a query of its own.
//   - Every document of the index is read, whatever its id, and every row. A document
//     is right when all its fields and its external version are those of the row; a
//     field that nobody asked for is a difference.
//
// # What is not
//
//   - Rows and documents are read one after the other: the answer is about a moment only
//     when the outbox is drained and nobody writes. All rows are in memory at once.
//   - It sees results, not the way there: a document that was wrong for a while and was
//     then corrected is right.
package reconcile
