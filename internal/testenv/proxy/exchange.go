package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// exchange is a bulk request with its answer, which passes the tap's own proxy.
type exchange struct {
	tap   *Tap
	path  string
	query url.Values
	body  []byte // as it came, maybe compressed
	lines []line
	kept  map[int]result // items that are answered here
	seen  []history.Applied
	as    Kind        // fault that the answer shows; empty for none
	marks http.Header // of the answer
}

// exchangeKey is that of an exchange in the context of its request.
type exchangeKey struct{}

type reply struct {
	status int
	header http.Header
	body   []byte
	cut    bool // the connection ends behind the body
}

func (t *Tap) bulk(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // it never came whole
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	text, err := plain(r.Header, body)
	var lines []line
	if err == nil {
		lines, err = parseBulk(text)
	}
	if err != nil { // the server's to judge
		t.rec.unread.Add(1)
		t.pass.ServeHTTP(w, r)
		return
	}
	// It goes on when its sender has given up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), forwardTimeout)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	e := &exchange{tap: t, path: r.URL.Path, query: r.URL.Query(), body: body, lines: lines, kept: map[int]result{}}
	e.open()
	t.pass.ServeHTTP(w, r.WithContext(context.WithValue(ctx, exchangeKey{}, e)))
}

// RoundTrip implements [http.RoundTripper]: it sends what the tap passes on.
func (t *Tap) RoundTrip(req *http.Request) (*http.Response, error) {
	e, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return t.http.RoundTrip(req)
	}
	rep, err := e.carry(req)
	t.rec.add(e.seen) // before the client knows
	if err != nil {
		return nil, err // the connection ends, as that to the server did
	}
	answer := io.Reader(bytes.NewReader(rep.body))
	if rep.cut {
		answer = io.MultiReader(answer, broken{})
	}
	res := &http.Response{StatusCode: rep.status, Header: rep.header, Body: io.NopCloser(answer), Request: req}
	maps.Copy(res.Header, e.marks)
	if e.as != "" {
		res.Header.Set(injectedHeader, string(e.as))
	}
	if res.Header.Get("Content-Length") == "" {
		res.Header.Set("Content-Length", strconv.Itoa(len(rep.body)))
	}
	return res, nil
}

func (e *exchange) open() {
	request, now := e.tap.rec.requests.Add(1), time.Now()
	target := strings.Trim(strings.TrimSuffix(e.path, "/_bulk"), "/")
	e.seen = make([]history.Applied, len(e.lines))
	for i, l := range e.lines {
		e.seen[i] = history.Applied{Request: request, Instance: e.tap.instance, Sent: now, Op: l.op, ID: l.place(), Target: target, Version: l.version}
	}
}

// errClosing is for a request that was held until the tap was closed.
var errClosing = errors.New("the tap is closed")

// carry sends the request, unless it is answered here, and returns the answer.
func (e *exchange) carry(req *http.Request) (*reply, error) {
	kept, ok := e.tap.wait()
	if !ok {
		return nil, errClosing
	}
	if kept {
		e.as = held
	}
	s := e.tap.strikes(len(e.lines), len(e.body))
	if s != nil {
		if rep := e.before(s); rep != nil {
			return rep, nil
		}
	}
	e.marks = e.refuse()
	results, rep, err := e.forward(req)
	if err != nil || results == nil {
		return rep, err
	}
	changed := len(e.kept) > 0
	if s != nil && (s.Kind == MissingItems || s.Kind == SwappedIDs) {
		e.mark(s.Kind)
		results, changed = s.corrupt(results), true
	}
	if rep.body, err = encode(rep.body, results, e.query, changed); err == nil && s != nil {
		e.after(s, rep)
	}
	return rep, err
}

// before applies a fault to a request. It returns the answer of a request that is kept.
func (e *exchange) before(s *strike) *reply {
	switch s.Kind {
	case TooMany, TooLarge, DiskFull:
		e.mark(s.Kind)
		return refusal(s.Fault)
	case TooManyItems, DiskFullItems:
		e.mark(s.Kind)
		kind, reason := s.Kind.says()
		for _, i := range s.some(len(e.lines)) {
			e.refuseItem(i, http.StatusTooManyRequests, kind, reason)
		}
	default: // for the way back
	}
	return nil
}

// after applies a fault to an answer.
func (e *exchange) after(s *strike, rep *reply) {
	switch s.Kind {
	case Truncated:
		e.mark(s.Kind)
		rep.header.Set("Content-Length", strconv.Itoa(len(rep.body)))
		rep.body, rep.cut = rep.body[:s.random.IntN(len(rep.body))], true
	case Garbled:
		e.mark(s.Kind)
		rep.body = slices.Insert(rep.body, s.random.IntN(len(rep.body)), 0) // 0 is nowhere in JSON
	default: // for the way there
	}
}

// broken is what is left of a body whose connection ends.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func (e *exchange) mark(k Kind) {
	e.as = k
	e.tap.count(k)
}

// forward sends the items that are not kept and records the answer. results is nil when
// the answer has no items.
func (e *exchange) forward(req *http.Request) (results []result, rep *reply, err error) {
	var sent []int
	for i := range e.lines {
		if e.kept[i] == nil {
			sent = append(sent, i)
		}
	}
	rep = &reply{status: http.StatusOK, header: productHeader()}
	var answers []result
	if len(sent) > 0 {
		body := e.body
		if len(sent) < len(e.lines) {
			body = nil
			for _, i := range sent {
				body = append(body, e.lines[i].raw...)
			}
			req.Header.Del("Content-Encoding")
		}
		req.ContentLength = int64(len(body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		req.Body, _ = req.GetBody()
		if answers, rep, err = e.ask(sent, req); err != nil || answers == nil {
			return nil, rep, err
		}
	}
	results = make([]result, len(e.lines))
	for i, r := range e.kept {
		results[i] = r
	}
	for n, i := range sent {
		results[i] = answers[n]
	}
	return results, rep, nil
}

// ask sends the actions at sent, and records their answers.
func (e *exchange) ask(sent []int, req *http.Request) ([]result, *reply, error) {
	query := req.URL.Query()
	query.Del("filter_path") // the record wants all columns
	req.URL.RawQuery = query.Encode()
	req.Header.Del("Accept-Encoding")
	rep, before := &reply{}, time.Now()
	res, err := e.tap.http.RoundTrip(req)
	if err == nil {
		rep.status, rep.header = res.StatusCode, res.Header
		rep.header.Del("Content-Length")
		rep.body, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	after := time.Now()
	var op *net.OpError
	reached := !errors.As(err, &op) || op.Op != "dial"
	for _, i := range sent {
		e.seen[i].Sent, e.seen[i].Forwarded = before, reached
	}
	if err != nil {
		return nil, nil, err
	}
	answers, err := e.answers(sent, rep)
	if err != nil {
		return nil, nil, err
	}
	for _, i := range sent {
		e.seen[i].Answered, e.seen[i].Known = after, true
	}
	return answers, rep, nil
}

// answers enters an answer into the record and returns its items, nil where it is a
// refusal of the whole request.
func (e *exchange) answers(sent []int, rep *reply) ([]result, error) {
	if rep.status < 200 || rep.status > 299 {
		for _, i := range sent {
			e.seen[i].Status = rep.status
		}
		return nil, nil
	}
	var answer struct{ Items []result }
	if err := json.Unmarshal(rep.body, &answer); err != nil {
		return nil, err
	}
	if len(answer.Items) != len(sent) {
		return nil, fmt.Errorf("%d items for %d actions", len(answer.Items), len(sent))
	}
	seen := slices.Clone(e.seen)
	for n, i := range sent {
		if err := answer.Items[n].fields(&seen[i]); err != nil {
			return nil, err
		}
	}
	e.seen = seen
	return answer.Items, nil
}
