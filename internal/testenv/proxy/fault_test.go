package proxy

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Each kind as a plain client sees it, as weft's client judges it, and as the record
// has it.
func TestFaults(t *testing.T) {
	t.Parallel()
	const all = 4
	for _, c := range []struct {
		fault Fault
		// What a plain client gets: a status, or the end of the connection.
		status int
		ended  bool
		header string // Retry-After
		text   string // in the body
		// What weft's client says of the first request: shared fault with this reason, or
		// so many documents to be tried again.
		reason outbox.Reason
		shared bool
		retry  int
		// What reached Elasticsearch.
		forwarded int
	}{
		{fault: Fault{Kind: TooMany, RetryAfter: 7 * time.Second}, status: 429, header: "7", text: "es_rejected_execution_exception", reason: outbox.ReasonES429, shared: true},
		{fault: Fault{Kind: TooMany}, status: 429, text: "es_rejected_execution_exception", reason: outbox.ReasonES429, shared: true},
		{fault: Fault{Kind: TooManyItems, Items: 2}, status: 200, text: `"status":429`, retry: 2, forwarded: 2},
		// That all of them came back is the pipeline's to judge.
		{fault: Fault{Kind: TooManyItems}, status: 200, text: `"status":429`, retry: all},
		{fault: Fault{Kind: TooLarge, Bytes: 100}, status: 413, text: "413 Request Entity Too Large", forwarded: 0},
		{fault: Fault{Kind: DiskFull}, status: 429, text: "flood-stage", reason: outbox.ReasonES429, shared: true},
		{fault: Fault{Kind: DiskFullItems}, status: 200, text: "flood-stage", reason: outbox.ReasonES429, shared: true, retry: all},
		{fault: Fault{Kind: Truncated}, ended: true, status: 200, reason: outbox.ReasonESRequest, forwarded: all},
		{fault: Fault{Kind: Garbled}, status: 200, text: "\x00", reason: outbox.ReasonESRequest, forwarded: all},
		{fault: Fault{Kind: MissingItems}, status: 200, text: `"created"`, reason: outbox.ReasonESRequest, forwarded: all},
		{fault: Fault{Kind: SwappedIDs}, status: 200, text: `"created"`, reason: outbox.ReasonESRequest, forwarded: all},
	} {
		t.Run(string(c.fault.Kind), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.tap.Inject(c.fault)
			status, header, body, err := r.try(http.MethodPost, r.bulkURL(r.tap), nil, bulkBody(1, all))
			wantEnd := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
			if wantEnd != c.ended || status != c.status && status != 0 || !strings.Contains(string(body), c.text) {
				t.Errorf("plain client: got %d, %v: %q; want %d, ended %v, %q", status, err, body, c.status, c.ended, c.text)
			}
			if status != 0 && (header.Get(injectedHeader) != string(c.fault.Kind) || header.Get("Retry-After") != c.header) {
				t.Errorf("header: got %v, want the fault's name and Retry-After %q", header, c.header)
			}
			if n := len(r.rec.Applied()); n != all {
				t.Fatalf("record: got %d items, want %d", n, all)
			}
			forwarded := 0
			for _, a := range r.rec.Applied() {
				if a.Forwarded {
					forwarded++
				}
				if a.Known != a.Forwarded || a.Known != (a.Status == http.StatusCreated) {
					t.Errorf("record: got %+v, want the answer of Elasticsearch or none", a)
				}
			}
			if forwarded != c.forwarded {
				t.Errorf("record: got %d items forwarded, want %d", forwarded, c.forwarded)
			}
			r.wantRecord()

			s := r.sink(r.tap.URL())
			outcomes, err := s.Write(leading(t), docs(2, all))
			f, faulty := errors.AsType[*outbox.Fault](err)
			if faulty != (c.reason != "") || faulty && (f.Reason != c.reason || f.Shared != c.shared) {
				t.Errorf("weft: got %v, want reason %q, shared %v", err, c.reason, c.shared)
			}
			retry := 0
			for _, o := range outcomes {
				if o.Verdict == outbox.Retry {
					retry++
				}
			}
			if retry != c.retry {
				t.Errorf("weft: got %v, want %d to be tried again", outcomes, c.retry)
			}
			if n := r.tap.Injected()[c.fault.Kind]; n < 2 {
				t.Errorf("injected: got %d, want every request so far", n)
			}

			r.tap.Clear()
			outcomes, err = s.Write(leading(t), docs(3, all))
			must(t, err)
			for _, o := range outcomes {
				if o.Verdict != outbox.Done || o.Noop != outbox.NoopNone {
					t.Errorf("after Clear: got %v", o)
				}
			}
			r.wantRecord()
		})
	}
}

func TestStrikes(t *testing.T) {
	t.Parallel()
	pattern := func(f Fault, n, documents int) string {
		i, out := newInjection(f), []byte{}
		for range n {
			if i.strikes(documents, 10) {
				out = append(out, 'x')
			} else {
				out = append(out, '.')
			}
		}
		return string(out)
	}
	for _, c := range []struct {
		name      string
		fault     Fault
		documents int
		want      string
	}{
		{"All", Fault{Kind: TooMany}, 1, "xxxxxx"},
		{"TooLargeIsBeyond", Fault{Kind: TooLarge, Bytes: 10}, 2, "......"},
		{"TooLarge", Fault{Kind: TooLarge, Bytes: 9}, 2, "xxxxxx"},
		{"TooLargeSparesOneDocument", Fault{Kind: TooLarge, Bytes: 9}, 1, "......"},
	} {
		if got := pattern(c.fault, 6, c.documents); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
	seen := map[string]bool{}
	for seed := range uint64(20) {
		f := Fault{Kind: TooMany, Every: 3, Seed: seed}
		got := pattern(f, 300, 1)
		for block := 0; block < 300; block += 3 {
			if strings.Count(got[block:block+3], "x") != 1 {
				t.Fatalf("seed %d: got %s, want one of every three", seed, got)
			}
		}
		if again := pattern(f, 300, 1); again != got {
			t.Errorf("seed %d: got another choice the second time", seed)
		}
		seen[got] = true
	}
	if len(seen) < 20 {
		t.Errorf("got %d choices from 20 seeds", len(seen))
	}
}
