package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// DB is what this package needs of a pool or connection.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

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
	Rows      int // of search_index
	Documents int // of the index
	Missing   int
	Extra     int
	Stale     int
	Examples  []Difference // the first of each kind, at most MaxExamples of each
}

// MaxExamples is how many differences of a kind a report names.
const MaxExamples = 10

// Equal reports whether both sides are the same.
func (r *Report) Equal() bool { return r.Missing == 0 && r.Extra == 0 && r.Stale == 0 }

func (r *Report) add(d Difference) {
	count := map[Kind]*int{Missing: &r.Missing, Extra: &r.Extra, Stale: &r.Stale}[d.Kind]
	*count++
	if *count <= MaxExamples {
		r.Examples = append(r.Examples, d)
	}
}

// pageSize is in documents; both sides of a page are in memory at once.
const pageSize = 500

// Visitor is told what a comparison meets; either function may be nil.
type Visitor struct {
	Document   func(id string, version int64)
	Difference func(Difference)
}

// Run refreshes index, an index or alias, and compares all of it with all rows of
// search_index, found by db's search_path. A difference is no error.
func Run(ctx context.Context, db DB, es *Client, index string) (*Report, error) {
	return Visit(ctx, db, es, index, Visitor{})
}

// Visit is Run that also tells v of every document and every difference.
func Visit(ctx context.Context, db DB, es *Client, index string, v Visitor) (*Report, error) {
	path := "/" + url.PathEscape(index)
	if err := es.Do(ctx, http.MethodPost, path+"/_refresh", nil, nil); err != nil {
		return nil, fmt.Errorf("refresh %s: %w", index, err)
	}
	report := &Report{}
	add := func(d Difference) {
		report.add(d)
		if v.Difference != nil {
			v.Difference(d)
		}
	}
	seen := map[string]bool{}
	err := pages(ctx, es, path, func(hits []hit) error {
		rows, err := readRows(ctx, db, hits)
		if err != nil {
			return fmt.Errorf("read search_index: %w", err)
		}
		for i := range hits {
			h := &hits[i]
			report.Documents++
			if v.Document != nil {
				v.Document(h.ID, h.Version)
			}
			row, ok := rows[h.ID]
			if !ok || seen[h.ID] {
				add(Difference{Kind: Extra, ID: h.ID})
				continue
			}
			seen[h.ID] = true
			if fields := compare(row, h); len(fields) > 0 {
				add(Difference{Kind: Stale, ID: h.ID, Fields: fields})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = ids(ctx, db, func(id string) {
		report.Rows++
		if !seen[id] {
			add(Difference{Kind: Missing, ID: id})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read search_index: %w", err)
	}
	return report, nil
}

// hit is one document as Elasticsearch has it.
type hit struct {
	ID      string         `json:"_id"`
	Version int64          `json:"_version"`
	Source  map[string]any `json:"_source"`
	Sort    []any          `json:"sort"`
}

const keepAlive = "1m"

// pages calls yield with the documents of one point in time, page by page.
func pages(ctx context.Context, es *Client, path string, yield func([]hit) error) (err error) {
	var pit struct {
		ID string `json:"id"`
	}
	if err := es.Do(ctx, http.MethodPost, path+"/_pit?keep_alive="+keepAlive, nil, &pit); err != nil {
		return fmt.Errorf("open point in time: %w", err)
	}
	defer func() {
		cerr := es.Do(context.WithoutCancel(ctx), http.MethodDelete, "/_pit", map[string]any{"id": pit.ID}, nil)
		if cerr != nil {
			err = errors.Join(err, fmt.Errorf("close point in time: %w", cerr))
		}
	}()
	query := map[string]any{
		"size":             pageSize,
		"version":          true,
		"track_total_hits": false,
		"sort":             []string{"_shard_doc"},
	}
	for {
		query["pit"] = map[string]any{"id": pit.ID, "keep_alive": keepAlive}
		var page struct {
			PIT    string `json:"pit_id"`
			Shards struct {
				Failed int `json:"failed"`
			} `json:"_shards"`
			TimedOut bool `json:"timed_out"`
			Hits     struct {
				Hits []hit `json:"hits"`
			} `json:"hits"`
		}
		if err := es.Do(ctx, http.MethodPost, "/_search", query, &page); err != nil {
			return fmt.Errorf("read documents: %w", err)
		}
		if page.Shards.Failed > 0 || page.TimedOut {
			return errors.New("read documents: a shard did not answer")
		}
		if page.PIT != "" {
			pit.ID = page.PIT
		}
		hits := page.Hits.Hits
		if len(hits) == 0 {
			return nil
		}
		if err := yield(hits); err != nil {
			return err
		}
		query["search_after"] = hits[len(hits)-1].Sort
	}
}

const selectRows = `
select entity_type, entity_id, library_id, text, snippet, rank_score, event_version, created_at, updated_at
from search_index s
join unnest($1::text[], $2::uuid[]) as k(entity_type, entity_id) using (entity_type, entity_id)`

// readRows returns the rows of the documents of a page by document id.
func readRows(ctx context.Context, db DB, hits []hit) (map[string]*row, error) {
	var types []string
	var entities [][16]byte
	for i := range hits {
		typ, id, ok := strings.Cut(hits[i].ID, ":")
		entity, err := uuid.Parse(id)
		if !ok || err != nil || entity.String() != id {
			continue // no row has such an id
		}
		types, entities = append(types, typ), append(entities, entity)
	}
	rows, err := db.Query(ctx, selectRows, types, entities)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, scanRow)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]*row, len(found))
	for i := range found {
		byID[found[i].id()] = &found[i]
	}
	return byID, nil
}

func ids(ctx context.Context, db DB, yield func(id string)) error {
	rows, err := db.Query(ctx, `select entity_type, entity_id from search_index`)
	if err != nil {
		return err
	}
	var typ string
	var entity [16]byte
	_, err = pgx.ForEachRow(rows, []any{&typ, &entity}, func() error {
		yield(documentID(typ, entity))
		return nil
	})
	return err
}

func documentID(typ string, entity [16]byte) string { return typ + ":" + uuid.UUID(entity).String() }

// compare returns what differs between a row and its document.
func compare(r *row, h *hit) []string {
	var out []string
	differ := func(field string, want, got any) {
		out = append(out, fmt.Sprintf("%s is %s, want %s", field, short(got), short(want)))
	}
	if h.Version != r.version {
		differ("_version", r.version, h.Version)
	}
	want := r.fields()
	for _, f := range want {
		if got := h.Source[f.name]; !f.equal(got) {
			differ(f.name, f.want, got)
		}
	}
	for name, got := range h.Source {
		if !slices.ContainsFunc(want, func(f field) bool { return f.name == name }) {
			differ(name, nil, got)
		}
	}
	slices.Sort(out)
	return out
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
