package demo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

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
