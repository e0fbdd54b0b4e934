package proxy

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// line is one action of a bulk request.
type line struct {
	op      string
	id      string
	routing string
	version int64
	raw     []byte // with its document, if it has one
}

// place is the id with the routing, if there is one.
func (l *line) place() string {
	if l.routing == "" {
		return l.id
	}
	return l.routing + ":" + l.id
}

func isBulk(r *http.Request) bool {
	return (r.Method == http.MethodPost || r.Method == http.MethodPut) && (r.URL.Path == "/_bulk" || strings.HasSuffix(r.URL.Path, "/_bulk"))
}

// plain returns a request's body as it was before it was compressed.
func plain(header http.Header, body []byte) ([]byte, error) {
	switch encoding := header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return body, nil
	case "gzip":
		r, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	default:
		return nil, fmt.Errorf("encoding %q", encoding)
	}
}

func parseBulk(body []byte) ([]line, error) {
	var lines []line
	for rest := body; len(bytes.TrimSpace(rest)) > 0; {
		action, after, ok := bytes.Cut(rest, []byte("\n"))
		if !ok {
			return nil, errors.New("the last line has no end")
		}
		var kinds map[string]struct {
			ID      string `json:"_id"`
			Routing string `json:"routing"`
			Version int64  `json:"version"`
		}
		if err := json.Unmarshal(action, &kinds); err != nil || len(kinds) != 1 {
			return nil, fmt.Errorf("action %.100q: %w", action, errors.Join(err, errors.New("want one kind")))
		}
		var l line
		for op, meta := range kinds {
			l = line{op: op, id: meta.ID, routing: meta.Routing, version: meta.Version}
		}
		if l.op != history.Delete {
			if _, after, ok = bytes.Cut(after, []byte("\n")); !ok {
				return nil, errors.New("the last document has no end")
			}
		}
		l.raw = rest[:len(rest)-len(after)]
		lines = append(lines, l)
		rest = after
	}
	if len(lines) == 0 {
		return nil, errors.New("no action")
	}
	return lines, nil
}

// result is one item of an answer, by the kind of its action.
type result map[string]map[string]json.RawMessage

// fields decodes what the record needs.
func (r result) fields(a *history.Applied) error {
	if len(r) != 1 {
		return fmt.Errorf("item of %d kinds", len(r))
	}
	var errs []error
	for _, item := range r {
		for name, into := range map[string]any{
			"_index": &a.Index, "status": &a.Status, "result": &a.Result, "_seq_no": &a.SeqNo, "_primary_term": &a.PrimaryTerm, "_version": &a.ResultVersion,
		} {
			if raw, ok := item[name]; ok {
				errs = append(errs, json.Unmarshal(raw, into))
			}
		}
	}
	return errors.Join(errs...)
}

// encode returns the body of an answer to a request with query: whole itself, unless the
// items were changed or the client wants some columns only.
func encode(whole []byte, results []result, query url.Values, changed bool) ([]byte, error) {
	keep, all := columns(query)
	switch {
	case all && !changed:
		return whole, nil
	case all:
		failed := false
		for _, r := range results {
			for _, item := range r {
				failed = failed || item["error"] != nil
			}
		}
		return json.Marshal(map[string]any{"took": 1, "errors": failed, "items": results})
	}
	filtered := make([]result, len(results))
	for i, r := range results {
		for op, item := range r {
			filtered[i] = result{op: {}}
			for name, value := range item {
				if keep[name] {
					filtered[i][op][name] = value
				}
			}
		}
	}
	return json.Marshal(map[string]any{"items": filtered})
}

// columns returns the fields of items that the client wants to see; all is for a filter
// that names anything else.
func columns(query url.Values) (keep map[string]bool, all bool) {
	if !query.Has("filter_path") {
		return nil, true
	}
	keep = map[string]bool{}
	for path := range strings.SplitSeq(query.Get("filter_path"), ",") {
		name, ok := strings.CutPrefix(path, "items.*.")
		if !ok || strings.ContainsAny(name, ".*") {
			return nil, true
		}
		keep[name] = true
	}
	return keep, false
}
