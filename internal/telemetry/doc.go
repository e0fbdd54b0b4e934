// Package telemetry makes the logger and the metrics registry that every part is
// handed.
//
// # What is guaranteed
//
//   - Log lines carry ts (RFC 3339 with nanoseconds, UTC), level, logger, msg and the
//     constant fields env, instance, group and obs_schema.
//
//   - With [Options.Journal] a line's level is its priority in systemd's journal; the line
//     itself is the same.
//
//   - What an outage repeats is thinned out, by what it is about: ten lines as they come,
//     then the newest one per minute, with how many were left out in left_out. The last
//     word gets out, at [zap.Logger.Sync] at the latest. So are the lines about events and
//     batches below error, by what became of them and why, and about entities that could not
//     be settled, from the hundredth of a minute on, unless the level is debug: lines and
//     left_out add up to what happened. No other line is ever left out: no event that failed,
//     no reclaim, no change of leadership.
//
//   - Nobody waits for the reader of the log, beyond a twentieth of a second once. Lines wait for it, up
//     to a mebibyte; what comes then is dropped and counted, and a line says how many they were. Until
//     a reader is that late, a line is written when the call returns.
//
//   - Nothing is registered globally: two Telemetry values do not meet.
//
//   - The metrics of the contract get their labels env and component from
//     [Telemetry.Contract]; packages declare only their own.
//
//   - Spans are made of the batches that a [Policy] keeps, carry wordloom.obs_schema, and are
//     exported by OTLP beside the work: a collector that is down, slow or faulty costs a
//     bounded queue and a line per minute. A nil [Tracing] is one that is off.
//
// # What is not guaranteed
//
//   - Spans that the collector does not take within the timeout of an export, or for
//     which the queue has no room, are lost. weft_trace_spans_total counts them.
//   - A log line that cannot be written is lost, as is everything after the reader
//     of the log has gone. `weft run` goes on without one. weft_log_dropped_total counts them.
package telemetry
