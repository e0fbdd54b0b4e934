package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func (s *shop) count(sql string) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), sql).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// A load that is interrupted after any page is completed by the next one: each row gets one
// event, and the backlog is never exceeded by more than a page.
func TestLoadIsResumedWhereverItWasInterrupted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, backlog := range []int{1, 14, 30, 49} { // nobody leads: it waits once that many are open
		ctx, interrupt := context.WithCancel(t.Context())
		code, errOut := make(chan int, 1), &buffer{}
		go func() {
			a := &app{environ: s.env, stdin: strings.NewReader(""), stdout: &buffer{}, stderr: errOut,
				signals: func(...os.Signal) (<-chan os.Signal, func()) { return nil, func() {} }}
			code <- a.execute(ctx, []string{"load", "products", "--page=7", fmt.Sprint("--backlog=", backlog)})
		}()
		testenv.Eventually(t, 20*time.Second, func() bool { return s.count("select count(*) from product_outbox_events") >= backlog }, "the backlog")
		interrupt()
		if got := <-code; got != exitTryAgain || !strings.Contains(errOut.String(), "interrupted: what is written stays; run the command again for the rest") {
			t.Errorf("interrupted at %d: code %d, %s", backlog, got, errOut)
		}
		if open := s.count("select count(*) from product_outbox_events"); open >= backlog+7 {
			t.Errorf("%d events are open with a backlog of %d and pages of 7", open, backlog)
		}
	}
	s.exec("update shop.product set name = 'changed' where id = 50") // by a trigger, before the load reads it
	if r := weft(t, s.env, "load", "products", "--page=7", "--json"); r.code != exitOK || !strings.Contains(r.out, `"rows": 50`) {
		t.Errorf("load: %+v", r)
	}
	if n := s.count("select count(*) from (select entity_id from product_outbox_events group by 1 having count(*) = 1) one"); n != 50 {
		t.Errorf("%d of 50 rows have exactly one event", n)
	}
	if r := weft(t, s.env, "load", "search_index_to_elastic"); r.code == exitOK || !strings.Contains(r.errOut, "table search_outbox_events was not made by `weft outbox create`: its application writes the first events itself") {
		t.Errorf("load of an outbox of the application: %+v", r)
	}
}

// The leader loads what was there before the outbox, once, with the rights of weft's role. Bad
// rows end in failed and open no breaker; the next leader goes on where the one before ended.
func TestLeaderLoadsOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	text, err := os.ReadFile(s.file)
	if err == nil {
		err = os.WriteFile(s.file, append(text, "    load: true\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.exec("update shop.product set price = 'NaN' where id <= 40; truncate product_outbox_events, product_outbox_versions")
	user := testenv.Runner(t, s.pool.Config().ConnString())
	if r := weft(t, s.env, "migrate", "grant", user.Username()); r.code != exitOK || r.errOut != "" {
		t.Fatalf("grant: %+v", r)
	}
	env := append(s.env, "DATABASE_URL="+testenv.As(t, s.pool.Config().ConnString(), user), "WEFT_BREAKER_THRESHOLD=3")
	run := func(what string, ok func() bool) string {
		t.Helper()
		r := start(t, runDaemon, env...)
		testenv.Eventually(t, time.Minute, ok, what)
		r.signals <- syscall.SIGTERM
		if code := <-r.code; code != 0 || t.Failed() {
			t.Errorf("weft run ended with %d: %s", code, r.errOut)
		}
		return r.errOut.String()
	}
	loaded := func() bool { return s.count("select count(*) from weft_progress where loaded_at is not null") == 1 }
	log := run("the first load", func() bool {
		return loaded() && s.count("select count(*) from product_outbox_events where status in ('done', 'failed')") == 50 && s.document("50") != nil
	})
	if n := s.count("select count(*) from product_outbox_events where status = 'failed' and error_reason = 'deterministic_exception' and error like '%price: NaN%'"); n != 40 {
		t.Errorf("%d of 40 bad rows are in failed", n)
	}
	if strings.Contains(log, "breaker_open") || !strings.Contains(log, `"event":"load.done"`) {
		t.Errorf("log: %s", log)
	}

	s.exec("delete from product_outbox_versions where entity_id > 40") // as if these had never been loaded
	log = run("a live change", func() bool {
		s.exec("update shop.product set name = 'lamp' where id = 41 and name <> 'lamp'")
		return s.document("41")["name"] == "lamp"
	})
	if n := s.count("select count(*) from product_outbox_events where event_version > 0 and entity_id > 41"); n != 9 || strings.Contains(log, "load.begun") {
		t.Errorf("a second load: %d events, %s", n, log)
	}

	s.exec("update weft_progress set loaded_at = null, load_after = '45'") // as a leader that was killed leaves it
	log = run("the rest of the load", func() bool {
		return loaded() && s.count("select count(*) from product_outbox_events where status = 'pending'") == 0
	})
	if n := s.count("select count(*) from product_outbox_versions where entity_id > 41"); n != 5 || !strings.Contains(log, `"resumed":true`) {
		t.Errorf("resumed: %d rows loaded, want 5: %s", n, log)
	}
}

// A load that its leader cannot do is named with its reason, and others go on.
func TestLoadOfALeaderIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	text, err := os.ReadFile(s.file)
	if err == nil {
		err = os.WriteFile(s.file, append(text, "    load: true\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.exec("delete from weft_outbox")
	r := start(t, runDaemon, s.env...)
	testenv.Eventually(t, time.Minute, func() bool {
		return strings.Contains(r.errOut.String(), "table product_outbox_events was not made by `weft outbox create`")
	}, "the reason in the log")
	s.exec("update shop.product set name = 'lamp' where id = 7")
	testenv.Eventually(t, time.Minute, func() bool { return s.document("7")["name"] == "lamp" }, "a live change")
	r.signals <- syscall.SIGTERM
	if code := <-r.code; code != 0 {
		t.Errorf("weft run ended with %d: %s", code, r.errOut)
	}
	if n := strings.Count(r.errOut.String(), "load.fault"); n != 1 {
		t.Errorf("the fault is logged %d times, want once", n)
	}
}

// A load that stands still says so.
func TestLoadSaysThatItWaits(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ctx, cancel := context.WithCancel(t.Context())
	errOut, ended := &buffer{}, make(chan int, 1)
	a := &app{environ: s.env, stdin: strings.NewReader(""), stdout: &buffer{}, stderr: errOut}
	go func() { ended <- a.execute(ctx, []string{"load", "products", "--backlog", "10", "--page", "5"}) }()
	testenv.Eventually(t, time.Minute, func() bool {
		return strings.Contains(errOut.String(), "s for the leader to carry what is written: see weft status")
	}, "the load says that it waits")
	cancel()
	if code := <-ended; code != exitTryAgain {
		t.Errorf("exit code of an interrupted load: got %d, want %d", code, exitTryAgain)
	}
}
