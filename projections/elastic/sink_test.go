package elastic

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

var noDetail = cmpopts.IgnoreFields(outbox.Outcome{}, "Detail")

func wantOutcomes(t *testing.T, got, want []outbox.Outcome) {
	t.Helper()
	if d := cmp.Diff(want, got, noDetail); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
}

// wantFault checks err against reason and shared and returns the Fault.
func wantFault(t *testing.T, err error, reason outbox.Reason, shared bool) *outbox.Fault {
	t.Helper()
	f, ok := errors.AsType[*outbox.Fault](err)
	if !ok {
		t.Fatalf("error: got %v, want a Fault %s", err, reason)
	}
	if f.Reason != reason || f.Shared != shared {
		t.Errorf("fault: got %s shared=%t (%v), want %s shared=%t", f.Reason, f.Shared, f, reason, shared)
	}
	if !strings.Contains(f.Error(), "127.0.0.1:") {
		t.Errorf("fault: got %v, want the address of the server", f)
	}
	return f
}

func TestWriteKeepsVersions(t *testing.T) {
	t.Parallel()
	s, srv, reg := fakeSink(t, nil)
	ctx := leading(t)
	steps := []struct {
		action Action
		want   outbox.Outcome
	}{
		{Action{ID: "a", Version: 5, Body: []byte(`{"n":5}`)}, outbox.OK()},
		{Action{ID: "a", Version: 5, Body: []byte(`{"n":5}`)}, outbox.OK()},
		{Action{ID: "a", Version: 4, Body: []byte(`{"n":4}`)}, outbox.NoOp(outbox.NoopAlreadyApplied)},
		{Action{ID: "a", Version: 6, Delete: true}, outbox.OK()},
		{Action{ID: "a", Version: 6, Delete: true}, outbox.NoOp(outbox.NoopES404)},
		{Action{ID: "a", Version: 5, Body: []byte(`{"n":5}`)}, outbox.NoOp(outbox.NoopAlreadyApplied)},
	}
	for i, step := range steps {
		got, err := s.Write(ctx, []Action{step.action})
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		wantOutcomes(t, got, []outbox.Outcome{step.want})
	}
	if got, _ := srv.Doc("a"); got.Version != 6 || !got.Deleted {
		t.Errorf("document: got %+v, want tombstone of version 6", got)
	}
	for _, r := range srv.Requests() {
		if !r.RequireAlias {
			t.Errorf("request without require_alias=true")
		}
	}
	const want = `
# HELP outbox_es_bulk_items_total Items of bulk writes: success (in effect, also where there was nothing left to do), failed (for good, or to be tried again).
# TYPE outbox_es_bulk_items_total counter
outbox_es_bulk_items_total{op="delete",projection="p",result="failed"} 0
outbox_es_bulk_items_total{op="delete",projection="p",result="success"} 2
outbox_es_bulk_items_total{op="upsert",projection="p",result="failed"} 0
outbox_es_bulk_items_total{op="upsert",projection="p",result="success"} 4
# HELP outbox_es_bulk_requests_total Bulk requests sent: success (every item done), partial, failed (no item done, or no answer).
# TYPE outbox_es_bulk_requests_total counter
outbox_es_bulk_requests_total{projection="p",result="failed"} 0
outbox_es_bulk_requests_total{projection="p",result="partial"} 0
outbox_es_bulk_requests_total{projection="p",result="success"} 6
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "outbox_es_bulk_items_total", "outbox_es_bulk_requests_total"); err != nil {
		t.Error(err)
	}
}

func TestSeriesExistAtZero(t *testing.T) {
	t.Parallel()
	_, _, reg := fakeSink(t, nil)
	for name, want := range map[string]int{
		"outbox_es_bulk_requests_total":           3,
		"outbox_es_bulk_items_total":              4,
		"outbox_es_bulk_item_failures_total":      16,
		"outbox_es_bulk_request_duration_seconds": 1,
	} {
		got, err := testutil.GatherAndCount(reg, name)
		if err != nil || got != want {
			t.Errorf("%s: got %d series (%v), want %d", name, got, err, want)
		}
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// A whole request that brings no answer leaves every fate unknown.
func TestWholeRequestFaults(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		step   elastictest.Step
		reason outbox.Reason
		shared bool
		after  time.Duration
	}{
		{"Throttled", elastictest.Status(429, `{"error":{"type":"es_rejected_execution_exception","reason":"full"}}`, "Retry-After", "7"), outbox.ReasonES429, true, 7 * time.Second},
		{"ThrottledForTooLong", elastictest.Status(429, ``, "Retry-After", "86400"), outbox.ReasonES429, true, maxRetryAfter},
		{"Unavailable", elastictest.Status(503, ``, "Retry-After", "2"), outbox.ReasonES5xx, true, 2 * time.Second},
		{"BadGateway", elastictest.Status(502, `<html>secret page</html>`), outbox.ReasonES5xx, true, 0},
		{"Unauthorized", elastictest.Status(401, ``), outbox.ReasonESRequest, true, 0},
		{"Forbidden", elastictest.Status(403, ``), outbox.ReasonESRequest, true, 0},
		{"NotFound", elastictest.Status(404, ``), outbox.ReasonESRequest, true, 0},
		{"Redirect", elastictest.Status(302, ``), outbox.ReasonESOther, true, 0},
		{"RequestTimeout", elastictest.Status(408, ``), outbox.ReasonESTimeout, true, 0},
		{"Truncated", elastictest.Truncate(20), outbox.ReasonESRequest, false, 0},
		{"Garbled", elastictest.Mutate(func([]byte) []byte { return []byte(`{"items":[{"index":{"_id":"d0","stat`) }), outbox.ReasonESRequest, false, 0},
		{"Page", elastictest.Status(200, `<html>`), outbox.ReasonESRequest, false, 0},
		{"Empty", elastictest.Status(200, ``), outbox.ReasonESRequest, false, 0},
		{"OtherID", elastictest.Mutate(func(b []byte) []byte { return bytes.Replace(b, []byte(`"d1"`), []byte(`"d2"`), 1) }), outbox.ReasonESRequest, false, 0},
		{"OtherKind", elastictest.Mutate(func(b []byte) []byte { return bytes.Replace(b, []byte(`"index"`), []byte(`"delete"`), 1) }), outbox.ReasonESRequest, false, 0},
		{"ItemMissing", elastictest.Mutate(func(b []byte) []byte {
			return append(b[:bytes.LastIndex(b, []byte(`,{"index"`))], `]}`...)
		}), outbox.ReasonESRequest, false, 0},
		{"ItemTooMany", elastictest.Mutate(func(b []byte) []byte {
			return bytes.Replace(b, []byte(`]}`), []byte(`,{"index":{"_id":"d9","status":200}}]}`), 1)
		}), outbox.ReasonESRequest, false, 0},
		{"Reset", elastictest.Reset(1), outbox.ReasonESConnect, true, 0},
		{"OtherProduct", func(w http.ResponseWriter, _ *http.Request, apply func() []byte) {
			w.Header().Del("X-Elastic-Product")
			_, _ = w.Write(apply())
		}, outbox.ReasonESRequest, true, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, srv, reg := fakeSink(t, nil)
			if c.name == "OtherProduct" {
				// The client looks at the header of the first answer only.
				s.target.kind = nameAlias
			}
			srv.Script(c.step)
			got, err := s.Write(leading(t), docs(3))
			if got != nil {
				t.Errorf("outcomes: got %v, want none", got)
			}
			f := wantFault(t, err, c.reason, c.shared)
			if f.RetryAfter != c.after {
				t.Errorf("retry after: got %s, want %s", f.RetryAfter, c.after)
			}
			if f.Reason == outbox.ReasonESRequest && !f.Shared && (!errors.Is(f, ErrUnreadable) || !strings.HasPrefix(f.Err.Error(), "bulk request: the answer cannot be read: ")) {
				t.Errorf("fault: got %v, want one of the answer", f)
			}
			if strings.Contains(f.Error(), "secret") {
				t.Errorf("fault repeats the body: %v", f)
			}
			if got := len(srv.Requests()); got > 1 {
				t.Errorf("requests: got %d, want 1", got)
			}
			if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP outbox_es_bulk_requests_total Bulk requests sent: success (every item done), partial, failed (no item done, or no answer).
# TYPE outbox_es_bulk_requests_total counter
outbox_es_bulk_requests_total{projection="p",result="failed"} 1
outbox_es_bulk_requests_total{projection="p",result="partial"} 0
outbox_es_bulk_requests_total{projection="p",result="success"} 0
`), "outbox_es_bulk_requests_total"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	s, _ := newSink(t, Config{URLs: []string{"http://127.0.0.1:1"}, Index: "docs"})
	got, err := s.Write(leading(t), docs(1))
	if got != nil {
		t.Errorf("outcomes: got %v, want none", got)
	}
	wantFault(t, err, outbox.ReasonESConnect, true)
}

func TestNoAnswerIsTimeout(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, func(c *Config) { c.RequestTimeout = 300 * time.Millisecond })
	srv.Script(elastictest.Stall(nil))
	_, err := s.Write(leading(t), docs(2))
	wantFault(t, err, outbox.ReasonESTimeout, true)
	if lost := s.lost.Load(); lost == nil || !strings.Contains(lost.String(), "m=+") {
		t.Errorf("the answer was lost at %v, want a time that a step of the clock leaves alone", lost)
	}

	s.cfg.RequestTimeout = patient
	got, err := s.Write(leading(t), docs(2))
	if err != nil {
		t.Fatalf("second write: %v", err)
	}
	wantOutcomes(t, got, repeat(outbox.OK(), 2))
}

func TestCancelReturnsTheCause(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	cause := errors.New("stopping")
	ctx, cancel := context.WithCancelCause(leading(t))
	arrived := make(chan struct{})
	srv.Script(func(w http.ResponseWriter, r *http.Request, apply func() []byte) {
		close(arrived)
		elastictest.Stall(nil)(w, r, apply)
	})
	go func() {
		<-arrived
		cancel(cause)
	}()
	got, err := s.Write(ctx, docs(1))
	if got != nil || !errors.Is(err, cause) {
		t.Errorf("got %v, %v, want nil, %v", got, err, cause)
	}
}

// late is a context whose deadline is over when the test says so.
type late struct {
	context.Context
	over chan struct{}
}

func (l late) Done() <-chan struct{} { return l.over }

func (l late) Err() error {
	select {
	case <-l.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A deadline over the whole batch keeps what was answered in time.
func TestDeadlineOfTheCaller(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, func(c *Config) { c.MaxBody = minBody })
	ctx := late{leading(t), make(chan struct{})}
	stall := elastictest.Stall(nil)
	srv.Script(elastictest.Pass(), func(w http.ResponseWriter, r *http.Request, body func() []byte) {
		close(ctx.over)
		stall(w, r, body)
	})
	got, err := s.Write(ctx, []Action{sized("a", 900), sized("b", 900), sized("c", 900)})
	if err != nil {
		t.Fatal(err)
	}
	timeout := outbox.Reject(outbox.ReasonESTimeout, "")
	wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), timeout, timeout})
	got, err = s.Write(ctx, docs(1))
	if got != nil {
		t.Errorf("outcomes: got %v, want none", got)
	}
	wantFault(t, err, outbox.ReasonESTimeout, true)
}

func TestAuthorityIsCheckedBeforeEachRequest(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, func(c *Config) { c.MaxBody = minBody })
	lost := errors.New("lease lost")
	checks := 0
	ctx := outbox.WithAuthority(t.Context(), outbox.Authority{Check: func() error {
		if checks++; checks > 2 {
			return lost
		}
		return nil
	}})
	got, err := s.Write(ctx, []Action{sized("a", 900), sized("b", 900), sized("c", 900)})
	if got != nil || !errors.Is(err, lost) {
		t.Errorf("got %v, %v, want nil, %v", got, err, lost)
	}
	if got := len(srv.Requests()); got != 2 {
		t.Errorf("requests: got %d, want 2", got)
	}
	if _, err := s.Write(t.Context(), docs(1)); err == nil {
		t.Errorf("write without authority: got no error")
	}
}

func TestBatchIsSplitInOrder(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, func(c *Config) { c.MaxBody = 4 << 10 })
	actions := []Action{sized("a", 1000), sized("b", 1000), sized("c", 9000), sized("d", 1000)}
	got, err := s.Write(leading(t), actions)
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, repeat(outbox.OK(), 4))
	var ids [][]string
	for _, r := range srv.Requests() {
		var of []string
		for _, it := range r.Items {
			of = append(of, it.ID)
		}
		ids = append(ids, of)
	}
	if d := cmp.Diff([][]string{{"a", "b"}, {"c"}, {"d"}}, ids); d != "" {
		t.Errorf("requests (-want +got):\n%s", d)
	}
}

func TestPartOfABatchFails(t *testing.T) {
	t.Parallel()
	// Each its own: Write sets Held.
	actions := func() []Action { return []Action{sized("a", 900), sized("b", 900), sized("c", 900)} }
	t.Run("Garbled", func(t *testing.T) {
		t.Parallel()
		s, srv, _ := fakeSink(t, func(c *Config) { c.MaxBody = minBody })
		srv.Script(elastictest.Pass(), elastictest.Truncate(5))
		got, err := s.Write(leading(t), actions())
		if err != nil {
			t.Fatalf("error: got %v, want none", err)
		}
		wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), outbox.Reject(outbox.ReasonESRequest, ""), outbox.OK()})
	})
	t.Run("Outage", func(t *testing.T) {
		t.Parallel()
		s, srv, _ := fakeSink(t, func(c *Config) { c.MaxBody = minBody })
		srv.Script(elastictest.Pass(), elastictest.Status(503, "", "Retry-After", "3"))
		got, err := s.Write(leading(t), actions())
		wantFault(t, err, outbox.ReasonES5xx, true)
		retry := outbox.Outcome{Verdict: outbox.Retry, Reason: outbox.ReasonES5xx, RetryAfter: 3 * time.Second}
		wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), retry, retry})
		if got := len(srv.Requests()); got != 1 {
			t.Errorf("executed requests: got %d, want 1: an outage ends the batch", got)
		}
	})
}

func TestPoisonedItemHoldsNobody(t *testing.T) {
	t.Parallel()
	s, srv, reg := fakeSink(t, nil)
	srv.FailItems(func(it elastictest.Item) *elastictest.ItemFault {
		if it.ID != "d1" {
			return nil
		}
		return &elastictest.ItemFault{Status: 400, Type: "document_parsing_exception", Reason: "failed to parse field [n] of type [long] in document with id 'd1'. Preview of field's value: 'top secret'"}
	})
	got, err := s.Write(leading(t), docs(3))
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), outbox.Reject(outbox.ReasonES4xx, ""), outbox.OK()})
	if strings.Contains(got[1].Detail, "secret") || !strings.Contains(got[1].Detail, "document_parsing_exception") {
		t.Errorf("detail: got %q, want the type and nothing of the document", got[1].Detail)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP outbox_es_bulk_requests_total Bulk requests sent: success (every item done), partial, failed (no item done, or no answer).
# TYPE outbox_es_bulk_requests_total counter
outbox_es_bulk_requests_total{projection="p",result="failed"} 0
outbox_es_bulk_requests_total{projection="p",result="partial"} 1
outbox_es_bulk_requests_total{projection="p",result="success"} 0
`), "outbox_es_bulk_requests_total"); err != nil {
		t.Error(err)
	}
}

// Items that all come back are reported one by one, whatever the size of the request, so
// that the consumer can see that none went through.
func TestItemsThatAllComeBackAreReported(t *testing.T) {
	t.Parallel()
	mixed := []struct {
		status int
		want   outbox.Reason
	}{
		{429, outbox.ReasonES429}, {503, outbox.ReasonES5xx}, {500, outbox.ReasonES5xx}, {408, outbox.ReasonESTimeout},
	}
	for _, n := range []int{1, 2, 100} {
		for kinds := range len(mixed) {
			s, srv, _ := fakeSink(t, nil)
			i := 0
			srv.FailItems(func(elastictest.Item) *elastictest.ItemFault {
				f := &elastictest.ItemFault{Status: mixed[i%(kinds+1)].status, Type: "some_exception", Reason: "not now"}
				i++
				return f
			})
			want := make([]outbox.Outcome, n)
			for i := range want {
				want[i] = outbox.Reject(mixed[i%(kinds+1)].want, "")
			}
			got, err := s.Write(leading(t), docs(n))
			if err != nil {
				t.Errorf("%d documents, %d statuses: got error %v, want the outcomes alone", n, kinds+1, err)
			}
			wantOutcomes(t, got, want)
			if at := "Elasticsearch at " + s.host() + ": status "; !strings.HasPrefix(got[n-1].Detail, at) {
				t.Errorf("%d documents, %d statuses: got %q, want it to begin with %q", n, kinds+1, got[n-1].Detail, at)
			}
		}
	}
}

func TestUnsendableActionsEndAlone(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	bad := []Action{
		{ID: "", Version: 1, Body: []byte(`{}`)},
		{ID: strings.Repeat("x", MaxIDBytes+1), Version: 1, Body: []byte(`{}`)},
		{ID: "\xff", Version: 1, Body: []byte(`{}`)},
		{ID: "v", Version: -1, Delete: true},
		{ID: "n", Version: 1, Body: []byte("{\n}")},
		{ID: "e", Version: 1},
	}
	longest := Action{ID: strings.Repeat("y", MaxIDBytes), Version: 1, Body: []byte(`{}`)}
	got, err := s.Write(leading(t), append(bad, longest))
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, append(repeat(outbox.Reject(outbox.ReasonDeterministic, ""), len(bad)), outbox.OK()))
	if n := srv.Live(); n != 1 {
		t.Errorf("documents: got %d, want 1", n)
	}
	if _, err := s.Write(leading(t), bad); err != nil {
		t.Errorf("only unsendable actions: %v", err)
	}
	if got, err := s.Write(leading(t), nil); got != nil || err != nil {
		t.Errorf("no actions: got %v, %v", got, err)
	}
}
