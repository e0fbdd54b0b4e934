// Package report turns the evidence of a drill into one page for a browser: what was done,
// when, what the metrics did, what was asserted, where the traces are, what the logs say.
//
// # What is guaranteed
//
//   - The page is one file without scripts. It asks the network for nothing, and has links
//     only to files beside it and to the Jaeger that was named.
//   - What is in the evidence is text on the page, whatever it is made of.
//
// # What is not
//
//   - All of the evidence: long tables are cut, and say so.
package report
