package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	requestTimeout = 30 * time.Second
	pageSize       = 5000
)

// elastic is a client of one Elasticsearch.
type elastic struct{ url string }

// hit is a document of an answer.
type hit struct {
	ID     string   `json:"_id"`
	Found  bool     `json:"found"`
	Source document `json:"_source"`
}

// do sends a request and decodes the answer into answer, unless that is nil. A missing index is
// no error: the answer stays as it is.
func (e elastic) do(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var text []byte
	var err error
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, e.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusNotFound || response.StatusCode == http.StatusServiceUnavailable:
		return nil // the index is not there yet, or has no shard yet
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, got)
	case answer == nil:
		return nil
	}
	return json.Unmarshal(got, answer)
}

// version returns the server's version.
func (e elastic) version(ctx context.Context) (string, error) {
	var answer struct {
		Nodes map[string]struct{ Version string }
	}
	if err := e.do(ctx, http.MethodGet, "/_nodes", nil, &answer); err != nil {
		return "", err
	}
	for _, node := range answer.Nodes {
		return node.Version, nil
	}
	return "", errors.New("no node")
}

// remove deletes the index of a name, or what an alias of that name or a name with a suffix of
// numbers stands for.
func (e elastic) remove(ctx context.Context, index string) error {
	var aliases map[string]any
	if err := e.do(ctx, http.MethodGet, "/"+index+"*/_alias", nil, &aliases); err != nil {
		return fmt.Errorf("indices of %s: %w", index, err)
	}
	for name := range aliases {
		if err := e.do(ctx, http.MethodDelete, "/"+name, nil, nil); err != nil {
			return fmt.Errorf("delete index: %w", err)
		}
	}
	return nil
}

// searchable returns how many documents a search finds now; it refreshes nothing.
func (e elastic) searchable(ctx context.Context, index string) (int, error) {
	var answer struct{ Count int }
	err := e.do(ctx, http.MethodGet, "/"+index+"/_count", map[string]any{}, &answer)
	return answer.Count, err
}

// written returns which of the ids have a document, whether a search finds it or not.
func (e elastic) written(ctx context.Context, index string, ids []int64) (map[int64]bool, error) {
	names := make([]string, len(ids))
	for n, id := range ids {
		names[n] = strconv.FormatInt(id, 10)
	}
	var answer struct{ Docs []hit }
	if err := e.do(ctx, http.MethodPost, "/"+index+"/_mget?_source=false", map[string]any{"ids": names}, &answer); err != nil {
		return nil, fmt.Errorf("get documents: %w", err)
	}
	found := map[int64]bool{}
	for n, doc := range answer.Docs {
		if doc.Found {
			found[ids[n]] = true
		}
	}
	return found, nil
}

// documents returns all documents by id.
func (e elastic) documents(ctx context.Context, index string) (map[string]document, error) {
	if err := e.do(ctx, http.MethodPost, "/"+index+"/_refresh", nil, nil); err != nil {
		return nil, fmt.Errorf("refresh: %w", err)
	}
	all := map[string]document{}
	path, body := "/"+index+"/_search?scroll=1m", map[string]any{"size": pageSize, "sort": []string{"_doc"}}
	for {
		var page struct {
			Scroll string `json:"_scroll_id"`
			Hits   struct{ Hits []hit }
		}
		if err := e.do(ctx, http.MethodPost, path, body, &page); err != nil {
			return nil, fmt.Errorf("read documents: %w", err)
		}
		if len(page.Hits.Hits) == 0 {
			return all, nil
		}
		for _, h := range page.Hits.Hits {
			all[h.ID] = h.Source
		}
		path, body = "/_search/scroll", map[string]any{"scroll": "1m", "scroll_id": page.Scroll}
	}
}
