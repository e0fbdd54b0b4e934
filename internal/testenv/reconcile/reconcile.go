package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Kind says how a document differs.
type Kind string

// The kinds.
const (
	Missing Kind = "missing" // a row without a document
	Extra   Kind = "extra"   // a document without a row, or a second one of a row
	Stale   Kind = "stale"   // a document that is not what the row says
)

// Difference is one document that is not as it should be.
type Difference struct {
	Kind   Kind
	ID     string   // of the document
	Fields []string // that differ, with both values, when Stale
}

// String returns the difference as one line.
func (d Difference) String() string {
	if len(d.Fields) == 0 {
		return string(d.Kind) + " " + d.ID
	}
	return string(d.Kind) + " " + d.ID + ": " + strings.Join(d.Fields, "; ")
}

// Report is the result of a comparison.
type Report struct {
	Rows      int // of the source
	Documents int // of the index
	Missing   int
	Extra     int
	Stale     int
	Examples  []Difference // the first of each kind, at most ten of each

	Versions    map[string]int64 `json:"-"` // of each document, by its id
	Differences []Difference     `json:"-"` // all
}

// maxExamples is how many differences of a kind a report names.
const maxExamples = 10

// Equal reports whether both sides are the same.
func (r *Report) Equal() bool { return r.Missing == 0 && r.Extra == 0 && r.Stale == 0 }

func (r *Report) add(d Difference) {
	r.Differences = append(r.Differences, d)
	count := map[Kind]*int{Missing: &r.Missing, Extra: &r.Extra, Stale: &r.Stale}[d.Kind]
	*count++
	if *count <= maxExamples {
		r.Examples = append(r.Examples, d)
	}
}

// pageSize is in documents.
const pageSize = 500

// SearchIndex is the source of the contract: the documents that search_index asks for.
const SearchIndex = `
select entity_type || ':' || entity_id, event_version, jsonb_build_object(
  'entity_type', entity_type, 'entity_id', entity_id, 'library_id', library_id, 'text', text, 'snippet', snippet, 'rank_score', rank_score,
  'event_version', event_version, 'created_at', created_at, 'updated_at', updated_at)
from search_index`

// Run refreshes index, an index or alias, and compares all of it with all rows of source: a query for
// the documents that there must be, with id, version and fields, as jsonb, which finds its tables by db's
// search_path. Where there is a routing, it and a colon precede the id. A difference is no error.
func Run(ctx context.Context, db outbox.DB, es *Client, index, source string) (*Report, error) {
	path := "/" + url.PathEscape(index)
	if err := es.Do(ctx, http.MethodPost, path+"/_refresh", nil, nil); err != nil {
		return nil, fmt.Errorf("refresh %s: %w", index, err)
	}
	report := &Report{Versions: map[string]int64{}}
	rows, err := readRows(ctx, db, source)
	if err != nil {
		return nil, fmt.Errorf("read the source of %s: %w", index, err)
	}
	report.Rows = len(rows)
	err = pages(ctx, es, path, func(hits []hit) error {
		for i := range hits {
			h := &hits[i]
			if h.Routing != "" {
				h.ID = h.Routing + ":" + h.ID
			}
			report.Documents++
			_, again := report.Versions[h.ID]
			report.Versions[h.ID] = h.Version
			row, ok := rows[h.ID]
			if !ok || again {
				report.add(Difference{Kind: Extra, ID: h.ID})
				continue
			}
			fields, err := compare(&row, h)
			if err != nil {
				return fmt.Errorf("row of %s: %w", h.ID, err)
			}
			if len(fields) > 0 {
				report.add(Difference{Kind: Stale, ID: h.ID, Fields: fields})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		if _, there := report.Versions[id]; !there {
			report.add(Difference{Kind: Missing, ID: id})
		}
	}
	return report, nil
}

// hit is one document as Elasticsearch has it.
type hit struct {
	ID      string         `json:"_id"`
	Routing string         `json:"_routing"`
	Version int64          `json:"_version"`
	Source  map[string]any `json:"_source"`
}

const keepAlive = "1m"

// pages calls yield with the documents that there were at one moment, page by page. It scrolls, which
// Elasticsearch and OpenSearch do alike.
func pages(ctx context.Context, es *Client, path string, yield func([]hit) error) (err error) {
	scroll := ""
	defer func() {
		if scroll == "" {
			return
		}
		cerr := es.Do(context.WithoutCancel(ctx), http.MethodDelete, "/_search/scroll", map[string]any{"scroll_id": []string{scroll}}, nil)
		if cerr != nil {
			err = errors.Join(err, fmt.Errorf("close scroll: %w", cerr))
		}
	}()
	at, query := path+"/_search?scroll="+keepAlive, map[string]any{"size": pageSize, "version": true, "sort": []string{"_doc"}}
	for {
		var page struct {
			Scroll   string               `json:"_scroll_id"`
			Shards   struct{ Failed int } `json:"_shards"`
			TimedOut bool                 `json:"timed_out"`
			Hits     struct{ Hits []hit }
		}
		if err := es.Do(ctx, http.MethodPost, at, query, &page); err != nil {
			return fmt.Errorf("read documents: %w", err)
		}
		scroll = page.Scroll
		if page.Shards.Failed > 0 || page.TimedOut {
			return errors.New("read documents: a shard did not answer")
		}
		if len(page.Hits.Hits) == 0 {
			return nil
		}
		if err := yield(page.Hits.Hits); err != nil {
			return err
		}
		at, query = "/_search/scroll", map[string]any{"scroll": keepAlive, "scroll_id": scroll}
	}
}

// row is what a document must be.
type row struct {
	version int64
	fields  []byte // JSON
}

func readRows(ctx context.Context, db outbox.DB, source string) (map[string]row, error) {
	answer, _ := db.Query(ctx, source) // its error is that of the rows
	out := map[string]row{}
	var id string
	var r row
	_, err := pgx.ForEachRow(answer, []any{&id, &r.version, &r.fields}, func() error {
		out[id] = row{r.version, slices.Clone(r.fields)}
		return nil
	})
	return out, err
}

// compare returns what differs between a row and its document.
func compare(r *row, h *hit) ([]string, error) {
	var want map[string]any
	fields := json.NewDecoder(bytes.NewReader(r.fields))
	fields.UseNumber()
	if err := fields.Decode(&want); err != nil {
		return nil, err
	}
	var out []string
	if h.Version != r.version {
		out = append(out, fmt.Sprintf("_version is %d, want %d", h.Version, r.version))
	}
	for name := range union(want, h.Source) {
		if got := h.Source[name]; !same(want[name], got) {
			out = append(out, fmt.Sprintf("%s is %s, want %s", name, short(got), short(want[name])))
		}
	}
	slices.Sort(out)
	return out, nil
}

func union(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// same reports whether two values say the same. A field that is null may be left out, numbers
// are exact, and the zone in which a time is written is no difference.
func same(want, got any) bool {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		for name := range union(want, got) {
			ok = ok && same(want[name], got[name])
		}
		return ok
	case []any:
		got, ok := got.([]any)
		return ok && slices.EqualFunc(want, got, same)
	case json.Number:
		got, ok := got.(json.Number)
		a, aok := new(big.Rat).SetString(want.String())
		b, bok := new(big.Rat).SetString(got.String())
		return ok && aok && bok && a.Cmp(b) == 0
	case string:
		got, ok := got.(string)
		a, aerr := time.Parse(time.RFC3339Nano, want)
		b, berr := time.Parse(time.RFC3339Nano, got)
		return ok && (want == got || aerr == nil && berr == nil && a.Equal(b))
	default:
		return want == got // true, false, null
	}
}

// short keeps a line readable.
func short(v any) string {
	if v == nil {
		return "absent"
	}
	text := fmt.Sprintf("%v", v)
	if s, ok := v.(string); ok {
		text = fmt.Sprintf("%q", s)
	}
	const most = 60
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
