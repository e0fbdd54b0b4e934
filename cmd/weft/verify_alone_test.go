package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/verify"
)

// compares begins a comparison that goes on until it is interrupted: an event is open, and nobody leads.
func (s *shop) compares(args ...string) (ended <-chan result, interrupt context.CancelFunc) {
	s.t.Helper()
	ctx, interrupt := context.WithCancel(s.t.Context())
	s.t.Cleanup(interrupt)
	s.exec("update shop.product set price = price + 1 where id = 45")
	ended = s.comparing(ctx, append(args, "--settle", "1h")...)
	testenv.Eventually(s.t, func() bool {
		return s.count("select count(*) from weft_verify where updated_at > began_at and finished_at is null") == 1 && s.count(sessionsOfVerify) == 1
	}, "the place of the comparison")
	return ended, interrupt
}

const sessionsOfVerify = "select count(*) from pg_stat_activity where datname = current_database() and starts_with(application_name, 'weft/verify/')"

// A repair is not advised where it can do nothing, as about documents ahead of rows whose application gives out the versions.
func TestVerifyAdvisesARepairThatHelps(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]verify.Report{
		"2 documents differ from their rows: see above what to do about each":              {Ahead: 2, ByHand: 2},
		"1 document differs from its row: see above what to do":                            {Ahead: 1, ByHand: 1},
		"2 documents differ from their rows; `weft verify --repair` has them written anew": {Ahead: 1, Stale: 1, ByHand: 1},
		// More than are named: the first five may all be such that a repair cannot mend.
		"6 documents differ from their rows; `weft verify --repair` has them written anew": {Extra: 6, ByHand: 5},
	} {
		if err := verdictOf([]verify.Report{r}, false); err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Two comparisons of one projection would write each other's place and figures: the second is told who compares since
// when. One that has ended, however it did, is in nobody's way.
func TestVerifyBesideAnotherIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	first, interrupt := s.compares()
	pid := s.count("select pid from pg_stat_activity where datname = current_database() and starts_with(application_name, 'weft/verify/')")
	for _, args := range [][]string{{}, {"--resume"}, {"--repair", "--by", "a", "--why", "b"}} {
		r := weft(t, s.env, append([]string{"verify", "products"}, args...)...)
		who, end := fmt.Sprintf(`" (pid %d) compares projection products since 20`, pid), fmt.Sprintf(": wait for it, or end it with select pg_terminate_backend(%d)\n", pid)
		if r.code != exitRefused || !strings.HasPrefix(r.errOut, `weft: session "weft/verify/`) || !strings.Contains(r.errOut, who) || !strings.HasSuffix(r.errOut, end) {
			t.Errorf("%v: got %+v, want code %d, %s and %s", args, r, exitRefused, who, end)
		}
	}
	interrupt()
	if r := <-first; r.code != exitTryAgain {
		t.Errorf("interrupted: got %+v", r)
	}
	if n := s.count("select count(*) from pg_locks join (" + strings.Replace(sessionsOfVerify, "count(*)", "pid", 1) + ") of using (pid) where locktype = 'advisory'"); n != 0 {
		t.Error("the session of a comparison that has ended still keeps its place")
	}
	if got := s.verified(exitInconclusive, "--resume", "--settle", "1ms"); got.Rows != 50 || got.Unsettled != 1 {
		t.Errorf("resumed: got %+v, want all rows", got)
	}
}

// A comparison whose session has ended stops with what it has found, and changes nothing of the one that has taken its
// place.
func TestVerifyStopsWhenItsSessionEnds(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	first, _ := s.compares()
	s.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and starts_with(application_name, 'weft/verify/')")
	second := s.verified(exitInconclusive, "--settle", "1ms")
	if second.Rows != 50 || second.Unsettled != 1 {
		t.Errorf("the second: got %+v, want all rows", second)
	}
	r := <-first
	var reports []verify.Report
	if err := json.Unmarshal([]byte(r.out), &reports); err != nil || len(reports) != 1 || r.code != exitTryAgain || !strings.Contains(r.errOut, "interrupted: the session that keeps the place of the comparison has ended: go on with --resume") {
		t.Errorf("the first: got %+v, %v", r, err)
	}
	if n := s.count("select count(*) from weft_verify where finished_at is not null and (report ->> 'rows')::int = 50"); n != 1 {
		t.Error("the first has changed what is kept of the second")
	}
}

// A comparison that an administrator's hand or a restart of the server ends says how it goes on.
func TestVerifyThatTheServerEndsCanBeResumed(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.left()
	first, _ := s.compares()
	testenv.Eventually(t, func() bool {
		s.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'weft/verify'")
		return len(first) == 1
	}, "the end of the comparison")
	if r := <-first; r.code != exitUnavailable || !strings.HasPrefix(r.errOut, "weft: ") || !strings.HasSuffix(r.errOut, "; then go on with --resume\n") {
		t.Errorf("got %+v, want code %d and how it goes on", r, exitUnavailable)
	}
}
