// Package spanlog is the little that all parts with spans share: it puts the ids of a
// span on a log line, under the names that OpenTelemetry gives them in other formats
// than its own, and on a duration in the metrics as an exemplar, and makes attributes of
// values whose type is known at run time only.
//
// Guaranteed: without a span a line has neither id, a duration no exemplar, and nothing is
// allocated.
package spanlog
