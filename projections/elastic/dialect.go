package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

const (
	bulkKey  = "items" // that the filtered answer to a bulk request holds
	foundKey = "found" // that the answer about one document holds, also when that is not there
)

// keyOf returns what every success of a request holds; empty for an object for each index.
func keyOf(req esapi.Request) string {
	switch req.(type) {
	case esapi.SearchRequest:
		return "hits"
	case esapi.MgetRequest:
		return "docs"
	case esapi.CountRequest:
		return "count"
	case esapi.GetRequest:
		return foundKey
	case esapi.IndicesRefreshRequest:
		return "_shards"
	case esapi.IndicesStatsRequest:
		return "indices"
	case esapi.ClusterHealthRequest:
		return "status"
	case esapi.IndicesGetIndexTemplateRequest:
		return "index_templates"
	case esapi.IndicesSimulateTemplateRequest:
		return "template"
	case esapi.IndicesCreateRequest, esapi.IndicesDeleteRequest, esapi.IndicesPutMappingRequest, esapi.IndicesUpdateAliasesRequest, esapi.IndicesDeleteAliasRequest:
		return "acknowledged"
	case openSearchPoint:
		return "pit_id"
	case openSearchPointEnd:
		return "pits"
	default:
		return ""
	}
}

// point is an open point in time and how to read its pages in an order that does not change.
type point struct {
	id     string
	sort   string // the members of the list
	slices int    // searches that read a part each
}

// slice returns the member of a search that reads one part of the point; empty for all of it.
func (p point) slice(n int) string {
	if p.slices < 2 {
		return ""
	}
	return `,"slice":{"id":` + strconv.Itoa(n) + `,"max":` + strconv.Itoa(p.slices) + `}`
}

// appendTo appends the member of a search that names the point and renews it.
func (p point) appendTo(query []byte) []byte {
	query = append(query, `,"pit":{"keep_alive":"`+scanKeep+`","id":`...)
	return append(AppendString(query, p.id), '}')
}

// openPoint opens a point in time.
func (s *Sink) openPoint(ctx context.Context) (point, error) {
	const what = "open a point in time"
	p, err := s.product(ctx)
	if err != nil {
		return point{}, fmt.Errorf("%s: %w", what, err)
	}
	index, err := s.readable(ctx)
	if err != nil {
		return point{}, err
	}
	var open esapi.Request = esapi.OpenPointInTimeRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{index}, KeepAlive: scanKeep}
	if p == OpenSearch {
		open = openSearchPoint{s, index, scanKeep}
	}
	answer, err := s.ask(ctx, what, open)
	if err != nil {
		return point{}, err
	}
	var got struct {
		ID         string `json:"id"`
		OpenSearch string `json:"pit_id"`
		Shards     shards `json:"_shards"`
	}
	if err := s.unmarshal(what, answer, &got); err != nil {
		return point{}, err
	}
	if n := got.Shards.silent(); n > 0 {
		return point{}, s.shardsFailed(what, n)
	}
	if p == OpenSearch {
		// A slice of as many as there are shards reads at most one shard of each index, and within a
		// shard _doc is an order. OpenSearch has _shard_doc from 3.3 on only.
		return point{got.OpenSearch, `"_index","_doc"`, got.Shards.Total}, nil
	}
	return point{got.ID, `"_shard_doc"`, 1}, nil
}

// closePoint gives the point up. Without it the server does, after scanKeep.
func (s *Sink) closePoint(ctx context.Context, at point) {
	var end esapi.Request = openSearchPointEnd{s, at.id}
	if p, _ := s.product(ctx); p != OpenSearch {
		body, _ := json.Marshal(map[string]string{"id": at.id}) //nolint:errchkjson // a string
		end = esapi.ClosePointInTimeRequest{Instrument: s.client.InstrumentationEnabled(), Body: bytes.NewReader(body)}
	}
	_, _ = s.ask(context.WithoutCancel(ctx), "close the point in time", end)
}

// openSearchPoint opens a point in time of OpenSearch, for which esapi has no request.
type openSearchPoint struct {
	s           *Sink
	index, keep string
}

// Do implements esapi.Request.
func (r openSearchPoint) Do(ctx context.Context, transport esapi.Transport) (*esapi.Response, error) {
	path := "/" + r.index + "/_search/point_in_time?keep_alive=" + url.QueryEscape(r.keep)
	return r.s.own(ctx, transport, "open_point_in_time", http.MethodPost, path, nil)
}

// openSearchPointEnd closes one.
type openSearchPointEnd struct {
	s  *Sink
	id string
}

// Do implements esapi.Request.
func (r openSearchPointEnd) Do(ctx context.Context, transport esapi.Transport) (*esapi.Response, error) {
	body, err := json.Marshal(map[string][]string{"pit_id": {r.id}})
	if err != nil {
		return nil, err
	}
	return r.s.own(ctx, transport, "close_point_in_time", http.MethodDelete, "/_search/point_in_time", body)
}

// own sends a request that esapi does not know, with the same span.
func (s *Sink) own(ctx context.Context, transport esapi.Transport, operation, method, path string, body []byte) (*esapi.Response, error) {
	ctx = s.trace.Start(ctx, operation)
	defer s.trace.Close(ctx)
	req, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := transport.Perform(req) //nolint:bodyclose // the caller closes it
	s.trace.AfterRequest(req, "elasticsearch", operation)
	if err != nil {
		s.trace.RecordError(ctx, err)
		return nil, err
	}
	return &esapi.Response{StatusCode: res.StatusCode, Body: res.Body, Header: res.Header}, nil
}
