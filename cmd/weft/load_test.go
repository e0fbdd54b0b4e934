package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

func (s *shop) count(sql string) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), sql).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// asked runs weft load in the background; what it returns waits for its exit code.
func (s *shop) asked(ctx context.Context) (out, errOut *buffer, code func() int) {
	out, errOut = &buffer{}, &buffer{}
	ended := make(chan int, 1)
	go func() {
		a := &app{environ: s.env, stdin: strings.NewReader(""), stdout: out, stderr: errOut,
			signals: func(...os.Signal) (<-chan os.Signal, func()) { return nil, func() {} }}
		ended <- a.execute(ctx, []string{"load", "products", "--json"})
	}()
	return out, errOut, func() int { return <-ended }
}

// Whoever loads before an instance runs is told what the load waits for. The command may be
// interrupted and run again at any time: one load goes on, and each row gets one version and no event.
func TestLoadIsFollowedWhereverItWasInterrupted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for range 3 {
		ctx, interrupt := context.WithCancel(t.Context())
		_, errOut, code := s.asked(ctx)
		testenv.Eventually(t, func() bool {
			return strings.Contains(errOut.String(), "nobody leads group shop: start weft run") && strings.Contains(errOut.String(), "products: load, filling; 0 of about")
		}, "the load says that it waits")
		interrupt()
		if got := code(); got != exitTryAgain || !strings.Contains(errOut.String(), "interrupted: the load goes on without this command; run it again to follow") {
			t.Errorf("interrupted: code %d, %s", got, errOut)
		}
	}
	if r := weft(t, s.env, "status"); !strings.Contains(r.out, "LOAD products: load, filling; 0 of about") {
		t.Errorf("status: %+v", r)
	}
	s.exec("update shop.product set name = 'changed' where id = 50") // by a trigger, before the load reads it
	s.running()
	if r := weft(t, s.env, "load", "products", "--json"); r.code != exitOK || !strings.Contains(r.out, `"rows": 50`) || !strings.Contains(r.out, `"events": 0`) {
		t.Errorf("load: %+v", r)
	}
	s.settled()
	if n, m := s.count("select count(*) from product_outbox_versions where version > 0"), s.count("select count(*) from product_outbox_events"); n != 50 || m != 1 {
		t.Errorf("%d versions of 50 rows and %d events, want the one of the change", n, m)
	}
	if n := s.count("select count(*) from weft_audit where action = 'load' and projection = 'products'"); n != 1 {
		t.Errorf("%d loads in the audit, want 1", n)
	}
	if s.document("50")["name"] != "changed" || s.document("49") == nil {
		t.Errorf("documents: %v and %v", s.document("50"), s.document("49"))
	}
	s.redeclare("product_outbox_events", "prodct_outbox_events")
	const missing = "table prodct_outbox_events does not exist: run `weft migrate up`, or `weft outbox create` for a table of your own"
	if r := weft(t, s.env, "load", "products"); r.code != exitConfig || !strings.Contains(r.errOut, missing) {
		t.Errorf("load of a table that is missing: %+v", r)
	}
	s.redeclare("prodct_outbox_events", "product_outbox_events")
	if r := weft(t, s.env, "load", "search_index_to_elastic"); r.code == exitOK || !strings.Contains(r.errOut, "table search_outbox_events was not made by `weft outbox create`: its application writes the first events itself") {
		t.Errorf("load of an outbox of the application: %+v", r)
	}
}

// A load whose leader has gone says so as long as it waits, and not how far it was; one that is interrupted says how far it is.
func TestLoadThatNobodyCarriesSaysSo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out, errOut, code := s.asked(ctx)
	testenv.Eventually(t, func() bool {
		return strings.Count(errOut.String(), "nobody leads group shop: start weft run, which carries the rows") == 2
	}, "the load says again that it waits")
	if n := strings.Count(errOut.String(), "filling"); n != 1 {
		t.Errorf("%s\ntells %d times how far it is, want once", errOut, n)
	}
	s.exec("update weft_rebuild set filled = 30")
	interrupt()
	if got := code(); got != exitTryAgain || !strings.Contains(out.String(), `"rows": 30,`) {
		t.Errorf("code %d, %s; want the rows that were read", got, out)
	}
}

// A follower waits for a database that is away, and says so.
func TestLoadWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	at := s.pool.Config().ConnConfig
	link, err := proxy.NewLink(net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	through, err := link.Through(at.ConnString())
	if err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "DATABASE_URL="+through)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	_, errOut, code := s.asked(ctx)
	testenv.Eventually(t, func() bool { return strings.Contains(errOut.String(), "filling") }, "the load is asked for")
	if err := link.Cut(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return strings.Contains(errOut.String(), "weft: waiting, since it may come back: ") }, "it says that the database is away")
	if err := link.Heal(); err != nil {
		t.Fatal(err)
	}
	s.running()
	if got := code(); got != exitOK {
		t.Errorf("code %d, %s", got, errOut)
	}
}

// lossy is Elasticsearch behind a server that carries every tenth bulk request and keeps its answer.
func (s *shop) lossy() string {
	target, err := url.Parse(testenv.ElasticURL(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	var n atomic.Int64
	to := httputil.NewSingleHostReverseProxy(target)
	to.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/_bulk") && n.Add(1)%10 == 0 {
			to.ServeHTTP(httptest.NewRecorder(), req)
			panic(http.ErrAbortHandler)
		}
		to.ServeHTTP(w, req)
	}))
	s.t.Cleanup(front.Close)
	return "ELASTIC_URL=" + front.URL
}

// A stop that cuts off the check of a declaration is no finding.
func TestStopDuringTheCheckIsNoFinding(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	checking := make(chan struct{}, 100)
	r := start(t, runDaemon, s.front(func(_ http.ResponseWriter, req *http.Request, _ string) bool {
		held := strings.Contains(req.URL.Path, "_simulate")
		if held {
			checking <- struct{}{}
			<-req.Context().Done()
		}
		return held
	})...)
	<-checking
	r.signals <- syscall.SIGTERM
	if code := <-r.code; code != 0 || strings.Contains(r.errOut.String(), "projection.finding") {
		t.Errorf("weft run ended with %d: %s", code, r.errOut)
	}
}

// Rows change and go while they are loaded, leaders lose their sessions, and answers get lost:
// in the end each document is that of its row, and what was deleted stays so.
func TestLoadUnderLiveWritesAndTakeovers(t *testing.T) {
	t.Parallel()
	for _, destination := range []string{"index", "table"} {
		t.Run(destination, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			if destination == "table" {
				s.intoTable()
			}
			s.exec("insert into shop.product (id, name, price) select i, 'product ' || i, i * 1.10 from generate_series(51, 12000) i; truncate product_outbox_events, product_outbox_versions; analyze shop.product")
			own := s.env
			for _, instance := range []string{"a", "b"} {
				s.env = append(slices.Clone(own), "WEFT_INSTANCE="+instance, s.lossy())
				s.running()
			}
			s.env = own
			stop, epoch := s.write(), func() int { return s.count("select coalesce(max(epoch), 0) from weft_term") }
			testenv.Eventually(t, func() bool { return epoch() > 0 }, "a leader")
			out, errOut, code := s.asked(t.Context())
			for i := range 4 {
				s.exec(fmt.Sprintf("delete from shop.variant where product_id %% 4 = %d and product_id > 100; delete from shop.product where id %% 20 = %[1]d and id > 100", i))
				led := epoch()
				s.exec("select pg_terminate_backend(lock_backend_pid) from weft_leader where released_at is null")
				testenv.Eventually(t, func() bool { return epoch() > led }, "the next leader")
			}
			if got := code(); got != exitOK || !strings.Contains(out.String(), `"rows": `) {
				t.Fatalf("load: code %d, %s and %s", got, out, errOut)
			}
			stop()
			s.settled()
			rows := s.count("select count(*) from shop.product where deleted_at is null")
			if got := s.verified(0); got.Differs() != 0 || got.Documents != int64(rows) {
				t.Errorf("%d rows have a document: %+v", rows, got)
			}
		})
	}
}

// intoTable has the declaration lead into a table in place of the index.
func (s *shop) intoTable() {
	s.t.Helper()
	s.exec("create table shop.card (entity_id bigint primary key, version bigint not null, name text, price numeric, variants jsonb)")
	s.redeclare("index: {name: "+s.index+", mapping: products.json}", "destination: {table: shop.card}")
}

// Rows that are larger together than what is held at once are loaded into a table, too.
func TestLoadOfLargeRowsIntoATable(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.intoTable()
	s.exec("update shop.product set name = repeat('x', 6 << 20) where id <= 6; truncate product_outbox_events, product_outbox_versions")
	s.running()
	if r := weft(t, s.env, "load", "products", "--json"); r.code != exitOK || !strings.Contains(r.out, `"rows": 50`) {
		t.Errorf("load: %+v", r)
	}
	if n := s.count("select count(*) from shop.card c join shop.product p on p.id = c.entity_id and p.name = c.name"); n != 50 {
		t.Errorf("rows of the table: %d, want 50", n)
	}
}

// redeclare replaces a part of the declaration.
func (s *shop) redeclare(from, to string) {
	s.t.Helper()
	text, err := os.ReadFile(s.file)
	if err == nil {
		err = os.WriteFile(s.file, []byte(strings.ReplaceAll(string(text), from, to)), 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// A load and a rebuild never run at the same time. A load leaves the indexes and the alias alone,
// and the old index of a rebuild before it.
func TestLoadBesideRebuilds(t *testing.T) {
	t.Parallel()
	s := filled(t, 200)
	s.rebuilt(0, "products", "--why", "new shards", "--json")
	s.exec("update weft_rebuild set phase = 'filling', paused = true, finished_at = null")
	if r := weft(t, s.env, "load", "products"); r.code != exitRefused || !strings.Contains(r.errOut, "a rebuild of products goes on, which writes all rows") {
		t.Errorf("load beside a rebuild: %+v", r)
	}
	s.exec("update weft_rebuild set phase = 'done', paused = false, finished_at = now()")
	before, all := s.indexes()
	s.exec("alter table shop.product disable trigger all; update shop.product set name = 'unseen' where id = 7; alter table shop.product enable trigger all")
	if r := weft(t, s.env, "load", "products"); r.code != 0 || !strings.HasPrefix(r.out, "products: 200 rows read, 0 events written in ") {
		t.Errorf("load: %+v", r)
	}
	if s.document("7")["name"] != "unseen" {
		t.Errorf("a load writes all rows anew: %v", s.document("7"))
	}
	after, still := s.indexes()
	if fmt.Sprint(before) != fmt.Sprint(after) || len(all) != len(still) {
		t.Errorf("alias leads to %v of %v, want %v of %v", after, still, before, all)
	}
	s.exec("update weft_rebuild set phase = 'filling', paused = true, finished_at = null") // the load, by a leader that has stopped
	s.rebuilt(exitRefused, "products", "--why", "beside a load")
	ctx, interrupt := context.WithCancel(t.Context())
	_, errOut, code := s.asked(ctx)
	testenv.Eventually(t, func() bool { return strings.Contains(errOut.String(), "load, filling, paused") }, "the paused load")
	s.rebuilt(0, "abort", "products", "--why", "enough", "--json")
	if got := code(); got != exitBad || !strings.Contains(errOut.String(), "the load has been aborted: `weft audit` says by whom and why") {
		t.Errorf("aborted: code %d, %s", got, errOut)
	}
	interrupt()
	s.rebuilt(0, "drop-old", "products", "--why", "good", "--json") // a load that was ended does not keep the old index
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Errorf("load: %+v", r)
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
		testenv.Eventually(t, ok, what)
		r.signals <- syscall.SIGTERM
		if code := <-r.code; code != 0 || t.Failed() {
			t.Errorf("weft run ended with %d: %s", code, r.errOut)
		}
		return r.errOut.String()
	}
	loaded := func() bool { return s.count("select count(*) from weft_progress where loaded_at is not null") == 1 }
	log := run("the first load", func() bool {
		return loaded() && s.count("select count(*) from product_outbox_events where status in ('done', 'failed')") == 40 && s.document("50") != nil
	})
	if n := s.count("select count(*) from product_outbox_events where status = 'failed' and error_reason = 'deterministic_exception' and error like '%price: NaN%'"); n != 40 {
		t.Errorf("%d of 40 bad rows are in failed", n)
	}
	var done struct{ Took string }
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"event":"load.done"`) {
			if err := json.Unmarshal([]byte(line), &done); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	took, err := time.ParseDuration(done.Took)
	if err != nil || strings.Contains(log, "breaker_open") {
		t.Errorf("log: %s", log)
	}
	if least := s.count("select floor(extract(epoch from finished_at - began_at) * 1000)::int from weft_rebuild"); took < time.Duration(least)*time.Millisecond {
		t.Errorf("the log says that the load took %v, and it took %d ms at least", took, least)
	}

	if n := s.count("select count(*) from product_outbox_events where tracestate = 'weft=load'"); n != 40 {
		t.Errorf("%d events of a load, want those of the bad rows", n)
	}
	s.exec("delete from product_outbox_versions where entity_id > 40") // as if these had never been loaded
	log = run("a live change", func() bool {
		s.exec("update shop.product set name = 'lamp' where id = 41 and name <> 'lamp'")
		return s.document("41")["name"] == "lamp"
	})
	if n := s.count("select count(*) from product_outbox_versions where entity_id > 41"); n != 0 || strings.Contains(log, "load.begun") {
		t.Errorf("a second load: %d versions, %s", n, log)
	}

	s.exec("update weft_progress set loaded_at = null; update weft_rebuild set phase = 'filling', entity_id = '45', finished_at = null") // as a leader that was killed leaves it
	log = run("the rest of the load", func() bool {
		return loaded() && s.count("select count(*) from product_outbox_events where status = 'pending'") == 0
	})
	if n := s.count("select count(*) from product_outbox_versions where entity_id > 41"); n != 5 || !strings.Contains(log, `"resumed":true`) {
		t.Errorf("resumed: %d rows loaded, want 5: %s", n, log)
	}

	s.exec("update weft_rebuild set phase = 'filling', entity_id = '', finished_at = null") // the bad rows once more
	run("a load that begins again", func() bool { return s.count("select count(*) from weft_rebuild where phase = 'done'") == 1 })
	if n := s.count("select count(*) from product_outbox_events where status = 'failed'"); n != 40 {
		t.Errorf("%d dead letters of 40 bad rows after two loads", n)
	}
}

// A load whose index cannot be made says why.
func TestLoadWithoutAnIndexSaysWhy(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.declare(shopQuery, strings.Replace(shopMapping, `{"type": "text"}`, `{"type": "txt"}`, 1))
	text, err := os.ReadFile(s.file)
	if err == nil {
		err = os.WriteFile(s.file, append(text, "    load: true\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, runDaemon, s.env...)
	var note string
	testenv.Eventually(t, func() bool {
		err := s.pool.QueryRow(t.Context(), "select note from weft_rebuild").Scan(&note)
		return err == nil && strings.Contains(note, "type [txt]")
	}, "what Elasticsearch refuses")
	if strings.Contains(note, "put the alias back") {
		t.Errorf("there is no alias to put back: %q", note)
	}
	r.signals <- syscall.SIGTERM
	if code := <-r.code; code != 0 {
		t.Errorf("weft run ended with %d: %.3000s", code, r.errOut)
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
	testenv.Eventually(t, func() bool {
		return strings.Contains(r.errOut.String(), "table product_outbox_events was not made by `weft outbox create`")
	}, "the reason in the log")
	s.exec("update shop.product set name = 'lamp' where id = 7")
	testenv.Eventually(t, func() bool { return s.document("7")["name"] == "lamp" }, "a live change")
	r.signals <- syscall.SIGTERM
	if code := <-r.code; code != 0 {
		t.Errorf("weft run ended with %d: %s", code, r.errOut)
	}
	if n := strings.Count(r.errOut.String(), "load.fault"); n != 1 {
		t.Errorf("the fault is logged %d times, want once", n)
	}
}
