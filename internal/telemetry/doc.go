// Package telemetry makes the logger and the metrics registry that every part is
// handed.
//
// # What is guaranteed
//
//   - Log lines carry ts (RFC 3339 with nanoseconds, UTC), level, logger, msg and the
//     constant fields instance, group and obs_schema. No line is sampled away.
//   - Nothing is registered globally: two Telemetry values do not meet.
//   - The metrics of the contract get their labels env and component from
//     [Telemetry.Contract]; packages declare only their own.
//
// # What is not guaranteed
//
//   - Traces are not exported by this build; it says so once at start.
//   - A log line that cannot be written is lost, as is everything after the reader
//     of the log has gone.
package telemetry
