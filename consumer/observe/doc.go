// Package observe records what a pipeline does in metrics, spans and log lines, under the
// names of the contract. It decides nothing.
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
//     a superseded event has one when it is sampled. Without a tracer there are no spans.
//
// # What is not guaranteed
//
//   - That a batch is counted when its process or term ended after the settle was committed
//     and before the answer came.
//   - That the log has a line for each event: at info those that went well have none, and of
//     a storm the logger writes a sample that says how many it stands for.
package observe
