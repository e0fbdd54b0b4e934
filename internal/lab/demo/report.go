package demo

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Result is what --json writes.
type Result struct {
	Produced        int     `json:"produced"`          // events
	Documents       int     `json:"documents"`         // in Elasticsearch at the end
	Missing         int     `json:"missing"`           // rows without a document
	Extra           int     `json:"extra"`             // documents without a row
	Stale           int     `json:"stale"`             // documents that differ from their row
	LostEvents      int     `json:"lost_events"`       // events that did not end done
	OutOfOrder      int     `json:"out_of_order"`      // events done before an earlier one of their entity
	TwoActive       int     `json:"two_active"`        // claims and settles of a term that was over
	Unleased        int     `json:"unleased"`          // verdicts without a lease
	Twice           int     `json:"done_twice"`        // events that were done more than once
	TakeoverMS      float64 `json:"takeover_ms"`       // the longest of the run, from SIGKILL to the first settled event
	EventsPerSecond int     `json:"events_per_second"` // while the load was projected
}

// Err returns nil when nothing was lost, and otherwise says what was.
func (r *Result) Err() error {
	return verdict.Clean("the run", []verdict.Count{
		{N: r.Missing, What: "missing documents"}, {N: r.Extra, What: "extra documents"}, {N: r.Stale, What: "stale documents"},
		{N: r.LostEvents, What: "lost events"}, {N: r.OutOfOrder, What: "events out of order"},
		{N: r.TwoActive, What: "acts of a second active instance"}, {N: r.Unleased, What: "verdicts without a lease"}, {N: r.Twice, What: "events done twice"},
	})
}

// outcome is the judged run.
type outcome struct {
	*history.Verdict
	result    Result
	exact     bool
	compared  *reconcile.Report
	takeovers []takeover
	took      time.Duration
}

func judge(log *history.Log, acknowledged []history.Enqueued, compared *reconcile.Report, takeovers []takeover, loadedUpTo int64) *outcome {
	v := &outcome{Verdict: history.Check(history.Run{Log: log, Acknowledged: acknowledged}), exact: log.Exact, compared: compared, takeovers: takeovers}
	longest := time.Duration(0)
	for _, t := range takeovers {
		longest = max(longest, t.Settle)
	}
	n, took := drain(log, loadedUpTo)
	v.result = Result{
		Produced: len(acknowledged), Documents: compared.Documents,
		Missing: compared.Missing, Extra: compared.Extra, Stale: compared.Stale,
		LostEvents: len(v.Lost) + len(v.DeadLetters), OutOfOrder: len(v.OutOfOrder), TwoActive: len(v.TwoActive),
		Unleased: len(v.Unleased), Twice: len(v.Twice),
		TakeoverMS: math.Round(float64(longest)/float64(time.Millisecond)*10) / 10,
	}
	if took > 0 {
		v.result.EventsPerSecond = int(float64(n) / took.Seconds())
	}
	return v
}

// drain returns how many events have at most the given version and are done, and the time from
// the first lease of one of them to the last settle.
func drain(log *history.Log, upTo int64) (events int, took time.Duration) {
	var last time.Time
	done := map[outbox.ID]bool{}
	for i := range log.Changes {
		c := &log.Changes[i]
		if c.Version <= upTo && c.To == history.Done && !done[c.Event] {
			done[c.Event] = true
			last = c.At
		}
	}
	first := last
	for _, l := range log.Leases {
		if l.At.Before(first) && slices.ContainsFunc(l.Events, func(id outbox.ID) bool { return done[id] }) {
			first = l.At
		}
	}
	return len(done), last.Sub(first)
}

func (v *outcome) write(w io.Writer) {
	r := &v.result
	for _, line := range v.Lines() {
		fmt.Fprintln(w, "  "+line)
	}
	for _, d := range v.compared.Examples {
		fmt.Fprintf(w, "  %v\n", d)
	}
	each := rig.Map(v.takeovers, func(t takeover) string { return rig.Millis(t.Settle) })
	order := ""
	if !v.exact {
		order = " (judged by statement times: the server has track_commit_timestamp off)"
	}
	fmt.Fprintln(w, "Summary")
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(tw, "  "+name+"\t"+format+"\n", args...) }
	row("events", "%s produced, %d lost, %d out of order", rig.Number(r.Produced), r.LostEvents, r.OutOfOrder)
	row("documents", "%s of %s rows, %d missing, %d extra, %d stale", rig.Number(r.Documents), rig.Number(v.compared.Rows), r.Missing, r.Extra, r.Stale)
	row("leaders", "%d killed, %d acts under an older epoch%s", len(v.takeovers), r.TwoActive, order)
	row("takeover", "%s after SIGKILL at worst, until the first settled event (%s)", rig.Millis(time.Duration(r.TakeoverMS*float64(time.Millisecond))), strings.Join(each, ", "))
	row("load", "%s events per second", rig.Number(r.EventsPerSecond))
	row("time", "%.0f s", v.took.Seconds())
	_ = tw.Flush()
}

// search is one of the queries that the demo shows.
type search struct {
	title string
	query map[string]any
}

func searches() []search {
	match := func(words string) map[string]any {
		return map[string]any{"match": map[string]any{"text": map[string]any{"query": words, "operator": "and"}}}
	}
	return []search{
		{`"deadline exceeded"`, match("deadline exceeded")},
		{`"goroutine leak"`, match("goroutine leak")},
		// The analyzer keeps the dots of net/http.Client.Do: one term, http.client.do.
		{"symbols that begin with http.Client.", map[string]any{"prefix": map[string]any{"text": "http.client."}}},
	}
}

const bestHits = 4

// body is the request: relevance, weighted by rank_score.
func (s search) body() map[string]any {
	return map[string]any{
		"size":    bestHits,
		"_source": []string{"entity_type", "text"},
		"query": map[string]any{"function_score": map[string]any{
			"query":              s.query,
			"field_value_factor": map[string]any{"field": "rank_score", "missing": 1},
			"boost_mode":         "multiply",
		}},
	}
}

type found struct {
	Total struct {
		Value int `json:"value"`
	} `json:"total"`
	Hits []struct {
		Score  float64 `json:"_score"`
		Source struct {
			Kind string `json:"entity_type"`
			Text string `json:"text"`
		} `json:"_source"`
	} `json:"hits"`
}

func (s search) run(ctx context.Context, es *reconcile.Client, index string) (found, error) {
	var answer struct {
		Hits found `json:"hits"`
	}
	err := es.Do(ctx, http.MethodPost, "/"+url.PathEscape(index)+"/_search", s.body(), &answer)
	return answer.Hits, rig.Wrap("search for "+s.title, err)
}

func (f found) write(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, h := range f.Hits {
		symbol, text, _ := strings.Cut(h.Source.Text, "\n\n")
		fmt.Fprintf(tw, "  %6.2f\t%s\t%s\t%s\n", h.Score, h.Source.Kind, symbol, synopsis(text))
	}
	_ = tw.Flush()
}

// synopsis returns the first sentence of a doc comment on one line, cut to a width
// that leaves room for the symbol.
func synopsis(text string) string {
	const width = 60
	text = strings.Join(strings.Fields(text), " ")
	if first, _, ok := strings.Cut(text, ". "); ok {
		text = first + "."
	}
	if r := []rune(text); len(r) > width {
		text = string(r[:width-1]) + "…"
	}
	return text
}
