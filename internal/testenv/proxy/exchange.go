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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

type exchange struct {
	tap   *Tap
	w     http.ResponseWriter
	r     *http.Request
	lines []line
	kept  map[int]result // items that are answered here
	seen  []history.Applied
	as    Kind        // fault that the answer shows; empty for none
	marks http.Header // of the answer
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

func (t *Tap) bulk(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // it never came whole
	}
	text, err := plain(r.Header, body)
	var lines []line
	if err == nil {
		lines, err = parseBulk(text)
	}
	if err != nil { // the server's to judge
		t.rec.unread.Add(1)
		r.Body = io.NopCloser(bytes.NewReader(body))
		t.pass.ServeHTTP(w, r)
		return
	}
	e := &exchange{tap: t, w: w, r: r, lines: lines, kept: map[int]result{}}
	e.open()
	answer := e.carry(body)
	t.rec.add(e.seen) // before the client knows
	answer()
}

func (e *exchange) open() {
	request, now := e.tap.rec.requests.Add(1), time.Now()
	target := strings.Trim(strings.TrimSuffix(e.r.URL.Path, "/_bulk"), "/")
	e.seen = make([]history.Applied, len(e.lines))
	for i, l := range e.lines {
		e.seen[i] = history.Applied{Request: request, Instance: e.tap.instance, Sent: now, Op: l.op, ID: l.place(), Target: target, Version: l.version}
	}
}

// carry does everything but the answer, which it returns.
func (e *exchange) carry(body []byte) (answer func()) {
	kept, ok := e.tap.wait()
	if !ok {
		return abort
	}
	if kept {
		e.as = held
	}
	s := e.tap.strikes(len(e.lines), len(body))
	if s != nil {
		if answer := e.before(s); answer != nil {
			return answer
		}
	}
	e.marks = e.refuse()
	results, rep, err := e.forward(body)
	if err != nil {
		return abort // as the server did
	}
	if results == nil {
		return func() { e.reply(rep) }
	}
	changed := len(e.kept) > 0
	if s != nil && (s.Kind == MissingItems || s.Kind == SwappedIDs) {
		e.mark(s.Kind)
		results, changed = s.corrupt(results), true
	}
	if rep.body, err = encode(rep.body, results, e.r.URL.Query(), changed); err != nil {
		return abort
	}
	if s != nil {
		return e.after(s, rep)
	}
	return func() { e.reply(rep) }
}

// abort ends the connection without an answer.
func abort() { panic(http.ErrAbortHandler) }

// before applies a fault to a request. It returns the answer of a request that is kept.
func (e *exchange) before(s *strike) (answer func()) {
	switch s.Kind {
	case TooMany, TooLarge, DiskFull:
		e.mark(s.Kind)
		return func() { e.reply(refusal(s.Fault)) }
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
func (e *exchange) after(s *strike, rep *reply) (answer func()) {
	switch s.Kind {
	case Truncated:
		e.mark(s.Kind)
		rep.header.Set("Content-Length", strconv.Itoa(len(rep.body)))
		rep.body = rep.body[:s.random.IntN(len(rep.body))]
		return func() {
			e.reply(rep)
			_ = http.NewResponseController(e.w).Flush()
			abort()
		}
	case Garbled:
		e.mark(s.Kind)
		rep.body = slices.Insert(rep.body, s.random.IntN(len(rep.body)), 0) // 0 is nowhere in JSON
	default: // for the way there
	}
	return func() { e.reply(rep) }
}

func (e *exchange) mark(k Kind) {
	e.as = k
	e.tap.count(k)
}

func (e *exchange) reply(rep *reply) {
	maps.Copy(e.w.Header(), e.marks)
	e.tap.reply(e.w, e.as, rep)
}

// forward sends the items that are not kept and records the answer. results is nil when
// the answer has no items.
func (e *exchange) forward(body []byte) (results []result, rep *reply, err error) {
	var sent []int
	for i := range e.lines {
		if e.kept[i] == nil {
			sent = append(sent, i)
		}
	}
	rep = &reply{status: http.StatusOK, header: productHeader()}
	var answers []result
	if len(sent) > 0 {
		header := e.r.Header.Clone()
		if len(sent) < len(e.lines) {
			body = nil
			for _, i := range sent {
				body = append(body, e.lines[i].raw...)
			}
			header.Del("Content-Encoding")
		}
		if answers, rep, err = e.ask(sent, header, body); err != nil || answers == nil {
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

// ask sends body, the actions at sent, and records their answers.
func (e *exchange) ask(sent []int, header http.Header, body []byte) ([]result, *reply, error) {
	ctx, cancel := context.WithTimeout(e.tap.ctx, forwardTimeout)
	defer cancel()
	target := e.tap.upstream(e.r).JoinPath(e.r.URL.Path)
	query := e.r.URL.Query()
	query.Del("filter_path") // the record wants all columns
	target.RawQuery, target.User = query.Encode(), nil
	req, err := http.NewRequestWithContext(ctx, e.r.Method, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for _, name := range []string{"Accept-Encoding", "Connection", "Content-Length", "Expect"} {
		header.Del(name)
	}
	req.Header = header
	before := time.Now()
	rep, err := e.tap.roundTrip(req)
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

func (t *Tap) roundTrip(req *http.Request) (*reply, error) {
	res, err := t.http.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	header := res.Header.Clone()
	for _, name := range []string{"Connection", "Content-Length", "Transfer-Encoding"} {
		header.Del(name)
	}
	return &reply{res.StatusCode, header, body}, nil
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

// reply sends an answer; as names the injected fault.
func (t *Tap) reply(w http.ResponseWriter, as Kind, rep *reply) {
	for name, values := range rep.header {
		w.Header()[name] = values
	}
	if as != "" {
		w.Header().Set(injectedHeader, string(as))
	}
	if w.Header().Get("Content-Length") == "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(rep.body)))
	}
	w.WriteHeader(rep.status)
	if _, err := w.Write(rep.body); err != nil {
		panic(http.ErrAbortHandler)
	}
}
