package elastictest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Doc is a document or, with Deleted, its tombstone.
type Doc struct {
	Version int64
	Deleted bool
	Body    json.RawMessage
}

// Item is one action as it was received.
type Item struct {
	Delete  bool
	ID      string
	Version int64
	Body    json.RawMessage
}

// Request is one _bulk request as it was received.
type Request struct {
	Index        string
	RequireAlias bool
	Size         int // bytes of the body
	Items        []Item
}

// ItemFault is an answer for one item in place of the true one.
type ItemFault struct {
	Status int
	Type   string
	Reason string
}

// Step handles one whole _bulk request in place of the server. apply executes the
// request and returns the true answer; a Step may call it or not.
type Step func(w http.ResponseWriter, r *http.Request, apply func() []byte)

// Server is the fake. Its methods may be called from any goroutine.
type Server struct {
	URL string

	http *httptest.Server

	mu       sync.Mutex
	docs     map[string]Doc
	requests []Request
	script   []Step
	always   Step
	item     func(Item) *ItemFault
	maxBody  int
	index    string // answer of GET /<name>; empty is 404
	root     string // answer of GET / of another product; empty for Elasticsearch
}

// New starts a server whose every index name is an alias. It is closed at the end
// of the test.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{docs: map[string]Doc{}}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = s.http.URL
	tb.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// Script appends steps: each takes one _bulk request. When they are used up,
// requests are executed.
func (s *Server) Script(steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = append(s.script, steps...)
}

// Always handles every _bulk request that no scripted step takes; nil ends it.
func (s *Server) Always(step Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = step
}

// FailItems asks f about every item; nil lets the item be executed.
func (s *Server) FailItems(f func(Item) *ItemFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.item = f
}

// MaxBody makes the server answer 413 to bodies above n bytes; 0 ends it.
func (s *Server) MaxBody(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxBody = n
}

// AnswerIndex sets the answer of GET /<name>. The default is an alias over
// <name>-v1; status 404 is a missing index.
func (s *Server) AnswerIndex(status int, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index = fmt.Sprintf("%d %s", status, body)
}

// AnswerRoot makes the server answer without Elasticsearch's header, and GET / as given.
func (s *Server) AnswerRoot(status int, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.root = fmt.Sprintf("%d %s", status, body)
}

// Requests returns the _bulk requests seen so far, refused ones too.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Doc returns the document or tombstone of id.
func (s *Server) Doc(id string) (Doc, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.docs[id]
	return d, ok
}

// Live returns how many documents there are, tombstones not counted.
func (s *Server) Live() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, d := range s.docs {
		if !d.Deleted {
			n++
		}
	}
	return n
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	root := s.root
	s.mu.Unlock()
	if root == "" {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
	}
	w.Header().Set("Content-Type", "application/json")
	index, op, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/" && root != "":
		reply(w, root)
	case op == "_bulk" && r.Method == http.MethodPost:
		s.bulk(w, r, index)
	case op == "" && r.Method == http.MethodGet:
		s.lookup(w, index)
	case op == "" && r.Method == http.MethodPut:
		s.mu.Lock()
		s.index = ""
		s.mu.Unlock()
		_, _ = io.WriteString(w, `{"acknowledged":true}`)
	default:
		http.Error(w, "not part of the fake", http.StatusNotImplemented)
	}
}

func (s *Server) lookup(w http.ResponseWriter, name string) {
	s.mu.Lock()
	answer := s.index
	s.mu.Unlock()
	if answer == "" {
		answer = fmt.Sprintf(`200 {"%[1]s-v1":{"aliases":{"%[1]s":{}},"settings":{"index":{"uuid":"u","gc_deletes":"1h"}}}}`, name)
	}
	reply(w, answer)
}

// reply sends an answer that begins with its status.
func reply(w http.ResponseWriter, answer string) {
	var status int
	head, body, _ := strings.Cut(answer, " ")
	_, _ = fmt.Sscan(head, &status)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func (s *Server) bulk(w http.ResponseWriter, r *http.Request, index string) {
	s.mu.Lock()
	limit := s.maxBody
	s.mu.Unlock()
	if limit > 0 && r.ContentLength > int64(limit) {
		s.note(Request{Index: index, Size: int(r.ContentLength)})
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	s.mu.Lock()
	step := s.always
	if len(s.script) > 0 {
		step, s.script = s.script[0], s.script[1:]
	}
	s.mu.Unlock()
	var once sync.Once
	var answer []byte
	apply := func() []byte {
		once.Do(func() { answer = s.execute(r, index) })
		return answer
	}
	if step != nil {
		step(w, r, apply)
		return
	}
	_, _ = w.Write(apply())
}

func (s *Server) note(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
}

// execute reads the body, applies it and renders the answer.
func (s *Server) execute(r *http.Request, index string) []byte {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	req := Request{Index: index, RequireAlias: r.URL.Query().Get("require_alias") == "true", Size: len(body)}
	var answers []string
	lines := bufio.NewReader(bytes.NewReader(body))
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var head map[string]struct {
			ID          string `json:"_id"`
			Version     int64  `json:"version"`
			VersionType string `json:"version_type"`
		}
		if err := json.Unmarshal(line, &head); err != nil || len(head) != 1 {
			return []byte(`{"error":"malformed action line"}`)
		}
		for op, h := range head {
			it := Item{Delete: op == "delete", ID: h.ID, Version: h.Version}
			if !it.Delete {
				if it.Body, err = lines.ReadBytes('\n'); err != nil {
					return []byte(`{"error":"no document line"}`)
				}
			}
			req.Items = append(req.Items, it)
			answers = append(answers, s.apply(it))
		}
	}
	s.note(req)
	return []byte(`{"items":[` + strings.Join(answers, ",") + `]}`)
}

func (s *Server) apply(it Item) string {
	op := "index"
	if it.Delete {
		op = "delete"
	}
	id, _ := json.Marshal(it.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.item != nil {
		if f := s.item(it); f != nil {
			e, _ := json.Marshal(map[string]string{"type": f.Type, "reason": f.Reason})
			return fmt.Sprintf(`{"%s":{"_id":%s,"status":%d,"error":%s}}`, op, id, f.Status, e)
		}
	}
	old, known := s.docs[it.ID]
	if known && it.Version < old.Version {
		return fmt.Sprintf(`{"%s":{"_id":%s,"status":409,"error":{"type":"version_conflict_engine_exception","reason":"current version [%d] is higher"}}}`, op, id, old.Version)
	}
	status, result := 200, "updated"
	switch {
	case it.Delete && (!known || old.Deleted):
		status, result = 404, "not_found"
	case it.Delete:
		result = "deleted"
	case !known || old.Deleted:
		status, result = 201, "created"
	}
	s.docs[it.ID] = Doc{Version: it.Version, Deleted: it.Delete, Body: bytes.TrimSpace(it.Body)}
	return fmt.Sprintf(`{"%s":{"_id":%s,"result":"%s","status":%d}}`, op, id, result, status)
}
