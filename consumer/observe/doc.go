// Package observe tells what a pipeline does: in metrics, in spans and in log lines, under
// the names of the contract. It decides nothing.
//
// # What is guaranteed
//
//   - The counters count what the database has changed, once it has answered the settle. An
//     entity that was left open is counted as left, and its events as neither done nor
//     retried.
//   - A batch has one result, decided when its settle is answered; its span, its events'
//     spans, its log lines and its counters say the same.
//   - Every series exists at zero from the start. No identifier is a label.
//   - An event that was retried, failed or changed nothing has a span whatever the sampling;
//     one that a newer event has superseded goes by the sampling. Without a tracer no span is
//     made.
//
// # What is not guaranteed
//
//   - That a batch is counted whose settle was committed when the process ended, or whose
//     term was over before the answer came.
//   - That the log has a line for each event: a fault that repeats is thinned out by the
//     logger.
package observe
