package elastic

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Document is one that the index has.
type Document struct {
	ID      string          `json:"_id"`
	Routing string          `json:"_routing"` // empty without one
	Version int64           `json:"_version"`
	Source  json.RawMessage `json:"_source"` // nil where it was not asked for, or is not kept
}

// MaxPage is the most documents of one read.
const MaxPage = 5000

// readable returns the name to read from: the configured one, or the index that takes the writes where an alias leads to
// others, too, or has a filter. Elasticsearch reads no single document through an alias over several, and finds those of
// the others; by a filter it finds a part of the documents.
func (s *Sink) readable(ctx context.Context) (string, error) {
	name, _, err := s.read(ctx)
	return name, err
}

// read is readable, and returns the uuid of the index, too.
func (s *Sink) read(ctx context.Context) (name, uuid string, err error) {
	if alone := s.alone.Load(); alone != nil && time.Since(alone.seen) < plainTrust {
		return s.cfg.Index, alone.uuid, nil
	}
	at, err := s.Place(ctx)
	if err == nil && (len(at.Beside) > 0 || at.Part) {
		return at.Index, at.UUID, nil
	}
	return s.cfg.Index, at.UUID, err
}

// Search returns the documents of at most [MaxPage] ids, in no order, as searches see them:
// those written since the last refresh are missing or old. An id comes once for each shard
// that has it, whatever its routing.
func (s *Sink) Search(ctx context.Context, docs []Doc) ([]Document, error) {
	return s.inParts(ctx, docs, s.search)
}

// ErrOverBudget means that documents are larger than what is held at once: fewer of them may not be.
var ErrOverBudget = errors.New("documents are larger than what is held at once")

// maxHeld is how many bytes the documents of a read may have where one answer is too small for them.
const maxHeld = 64 << 20

// inParts reads documents at once, or in halves where that is too large.
func (s *Sink) inParts(ctx context.Context, docs []Doc, read func(context.Context, string, []Doc) ([]Document, error)) ([]Document, error) {
	index, err := s.readable(ctx)
	if err != nil {
		return nil, err
	}
	return halved(docs, maxHeld, func(docs []Doc) ([]Document, error) { return read(ctx, index, docs) })
}

// longest returns how many bytes the answer with n documents may have.
func (s *Sink) longest(n int) int64 {
	if n == 1 {
		return 2 * s.maxAnswer
	}
	return s.maxAnswer
}

func halved(docs []Doc, budget int, read func([]Doc) ([]Document, error)) ([]Document, error) {
	found, err := read(docs)
	half := len(docs) / 2
	if half == 0 || !errors.Is(err, ErrTooLarge) {
		return found, err
	}
	found, err = halved(docs[:half], budget, read)
	if err != nil {
		return nil, err
	}
	for _, d := range found {
		budget -= len(d.Source)
	}
	if budget < 0 {
		return nil, ErrOverBudget
	}
	more, err := halved(docs[half:], budget, read)
	return append(found, more...), err
}

func (s *Sink) search(ctx context.Context, index string, docs []Doc) ([]Document, error) {
	query := []byte(`{"version":true,"track_total_hits":false,"sort":["_doc"],"size":` + strconv.Itoa(min(2*len(docs)+10, 2*MaxPage)) + `,"query":{"ids":{"values":[`)
	for i, d := range docs {
		if i > 0 {
			query = append(query, ',')
		}
		query = AppendString(query, d.ID)
	}
	found, _, err := s.hits(ctx, s.longest(len(docs)), append(query, "]}}}"...), index)
	return found, err
}

// Newest returns the newest state of those documents that exist.
func (s *Sink) Newest(ctx context.Context, docs []Doc) ([]Document, error) {
	return s.inParts(ctx, docs, s.newest)
}

func (s *Sink) newest(ctx context.Context, index string, docs []Doc) ([]Document, error) {
	answer, err := s.askUpTo(ctx, s.longest(len(docs)), "read documents", esapi.MgetRequest{
		Instrument: s.client.InstrumentationEnabled(), Index: index, Body: bytes.NewReader(mgetBody(docs)),
	})
	if err != nil {
		return nil, err
	}
	var got struct {
		Docs []struct {
			Document
			Found bool   `json:"found"`
			Error *cause `json:"error"`
		} `json:"docs"`
	}
	if err := s.unmarshal("read documents", answer, &got); err != nil {
		return nil, err
	}
	if len(got.Docs) != len(docs) {
		return nil, s.unreadable("read documents", miscounted(len(got.Docs), len(docs)))
	}
	var out []Document
	for i := range got.Docs {
		switch d := &got.Docs[i]; {
		case d.Error.unrouted():
		case d.Error != nil:
			return nil, s.unread("read documents", d.Error)
		case d.Found:
			out = append(out, d.Document)
		}
	}
	return out, nil
}

// shards is what an answer says of those it was asked of.
type shards struct {
	Total      int `json:"total"`
	Successful int `json:"successful"`
}

// silent returns how many did not answer. OpenSearch counts one without a copy not as failed.
func (s shards) silent() int { return s.Total - s.Successful }

// Count returns how many documents searches see.
func (s *Sink) Count(ctx context.Context) (int64, error) {
	index, err := s.readable(ctx)
	if err != nil {
		return 0, err
	}
	answer, err := s.ask(ctx, "count documents", esapi.CountRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{index}})
	if err != nil {
		return 0, err
	}
	var got struct {
		Count  int64  `json:"count"`
		Shards shards `json:"_shards"`
	}
	if err := s.unmarshal("count documents", answer, &got); err != nil {
		return 0, err
	}
	if n := got.Shards.silent(); n > 0 {
		return 0, s.shardsFailed("count documents", n)
	}
	return got.Count, nil
}

// ask sends a request and returns the answer of a success.
func (s *Sink) ask(ctx context.Context, what string, req esapi.Request) ([]byte, error) {
	return s.askUpTo(ctx, maxPlain, what, req)
}

// askUpTo is ask for an answer of up to limit bytes.
func (s *Sink) askUpTo(ctx context.Context, limit int64, what string, req esapi.Request) ([]byte, error) {
	status, answer, err := s.callUpTo(ctx, limit, req)
	if err != nil || status != http.StatusOK {
		return nil, s.failed(what, status, answer, err)
	}
	return answer, nil
}

// statusError is an answer other than 200.
type statusError struct {
	status int
	cause  cause
	err    error
}

// Error implements error.
func (e *statusError) Error() string { return e.err.Error() }

// Unwrap returns what the answer means.
func (e *statusError) Unwrap() error { return e.err }

// statusOf returns the status of an answer other than 200, and 0 for any other error.
func statusOf(err error) int {
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.status
	}
	return 0
}

// failed returns why a request has no answer of a success.
func (s *Sink) failed(what string, status int, answer []byte, err error) error {
	switch {
	case errors.Is(err, ErrProduct), errors.Is(err, ErrVersion), errors.Is(err, ErrTooLarge), errors.Is(err, ErrUnreadable):
		return fmt.Errorf("%s: %w", what, err)
	case err != nil:
		return &UnansweredError{Hosts: s.host(), err: fmt.Errorf("%s: %w", what, err)}
	}
	e := parseWhole(answer)
	return &statusError{status, e, s.meaning(what, status, e)}
}

// meaning returns what an answer other than 200 means.
func (s *Sink) meaning(what string, status int, e cause) error {
	switch {
	case status == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%s: %w: Elasticsearch at %s: status 413", what, ErrTooLarge, s.host())
	case status == http.StatusBadRequest && strings.HasPrefix(e.root(), "Result window is too large"):
		return fmt.Errorf("%s: %w: Elasticsearch at %s refuses a page (%s): PUT /%s/_settings {\"index.max_result_window\":null}", what, ErrWindow, s.host(), e.detail(status), s.cfg.Index)
	case status == http.StatusTooManyRequests, status >= http.StatusInternalServerError:
		return &UnansweredError{Hosts: s.host(), Status: status, err: fmt.Errorf("%s: %s", what, e.detail(status))}
	case status == http.StatusUnauthorized, status == http.StatusForbidden && (e.Type == "security_exception" || e.Type == "" || e.blocked()): // a proxy names no type
		return fmt.Errorf("%s: %w", what, s.denied(s.cfg.Index, status, e))
	case e.Type == "index_not_found_exception" && (e.Index == "" || e.Index == s.cfg.Index):
		return fmt.Errorf("%s: %w", what, s.missing())
	case e.Type == "index_closed_exception":
		return fmt.Errorf("%s: %w", what, closedIndex(cmp.Or(e.Index, s.cfg.Index), s.host()))
	default:
		return fmt.Errorf("%s: Elasticsearch at %s: %s", what, s.host(), e.detail(status))
	}
}

// shardsFailed returns the error of an answer that lacks what some shards have.
func (s *Sink) shardsFailed(what string, n int) error {
	return &UnansweredError{Hosts: s.host(), Status: http.StatusServiceUnavailable, err: fmt.Errorf("%s: shards that did not answer: %d; GET /_cluster/allocation/explain says why", what, n)}
}

// unread returns the error of a document that could not be read.
func (s *Sink) unread(what string, e *cause) error {
	if e.Type == "no_shard_available_action_exception" {
		return s.shardsFailed(what, 1)
	}
	return fmt.Errorf("%s: %s", what, e.detail(http.StatusOK))
}

// UnansweredError means that no node has answered a request, or one that it cannot now.
type UnansweredError struct {
	Hosts  string // that were asked
	Status int    // of the answer: 429 or 5xx; 0 without one
	err    error
}

// Error implements error.
func (e *UnansweredError) Error() string {
	verb := "does not answer"
	if e.Status != 0 {
		verb = "cannot answer now"
	}
	return fmt.Sprintf("Elasticsearch at %s %s: %v", e.Hosts, verb, e.err)
}

// Remedy says what to do about it.
func (e *UnansweredError) Remedy() string {
	if e.Status != 0 {
		return "look at its load and its log, and try again"
	}
	if IsAccess(e.err) { // it says itself what to do
		return "then try again"
	}
	return "start it, or correct ELASTIC_URL"
}

// Unwrap returns what came instead of an answer.
func (e *UnansweredError) Unwrap() error { return e.err }

// State returns a text that any write to the index changes. The index is refreshed before,
// where the role may do that.
func (s *Sink) State(ctx context.Context) (string, error) {
	_, _ = s.ask(ctx, "refresh", esapi.IndicesRefreshRequest{Instrument: s.client.InstrumentationEnabled(), Index: []string{s.cfg.Index}})
	answer, err := s.ask(ctx, "index statistics", esapi.IndicesStatsRequest{
		Instrument: s.client.InstrumentationEnabled(), Index: []string{s.cfg.Index}, Metric: []string{"indexing"}, Level: "shards",
		FilterPath: []string{"indices.*.uuid", "indices.*.shards.*.routing.primary", "indices.*.shards.*.seq_no.max_seq_no"},
	})
	return string(answer), err
}
