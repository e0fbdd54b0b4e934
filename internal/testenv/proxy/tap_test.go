package proxy

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// rig is an index behind a tap.
type rig struct {
	t     *testing.T
	index string
	rec   *Recorder
	tap   *Tap
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, index: testenv.Index(t), rec: NewRecorder()}
	r.tap = r.newTap("a", testenv.ElasticURL(t))
	must(t, r.sink(r.tap.URL()).EnsureIndex(t.Context()))
	return r
}

func (r *rig) newTap(instance, upstream string) *Tap {
	r.t.Helper()
	tap, err := NewTap(instance, upstream, r.rec)
	must(r.t, err)
	r.t.Cleanup(func() { must(r.t, tap.Close()) })
	return tap
}

// sink is weft's own client of a URL.
func (r *rig) sink(url string) *elastic.Sink {
	r.t.Helper()
	s, err := elastic.New(elastic.Config{URLs: []string{url}, Index: r.index, RequestTimeout: time.Minute},
		zaptest.NewLogger(r.t), prometheus.NewRegistry(), "p")
	must(r.t, err)
	r.t.Cleanup(s.Close)
	return s
}

func leading(t *testing.T) context.Context {
	return outbox.WithAuthority(t.Context(), outbox.Authority{Group: "g", Epoch: 1, Check: func() error { return nil }})
}

func docs(version int64, n int) []elastic.Action {
	out := make([]elastic.Action, n)
	for i := range out {
		out[i] = elastic.Action{ID: fmt.Sprintf("block:%d", i), Version: version, Body: []byte(`{"text":"x"}`)}
	}
	return out
}

// get asks Elasticsearch itself.
func (r *rig) get(path string, into any) {
	r.t.Helper()
	_, _, body := r.do(http.MethodGet, testenv.ElasticURL(r.t)+path, nil, "")
	must(r.t, json.Unmarshal(body, into))
}

func (r *rig) do(method, target string, header http.Header, body string) (int, http.Header, []byte) {
	r.t.Helper()
	status, got, text, err := r.try(method, target, header, body)
	must(r.t, err)
	return status, got, text
}

func (r *rig) try(method, target string, header http.Header, body string) (int, http.Header, []byte, error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testenv.Limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	must(r.t, err)
	req.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		req.Header[name] = values
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, text, err
}

// bulk is a request of n documents in weft's form, at path of the tap.
func (r *rig) bulkURL(tap *Tap) string {
	return tap.URL() + "/" + r.index + "/_bulk?require_alias=true&filter_path=items.*.status,items.*._id,items.*.error,items.*.result"
}

func bulkBody(version int64, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"index\":{\"_id\":\"block:%d\",\"version\":%d,\"version_type\":\"external_gte\"}}\n{\"text\":\"x\"}\n", i, version)
	}
	return b.String()
}

// wantRecord compares the record with what Elasticsearch holds: the newest item that was
// applied to each document is its state.
func (r *rig) wantRecord() {
	r.t.Helper()
	last := map[string]history.Applied{}
	for _, a := range r.rec.Applied() {
		if a.Known && a.Status < 300 {
			last[a.ID] = a
		}
	}
	for id, a := range last {
		var doc struct {
			Found   bool  `json:"found"`
			Version int64 `json:"_version"`
			SeqNo   int64 `json:"_seq_no"`
			Term    int64 `json:"_primary_term"`
		}
		r.get("/"+r.index+"/_doc/"+url.PathEscape(id), &doc)
		if doc.Found == (a.Op == history.Delete) || doc.Found && (doc.Version != a.ResultVersion || doc.SeqNo != a.SeqNo || doc.Term != a.PrimaryTerm) {
			r.t.Errorf("%s: Elasticsearch has %+v, the record %+v", id, doc, a)
		}
	}
}

func TestTapRecordsEveryItem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sink(r.tap.URL())
	before := time.Now()
	batches := [][]elastic.Action{
		docs(5, 3),
		{{ID: "block:0", Version: 4, Body: []byte(`{"text":"old"}`)}, {ID: "block:1", Version: 6, Delete: true}, {ID: "none", Version: 1, Delete: true}},
	}
	for _, b := range batches {
		_, err := s.Write(leading(t), b)
		must(t, err)
	}
	type row struct {
		Request          int64
		Op, ID           string
		Version          int64
		Status           int
		Result           string
		ResultVersion    int64
		Placed           bool // has a sequence number and a term
		Forwarded, Known bool
	}
	var got []row
	for _, a := range r.rec.Applied() {
		if a.Instance != "a" || a.Sent.Before(before) || a.Answered.Before(a.Sent) || a.Answered.After(time.Now()) {
			t.Errorf("got %+v, want instance a and times in their order", a)
		}
		got = append(got, row{a.Request, a.Op, a.ID, a.Version, a.Status, a.Result, a.ResultVersion, a.PrimaryTerm == 1, a.Forwarded, a.Known})
	}
	want := []row{
		{1, "index", "block:0", 5, 201, "created", 5, true, true, true},
		{1, "index", "block:1", 5, 201, "created", 5, true, true, true},
		{1, "index", "block:2", 5, 201, "created", 5, true, true, true},
		{2, "index", "block:0", 4, 409, "", 0, false, true, true},
		{2, "delete", "block:1", 6, 200, "deleted", 6, true, true, true},
		{2, "delete", "none", 1, 404, "not_found", 1, true, true, true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	r.wantRecord()
	if n := len(r.rec.Applied()); n != len(want) {
		t.Errorf("Len: got %d, want %d", n, len(want))
	}
}

// What the client sees through the tap is what Elasticsearch would tell it.
func TestTapIsTransparent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	direct := testenv.ElasticURL(t)
	body := bulkBody(7, 2) + "{\"index\":{\"_id\":\"block:1\",\"version\":3,\"version_type\":\"external_gte\"}}\n{\"text\":\"x\"}\n{\"delete\":{\"_id\":\"none\",\"version\":1,\"version_type\":\"external_gte\"}}\n"
	r.do(http.MethodPost, r.bulkURL(r.tap), nil, body)
	for name, path := range map[string]string{
		"Filtered":    "/" + r.index + "/_bulk?filter_path=items.*.status,items.*._id,items.*.error,items.*.result",
		"OtherFilter": "/" + r.index + "/_bulk?filter_path=errors",
		"Whole":       "/" + r.index + "/_bulk",
		"NoSuchIndex": "/" + r.index + "-none/_bulk?require_alias=true",
	} {
		t.Run(name, func(t *testing.T) {
			var answers [2]map[string]any
			var kinds [2]string
			for i, base := range []string{direct, r.tap.URL()} {
				status, header, text := r.do(http.MethodPost, base+path, nil, body)
				kinds[i] = header.Get("Content-Type") + " " + header.Get("X-Elastic-Product")
				if !strings.HasPrefix(kinds[i], "application/json") || header.Get(injectedHeader) != "" {
					t.Errorf("header from %s: got %v", base, header)
				}
				must(t, json.Unmarshal(text, &answers[i]))
				answers[i]["status"] = status
				delete(answers[i], "took")
			}
			if name == "OtherFilter" {
				answers[1] = map[string]any{"errors": answers[1]["errors"], "status": answers[1]["status"]}
			}
			ignoreSeq := cmp.FilterPath(func(p cmp.Path) bool {
				return strings.HasSuffix(p.GoString(), `["_seq_no"]`)
			}, cmp.Ignore())
			if kinds[0] != kinds[1] {
				t.Errorf("type and product: got %q, want those of the server, %q", kinds[1], kinds[0])
			}
			if diff := cmp.Diff(answers[0], answers[1], ignoreSeq); diff != "" {
				t.Errorf("answers (-direct +tap):\n%s", diff)
			}
		})
	}

	t.Run("OtherRequests", func(t *testing.T) {
		var doc struct {
			Version int64 `json:"_version"`
		}
		status, _, text := r.do(http.MethodGet, r.tap.URL()+"/"+r.index+"/_doc/block:0", nil, "")
		must(t, json.Unmarshal(text, &doc))
		if status != http.StatusOK || doc.Version != 7 {
			t.Errorf("document: got status %d, version %d; want 200 and 7", status, doc.Version)
		}
	})

	t.Run("Gzip", func(t *testing.T) {
		var zipped bytes.Buffer
		w := gzip.NewWriter(&zipped)
		_, err := io.WriteString(w, bulkBody(8, 2))
		must(t, errors.Join(err, w.Close()))
		n := len(r.rec.Applied())
		status, _, text := r.do(http.MethodPost, r.bulkURL(r.tap), http.Header{"Content-Encoding": {"gzip"}}, zipped.String())
		got := r.rec.Applied()[n:]
		if status != http.StatusOK || len(got) != 2 || got[1].ID != "block:1" || got[1].Version != 8 || got[1].Status != http.StatusOK {
			t.Errorf("got status %d (%s) and record %+v", status, text, got)
		}
		r.tap.Inject(Fault{Kind: TooManyItems, Items: 2})
		defer r.tap.Clear()
		_, header, text := r.do(http.MethodPost, r.bulkURL(r.tap), http.Header{"Content-Encoding": {"gzip"}}, zipped.String())
		got = r.rec.Applied()[n+2:]
		if header.Get(injectedHeader) != string(TooManyItems) || len(got) != 2 || got[0].Forwarded == got[1].Forwarded {
			t.Errorf("half of a request: got %s and record %+v", text, got)
		}
	})

	t.Run("WhatIsNoBulkRequest", func(t *testing.T) {
		n := len(r.rec.Applied())
		for _, body := range []string{"", "no JSON\n", `{"index":{"_id":"x"}}`} {
			status, _, text := r.do(http.MethodPost, r.bulkURL(r.tap), nil, body)
			if status != http.StatusBadRequest {
				t.Errorf("%q: got %d: %s, want Elasticsearch's 400", body, status, text)
			}
		}
		if len(r.rec.Applied()) != n {
			t.Errorf("record: got %+v", r.rec.Applied()[n:])
		}
	})
	r.wantRecord()
}

func TestTapRecordsUnansweredItems(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	send := func(tap *Tap) history.Applied {
		n := len(r.rec.Applied())
		if status, _, text, err := r.try(http.MethodPost, r.bulkURL(tap), nil, bulkBody(1, 1)); err == nil {
			t.Errorf("got %d: %s, want the connection ended", status, text)
		}
		got := r.rec.Applied()[n:]
		if len(got) != 1 {
			t.Fatalf("record: got %+v, want one item", got)
		}
		return got[0]
	}

	down, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, down.Close())
	got := send(r.newTap("down", "http://"+down.Addr().String()))
	if got.Forwarded || got.Known || !got.Answered.IsZero() {
		t.Errorf("server that is down: got %+v, want neither forwarded nor known", got)
	}
	for name, handler := range map[string]http.HandlerFunc{
		"no answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"half of it": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
		},
		"no JSON":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"items lack": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"items":[]}`) },
		"other fields": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items":[{"index":{"status":"x"}}]}`)
		},
	} {
		server := httptest.NewServer(handler)
		got := send(r.newTap("half", server.URL))
		server.CloseClientConnections()
		server.Close()
		if !got.Forwarded || got.Known || !got.Answered.IsZero() || got.Status != 0 {
			t.Errorf("%s: got %+v, want it forwarded and not known", name, got)
		}
	}
}

func TestTapURL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var user, password string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { user, password, _ = req.BasicAuth() }))
	defer server.Close()
	tap := r.newTap("a", strings.Replace(server.URL, "//", "//elastic:secret@", 1))
	r.do(http.MethodGet, tap.URL(), nil, "")
	if user != "elastic" || password != "secret" {
		t.Errorf("user: got %s:%s, want that of the upstream", user, password)
	}
	if _, err := NewTap("a", "elastic:secret", r.rec); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "want a URL with a host") {
		t.Errorf("NewTap: got %v, want an error without the password", err)
	}
}

// Each node of a cluster is reached through an address of its own, and all meet the same faults.
func TestProxiesOfSeveralNodes(t *testing.T) {
	t.Parallel()
	var upstream []string
	for _, name := range []string{"a", "b", "c"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
		t.Cleanup(server.Close)
		upstream = append(upstream, server.URL)
	}
	p, err := NewProxies("a", "postgres://127.0.0.1:1/x", strings.Join(upstream, ","), NewRecorder())
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(url string) string {
		res, err := client.Get(url)
		if err != nil {
			return "no answer"
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return string(body)
	}
	all := func() (answers string) {
		for url := range strings.SplitSeq(p.ElasticURL, ",") {
			answers += ask(url) + " "
		}
		return answers
	}
	if got := all(); got != "a b c " {
		t.Errorf("got %q, want an answer of each", got)
	}
	must(t, p.Elastic.Cut())
	if got := all(); got != "no answer no answer no answer " {
		t.Errorf("while they are cut: got %q", got)
	}
	must(t, p.Heal())
	if got := all(); got != "a b c " {
		t.Errorf("afterwards: got %q", got)
	}
}

// A bulk request that was held arrives when its sender is long gone, and finds newer
// versions.
func TestTapHold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fresh := r.newTap("b", testenv.ElasticURL(t))
	r.tap.Hold()
	r.tap.Hold()
	ctx, end := context.WithCancelCause(leading(t))
	s, ended := r.sink(r.tap.URL()), make(chan error, 1)
	go func() {
		_, err := s.Write(ctx, docs(1, 2))
		ended <- err
	}()
	testenv.Eventually(t, func() bool { return r.tap.Held() == 1 }, "the request is held")
	end(context.DeadlineExceeded)
	err := <-ended
	if f, ok := errors.AsType[*outbox.Fault](err); !ok || f.Reason != outbox.ReasonESTimeout {
		t.Fatalf("held write: got %v, want es_timeout", err)
	}
	if r.tap.Held() != 1 || len(r.rec.Applied()) != 0 {
		t.Errorf("got %d held and %d recorded, want 1 and 0", r.tap.Held(), len(r.rec.Applied()))
	}
	_, err = r.sink(fresh.URL()).Write(leading(t), []elastic.Action{docs(2, 1)[0], {ID: "block:1", Version: 2, Delete: true}})
	must(t, err)
	r.tap.Clear()
	testenv.Eventually(t, func() bool { return len(r.rec.Applied()) == 4 }, "the held request is through")
	for _, a := range r.rec.Applied()[2:] {
		if a.Instance != "a" || a.Version != 1 || a.Status != http.StatusConflict || !a.Known {
			t.Errorf("late item: got %+v, want a conflict", a)
		}
	}
	r.wantRecord()
	if d := cmp.Diff(map[Kind]int{held: 1}, r.tap.Injected()); d != "" {
		t.Errorf("injected (-want +got):\n%s", d)
	}
	_, err = r.sink(r.tap.URL()).Write(leading(t), docs(3, 2))
	must(t, err)
}

// The way of a real instance: a link to a tap to Elasticsearch.
func TestLateRequestOfAHalfOpenLink(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tap, err := url.Parse(r.tap.URL())
	must(t, err)
	link, err := NewLink(tap.Host)
	must(t, err)
	t.Cleanup(func() { must(t, link.Close()) })
	through, err := link.Through(r.tap.URL())
	must(t, err)
	s := r.sink(through)
	_, err = s.Write(leading(t), docs(1, 1))
	must(t, err)
	must(t, link.HalfOpen())
	ctx, cancel := context.WithTimeout(leading(t), 2*time.Second)
	defer cancel()
	_, err = s.Write(ctx, docs(2, 1))
	if f, ok := errors.AsType[*outbox.Fault](err); !ok || f.Reason != outbox.ReasonESTimeout {
		t.Fatalf("write through a half-open link: got %v, want es_timeout", err)
	}
	if n := len(r.rec.Applied()); n != 1 {
		t.Errorf("record: got %d items while the link is half open, want 1", n)
	}
	_, err = r.sink(r.tap.URL()).Write(leading(t), docs(3, 1))
	must(t, err)
	must(t, link.Heal())
	testenv.Eventually(t, func() bool { return len(r.rec.Applied()) == 3 }, "the late request is through")
	if got := r.rec.Applied()[2]; got.Version != 2 || got.Status != http.StatusConflict {
		t.Errorf("late item: got %+v, want a conflict", got)
	}
	r.wantRecord()
	outcomes, err := s.Write(leading(t), docs(4, 1))
	if err != nil || outcomes[0].Verdict != outbox.Done || outcomes[0].Noop != outbox.NoopNone {
		t.Errorf("after Heal: got %v, %v", outcomes, err)
	}
}

func TestTapCloseDropsHeldRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tap := r.newTap("b", testenv.ElasticURL(t))
	tap.Hold()
	ended := make(chan error, 1)
	go func() {
		_, _, _, err := r.try(http.MethodPost, r.bulkURL(tap), nil, bulkBody(1, 1))
		ended <- err
	}()
	testenv.Eventually(t, func() bool { return tap.Held() == 1 }, "a request is held")
	must(t, tap.Close())
	if err := <-ended; err == nil {
		t.Error("held request: got an answer after Close")
	}
	if got := r.rec.Applied(); len(got) != 1 || got[0].Forwarded || got[0].Known {
		t.Errorf("record: got %+v, want one that was not forwarded", got)
	}
	must(t, tap.Close())
	if _, _, _, err := r.try(http.MethodPost, r.bulkURL(tap), nil, bulkBody(1, 1)); err == nil {
		t.Error("request after Close: got an answer")
	}
}
