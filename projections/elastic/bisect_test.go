package elastic

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

func TestTooLargeRequestIsHalved(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	srv.MaxBody(100 << 10)
	var actions []Action
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		actions = append(actions, sized(id, 40<<10))
	}
	actions[4] = sized("e", 120<<10)
	want := repeat(outbox.OK(), 7)
	want[4] = outbox.Reject(outbox.ReasonES4xx, "")
	for range 2 {
		got, err := s.Write(leading(t), actions)
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, want)
		if !strings.Contains(got[4].Detail, "12") || !strings.Contains(got[4].Detail, "bytes") {
			t.Errorf("detail: got %q, want it to name the size", got[4].Detail)
		}
	}
	if got := s.bodyCap.Load(); got > 200<<10 {
		t.Errorf("body cap: got %d, want it lowered towards the limit", got)
	}
}

func TestRefusedRequestIsHalved(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	srv.Always(func(w http.ResponseWriter, r *http.Request, apply func() []byte) {
		if answer := apply(); strings.Contains(string(answer), `"d5"`) {
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"error":{"type":"action_request_validation_exception","reason":"Validation Failed"}}`)
		} else {
			_, _ = w.Write(answer)
		}
	})
	got, err := s.Write(leading(t), docs(16))
	if err != nil {
		t.Fatal(err)
	}
	want := repeat(outbox.OK(), 16)
	want[5] = outbox.Reject(outbox.ReasonES4xx, "")
	wantOutcomes(t, got, want)

	got, err = s.Write(leading(t), []Action{docs(6)[5]})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, want[5:6])
}

// Something between weft and Elasticsearch cannot judge a document: its refusal is met by
// the whole request, also where that carries one document. Elasticsearch's own is final.
func TestRefusalWithoutTheProductHeaderIsShared(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 402, 405, 406, 407, 409, 410, 412, 414, 415, 421, 422, 425, 426, 428, 431, 451} {
		for _, n := range []int{1, 3} {
			s, srv, _ := fakeSink(t, nil)
			requests := 0
			srv.Always(func(w http.ResponseWriter, _ *http.Request, _ func() []byte) {
				requests++
				w.Header().Del("X-Elastic-Product")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "<html>blocked by policy</html>")
			})
			got, err := s.Write(leading(t), docs(n))
			if got != nil || requests != 1 {
				t.Errorf("status %d for %d documents: got outcomes %v after %d requests, want none after one", status, n, got, requests)
			}
			f := wantFault(t, err, outbox.ReasonESRequest, true)
			if !strings.Contains(f.Error(), "X-Elastic-Product") || !strings.Contains(f.Error(), strconv.Itoa(status)) {
				t.Errorf("status %d: got %q, want it to name the header and the status", status, f)
			}
		}
		s, srv, _ := fakeSink(t, nil)
		srv.Script(elastictest.Status(status, `{"error":{"type":"illegal_argument_exception","reason":"no"}}`))
		got, err := s.Write(leading(t), docs(1))
		if err != nil {
			t.Errorf("status %d of Elasticsearch: got error %v, want an outcome", status, err)
		}
		wantOutcomes(t, got, []outbox.Outcome{outbox.Reject(outbox.ReasonES4xx, "")})
	}
}

// A request that is refused whatever is in it says nothing about documents.
func TestRefusedWhateverIsInIt(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 7, 1000} {
		s, srv, _ := fakeSink(t, nil)
		requests := 0
		srv.Always(func(w http.ResponseWriter, _ *http.Request, _ func() []byte) {
			requests++
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"error":{"type":"illegal_argument_exception","reason":"unrecognized parameter"}}`)
		})
		got, err := s.Write(leading(t), docs(n))
		if got != nil {
			t.Errorf("%d documents: got outcomes %v, want none", n, got)
		}
		wantFault(t, err, outbox.ReasonESRequest, true)
		if requests > 40 {
			t.Errorf("%d documents: got %d requests, want few", n, requests)
		}
	}
}

func TestConnectionCutInsideLargeBody(t *testing.T) {
	t.Parallel()
	// A server that resets connections on large bodies, as one with a size limit may.
	cutter := func(limit int64) elastictest.Step {
		return func(w http.ResponseWriter, r *http.Request, apply func() []byte) {
			if r.ContentLength > limit {
				elastictest.Reset(64<<10)(w, r, apply)
				return
			}
			_, _ = w.Write(apply())
		}
	}
	t.Run("OneIsTooLarge", func(t *testing.T) {
		t.Parallel()
		s, srv, _ := fakeSink(t, nil)
		srv.Always(cutter(1500 << 10))
		got, err := s.Write(leading(t), []Action{sized("a", 600<<10), sized("b", 600<<10), sized("big", 2<<20), sized("c", 600<<10)})
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), outbox.OK(), outbox.Reject(outbox.ReasonES4xx, ""), outbox.OK()})
	})
	t.Run("OnceOnly", func(t *testing.T) {
		t.Parallel()
		s, srv, _ := fakeSink(t, nil)
		srv.Script(elastictest.Reset(64 << 10))
		got, err := s.Write(leading(t), []Action{sized("big", 2<<20)})
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, []outbox.Outcome{outbox.OK()})
	})
	t.Run("ServerIsGone", func(t *testing.T) {
		t.Parallel()
		s, srv, _ := fakeSink(t, nil)
		srv.Always(func(w http.ResponseWriter, r *http.Request, apply func() []byte) {
			srv.AnswerIndex(503, "")
			elastictest.Reset(64<<10)(w, r, apply)
		})
		got, err := s.Write(leading(t), []Action{sized("big", 2<<20)})
		if got != nil {
			t.Errorf("outcomes: got %v, want none", got)
		}
		wantFault(t, err, outbox.ReasonESConnect, true)
	})
}
