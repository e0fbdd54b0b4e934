// Package elastic writes documents to one Elasticsearch index through ordered
// _bulk requests and says of every document what became of it. It is the only
// package of weft that imports the Elasticsearch client.
//
// # What is guaranteed
//
//   - Every action carries an external version (external_gte): a document's version
//     never decreases, whatever is repeated, delayed or sent by two processes. Deletes
//     carry versions too.
//   - An action is reported done only when the answer names it: the number of items,
//     their order, their ids and their kinds must match the request, and the answer must
//     be complete, valid JSON. Anything else means that no fate is known.
//   - The authority of the context is checked immediately before each request.
//   - The client's retries are off. With several nodes a write that one of them does not
//     answer is sent to the next, after another look at the authority; versions make that
//     harmless. (The HTTP transport repeats a request only when not one byte of it was written.)
//   - While the name in the configuration is an alias, a missing alias or index is an
//     outage and never makes Elasticsearch create an index with guessed mappings.
//   - No document body is ever put into an outcome, an error or a log line.
//
// # What is not guaranteed
//
//   - With a plain index instead of an alias, Elasticsearch itself may create the index
//     anew if it is deleted while weft runs; the name is looked up every few seconds to
//     keep that window short. Use an alias, or set action.auto_create_index to false.
//   - Elasticsearch remembers the version of a deleted document for index.gc_deletes
//     only, and forgets it when a shard moves. Indexes made here remember for an hour;
//     the request deadline must stay far below, and callers must not send older states
//     of an entity after newer ones.
//   - A request that timed out may still take effect.
//
// # What happens on a failure
//
// The table is in classify.go: one function for items and one for whole requests.
package elastic
