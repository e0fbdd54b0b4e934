// Package verdict says how a run of the workshop ended: the directory of evidence that a
// drill leaves, the assertions about it, one page for a browser, and the distributions,
// counts and pictures that all programs report with.
//
//	evidence/SCENARIO/RUN/
//	  _recipe.json                  what was done, with which settings, to which events, and how it ended
//	  _timeline.jsonl               when: steps, faults, terms of leadership
//	  _metrics/metrics-before.txt   the metrics of each instance when it became ready
//	  _metrics/metrics-after.txt    its last metrics; both with the label instance
//	  _metrics/series.jsonl         what changed in between
//	  _logs/                        one file for each process, and what was on the terminal
//	  _exports/                     spans as they were received, and traces
//	  _probe_*.json                 what the database and Elasticsearch hold
//	  _result.json                  what was asserted, seen and needed
//	  report.html                   the page
//
// # What is guaranteed
//
//   - [Open] and what it returns need no server, no clock and nothing outside of the
//     directory: the same evidence is judged alike anywhere.
//   - A secret that is part of a URL or of a setting's value does not get into the recipe.
//   - The page is one file without scripts. It asks the network for nothing, and links only
//     to files beside it and to the Jaeger that was named. Evidence is text on the page,
//     whatever it contains.
//   - A percentile is one of the measured figures (the nearest rank).
//
// # What is not
//
//   - Logs are what the processes wrote. weft masks its secrets; another program may not.
//   - The last metrics of an instance that was killed may be half a second older than its end.
//   - The page does not show all of the evidence: long tables are cut, and say so.
package verdict
