// Package evidence is the directory that a drill leaves behind, how it is written while
// the drill runs, and how it is read when it is judged.
//
//	evidence/SCENARIO/RUN/
//	  _recipe.json                  what was done, with which settings, to which events, and how it ended
//	  _timeline.jsonl               when: steps, faults, terms of leadership
//	  _metrics/metrics-before.txt   what each instance said when it was ready
//	  _metrics/metrics-after.txt    what it said last; both with the label instance
//	  _metrics/series.jsonl         what changed in between
//	  _logs/                        one file for each process, and what was on the terminal
//	  _exports/                     spans as they were received, and traces
//	  _probe_*.json                 what the database and Elasticsearch hold
//	  _result.json                  what was asserted, seen and needed
//
// # What is guaranteed
//
//   - [Open] and what it returns need no server, no clock and nothing outside of the
//     directory: the same evidence is judged alike anywhere.
//   - A secret that is part of a URL or of a setting's value does not get into the recipe.
//
// # What is not
//
//   - Logs are what the processes wrote. weft masks its secrets; another program may not.
//   - What an instance said last may be half a second older than its end, when it was
//     killed.
package evidence
