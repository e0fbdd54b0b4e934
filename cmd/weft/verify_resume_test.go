package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/verify"
)

// comparing runs weft verify in the background, until ctx ends at the latest.
func (s *shop) comparing(ctx context.Context, args ...string) <-chan result {
	ended := make(chan result, 1)
	go func() {
		var out, errOut buffer
		a := &app{environ: s.env, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut,
			signals: func(...os.Signal) (<-chan os.Signal, func()) { return nil, func() {} }}
		code := a.execute(ctx, append([]string{"verify", "products", "--json"}, args...))
		ended <- result{code, out.String(), errOut.String()}
	}()
	return ended
}

// left loads all products, and leaves them without a leader.
func (s *shop) left() {
	s.t.Helper()
	leader := start(s.t, runDaemon, s.env...)
	if r := weft(s.t, s.env, "load", "products"); r.code != 0 {
		s.t.Fatalf("load: %+v", r)
	}
	s.settled()
	leader.signals <- syscall.SIGTERM
	if code := <-leader.code; code != 0 {
		s.t.Fatalf("weft run ended with %d: %s", code, leader.errOut)
	}
}

// A comparison that is interrupted has counted the rows up to its place, and none behind it, told or not: the one that
// goes on counts each once.
func TestVerifyResumedCountsNothingTwice(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("insert into shop.product (id, name, price) select i, 'product ' || i, i from generate_series(51, 3000) i")
	s.left()
	s.put("100", s.versionOf(100), "")
	s.put("2500", s.versionOf(2500), "")
	s.exec("update shop.product set price = 1 where id = 2000") // is open until somebody leads

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := s.comparing(ctx, "--settle", "1h")
	testenv.Eventually(t, func() bool { return s.count("select count(*) from weft_verify where entity_id <> ''") == 1 }, "the place of the comparison")
	interrupt()
	r := <-ended
	var reports []verify.Report
	if err := json.Unmarshal([]byte(r.out), &reports); err != nil || len(reports) != 1 || r.code != exitTryAgain {
		t.Fatalf("interrupted: got %+v, %v", r, err)
	}
	place := int64(s.count("select entity_id::int from weft_verify where part = 'command'"))
	if got := reports[0]; got.Rows != place || got.Missing != 1 || got.Equal != place-1 || got.Unsettled != 0 {
		t.Errorf("interrupted at row %d: got %+v, want the rows up to it", place, got)
	}

	s.running()
	s.settled()
	if got := s.verified(exitBad, "--resume"); got.Rows != 3000 || got.Documents != 2998 || got.Missing != 2 || got.Equal != 2998 || got.Differs() != 2 {
		t.Errorf("resumed: got %+v, want each row once", got)
	}
}

// Where the alias leads is asked before anything is compared: a comparison that has been made is not lost to it, and one that
// was interrupted keeps its place.
func TestVerifyAsksForTheAliasFirst(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	var answers, lookedLast atomic.Bool // lookups of the index are answered; the last request was one
	env := s.front(func(w http.ResponseWriter, r *http.Request, _ string) bool {
		lookup := r.Method == http.MethodGet && r.URL.Path == "/"+s.index && strings.Contains(r.URL.RawQuery, "aliases")
		lookedLast.Store(lookup)
		if lookup && !answers.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	s.exec(`insert into weft_verify (projection, part, entity_type, entity_id, report, began_at, updated_at)
		values ('products', 'command', 'product', '25', '{"rows": 25, "equal": 25}', now(), now())`)
	r := weft(t, env, "verify", "products", "--resume")
	if r.code != exitUnavailable || !strings.Contains(r.errOut, " cannot answer now: look up the index: status 503; look at its load and its log, and try again") {
		t.Errorf("got %+v, want code %d and what was asked for", r, exitUnavailable)
	}
	if n := s.count("select count(*) from weft_verify where entity_id = '25' and finished_at is null"); n != 1 {
		t.Error("the place of the comparison is lost")
	}
	answers.Store(true) // on a slow machine more than once, since an answer is trusted for seconds
	if r := weft(t, env, "verify", "products", "--resume"); r.code != exitOK || lookedLast.Load() {
		t.Errorf("got %+v, want no lookup after the comparison", r)
	}
}

// That the place cannot be recorded on the way spoils no comparison that comes to its end.
func TestVerifyOutlivesAPlaceThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	s.exec("update shop.product set price = 1 where id = 3") // is open for longer than the pause between two places
	s.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
		create trigger refuse before update on weft_verify for each row when (new.finished_at is null) execute function refuse()`)
	if got := s.verified(exitInconclusive, "--settle", "5s"); got.Rows != 50 || got.Equal != 49 || got.Unsettled != 1 {
		t.Errorf("got %+v, want one unsettled entity", got)
	}
}

// A rate counts the rows that there are: a comparison of few rows does not wait for as many as a page may have.
func TestVerifyOfFewRowsAtALowRateEnds(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("delete from shop.product where id > 10")
	s.left()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := s.comparing(ctx, "--rate", "2")
	testenv.Eventually(t, func() bool { return len(ended) == 1 }, "the end of the comparison")
	if r := <-ended; r.code != exitOK {
		t.Errorf("got %+v", r)
	}
}
