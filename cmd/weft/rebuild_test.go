package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// search asks for product 1500, which nobody changes, through the alias until the function that it
// returns is called, which tells how often it has asked. A search that fails, or finds nothing,
// fails the test.
func (s *shop) search() (stop func() int64) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var g sync.WaitGroup
	var n atomic.Int64
	g.Go(func() {
		for range testenv.Every(ctx, 5*time.Millisecond) {
			res, err := http.Get(testenv.ElasticURL(s.t) + "/" + s.index + "/_search?q=_id:1500&filter_path=hits.total.value")
			if err != nil {
				s.t.Errorf("search: %v", err)
				return
			}
			text, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(text), `"value":1`) {
				s.t.Errorf("search: %s: %s %v", res.Status, text, err)
				return
			}
			n.Add(1)
		}
	})
	return func() int64 { cancel(); g.Wait(); return n.Load() }
}

// rebuilt runs a command of weft rebuild and returns what it prints.
func (s *shop) rebuilt(code int, args ...string) (out records.Rebuild) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testenv.Limit)
	defer cancel()
	var stdout, stderr buffer
	a := &app{environ: s.env, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, signals: notify}
	if got := a.execute(ctx, append([]string{"rebuild"}, args...)); got != code {
		s.t.Fatalf("rebuild %v: got exit code %d, %s and %s, want %d", args, got, &stdout, &stderr, code)
	}
	if strings.Contains(stderr.String(), "does not run") {
		s.t.Errorf("rebuild %v: %s, although the leader runs it", args, &stderr)
	}
	if text := stdout.String(); text != "" {
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			s.t.Fatalf("rebuild %v: %s: %v", args, text, err)
		}
	}
	return out
}

// indexes returns the indexes behind the alias, and those of its numbered names.
func (s *shop) indexes() (behind, all []string) {
	s.t.Helper()
	res, err := http.Get(testenv.ElasticURL(s.t) + "/" + s.index + "-v*/_alias")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var found map[string]struct {
		Aliases map[string]any `json:"aliases"`
	}
	if err := json.NewDecoder(res.Body).Decode(&found); err != nil {
		s.t.Fatal(err)
	}
	for name, index := range found {
		all = append(all, strings.TrimPrefix(name, s.index))
		if index.Aliases[s.index] != nil {
			behind = append(behind, strings.TrimPrefix(name, s.index))
		}
	}
	return behind, all
}

// filled returns a shop of n products that are all in the index, with a running instance.
func filled(t *testing.T, n int) *shop {
	t.Helper()
	s := newShop(t)
	s.exec(fmt.Sprintf("insert into shop.product (id, name, price) select i, 'product ' || i, i * 1.10 from generate_series(51, %d) i", n))
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	return s
}

// A rebuild beside live writes leads to a new index that equals the source; each search finds what
// is there; the old index is kept until it is dropped, and its name is not used again.
func TestRebuildUnderLiveWrites(t *testing.T) {
	t.Parallel()
	n := testenv.Volume(2500, 6000)
	s, rows := filled(t, n), int64(n)
	s.verified(0)
	stop, searched := s.write(), s.search()
	done := s.rebuilt(0, "products", "--by", "alice", "--why", "new shards", "--json")
	stop()
	if n := searched(); n < 50 {
		t.Errorf("%d searches, want many", n)
	}
	if done.Phase != "done" || done.OldIndex != s.index+"-v1" || done.NewIndex != s.index+"-v2" || done.Filled < rows-100 || done.Redo != 0 || done.Note != "" {
		t.Errorf("got %+v", done)
	}
	s.settled()
	if r := s.verified(0); r.Rows != rows || r.Documents < rows-100 {
		t.Errorf("verify: %+v", r)
	}
	s.exec("update shop.product set name = 'after the move' where id = 2000")
	s.settled()
	if d := s.document("2000"); d["name"] != "after the move" {
		t.Errorf("document after the move: %v", d)
	}
	if behind, all := s.indexes(); len(all) != 2 || fmt.Sprint(behind) != "[-v2]" {
		t.Errorf("alias leads to %v of %v", behind, all)
	}
	s.rebuilt(exitRefused, "products", "--why", "once more")
	s.rebuilt(0, "drop-old", "products", "--why", "good", "--json")
	if behind, all := s.indexes(); len(all) != 1 || fmt.Sprint(behind) != "[-v2]" {
		t.Errorf("alias leads to %v of %v", behind, all)
	}
	if again := s.rebuilt(0, "products", "--why", "once more", "--json"); again.NewIndex != s.index+"-v3" {
		t.Errorf("got %+v", again)
	}
	if n := s.count("select count(*) from weft_audit where action like 'rebuild%' and why <> ''"); n != 3 {
		t.Errorf("%d entries in the audit, want 3", n)
	}
	if r := weft(t, s.env, "audit", "--action", "rebuild_drop_old"); r.code != 0 || !strings.Contains(r.out, "good") {
		t.Errorf("audit of the drop: got %+v", r)
	}
}

// Without a leader nobody begins a rebuild, and the command says so when it is ended.
func TestRebuildWithoutALeader(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ctx, interrupt := context.WithCancel(t.Context())
	var out, errOut buffer
	a := &app{environ: s.env, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, signals: notify}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, []string{"rebuild", "products", "--why", "new shards"}) }()
	testenv.Eventually(t, func() bool {
		return strings.Contains(errOut.String(), "nobody leads group shop: start weft run") && strings.Contains(errOut.String(), "requested")
	}, "why nothing happens, and the request")
	interrupt()
	if got := <-code; got != exitInconclusive || !strings.HasSuffix(errOut.String(), "weft: no leader has begun the rebuild yet, and the request stands: see `weft status`\n") {
		t.Errorf("got code %d and %s, want %d", got, &errOut, exitInconclusive)
	}
}

// The kind of a failure decides the code, whatever the note says; a leader of schema version 6 writes the note alone.
func TestRebuildThatFails(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, tc := range []struct {
		failure, note string
		code          int
	}{
		{"'refused'", "an aliased text", exitRefused},
		{"'other'", "no access to the index was asked for", exitBad},
		{"failure", "no access: user \"x\" lacks manage", exitRefused},
		{"failure", "the new index was deleted", exitBad},
		{"'refused'", "so that the next request has a kind to forget", exitRefused},
		{"failure", "ask again", exitBad},
	} {
		var out, errOut buffer
		a := &app{environ: s.env, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, signals: notify}
		code := make(chan int, 1)
		go func() { code <- a.execute(t.Context(), []string{"rebuild", "products", "--by", "alice", "--why", "x"}) }()
		testenv.Eventually(t, func() bool {
			return s.count("with failed as (update weft_rebuild set phase = 'failed', finished_at = now(), failure = "+tc.failure+", note = '"+tc.note+"' where phase = 'requested' returning 1) select count(*) from failed") == 1
		}, "a request")
		if got := <-code; got != tc.code || !strings.Contains(errOut.String(), "the rebuild has failed: "+tc.note) {
			t.Errorf("failure %s, note %q: got code %d and %s, want %d", tc.failure, tc.note, got, &errOut, tc.code)
		}
	}
}

// The time that is left follows from the time in which somebody led, and not from that in which the shard moved.
func TestRebuildStatusLeavesOutTheTimeWithoutALeader(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec(`insert into weft_rebuild (projection, phase, replace_plain, new_index, group_name, source_rows, filled, asked_by, why, began_at, updated_at)
			values ('products', 'filling', false, 'products-v2', 'g', 300, 100, 'alice', 'x', now() - interval '3 hours', now());
		insert into weft_term (group_name, epoch, instance, acquired_at, ended_at) values ('other', 1, 'a', now() - interval '2 hours', null),
			('g', 1, 'a', now() - interval '9 hours', now() - interval '8 hours'), ('g', 2, 'a', now() - interval '4 hours', now() - interval '170 minutes'),
			('g', 3, 'b', now() - interval '10 minutes', null)`)
	r := weft(t, s.env, "rebuild", "status", "products", "--json")
	var got records.Rebuild
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || got.ETASecs == nil {
		t.Fatalf("got %+v, %v", r, err)
	}
	if led := 20 * time.Minute; *got.ETASecs < 2*led.Seconds() || *got.ETASecs > 3*led.Seconds() {
		t.Errorf("got %.0f s left, want twice the %s in which somebody has led since it was asked for", *got.ETASecs, led)
	}
}

// A rebuild of a projection that the leader does not run waits, and the command names who leads.
func TestRebuildThatTheLeaderDoesNotRun(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	other := *s
	other.env = append(slices.Clone(s.env), "WEFT_PROJECTIONS=chronicle_events_to_entries", "WEFT_INSTANCE=clerk")
	other.running()
	testenv.Eventually(t, func() bool { return weft(t, s.env, "status").code == exitOK }, "an instance leads")
	r := weft(t, s.env, "rebuild", "products", "--why", "new shards", "--detach")
	if want := "weft: clerk leads group shop and does not run products, or has not begun to: the request waits until an instance with it in WEFT_PROJECTIONS leads\n"; r.code != exitOK || !strings.Contains(r.errOut, want) {
		t.Errorf("got code %d and %s, want %s", r.code, r.errOut, want)
	}
}

// A paused rebuild does not go on, and live events still go to both indexes; one that is ended
// leaves the old index alone.
func TestRebuildIsPausedAndEnded(t *testing.T) {
	t.Parallel()
	s := filled(t, 6000)
	s.rebuilt(exitRefused, "pause", "products", "--why", "there is none")
	s.exec("delete from weft_rebuild; insert into weft_rebuild (projection, phase, replace_plain, asked_by, why, began_at, updated_at) values ('products', 'done', false, 'test', 'written again in place', now(), now())")
	if r := weft(t, s.env, "rebuild", "drop-old", "products", "--why", "tidy"); r.code != exitRefused || !strings.Contains(r.errOut, "no finished rebuild of it has left an old index") {
		t.Errorf("drop-old after a rebuild in place: got %+v", r)
	}
	s.exec("delete from weft_rebuild")
	s.exec("insert into weft_rebuild (projection, phase, paused, replace_plain, asked_by, why, began_at, updated_at) values ('products', 'requested', true, false, 'test', 'test', now(), now())")
	<-time.After(time.Second)
	if behind, all := s.indexes(); len(behind) != 1 || len(all) != 1 {
		t.Errorf("a paused rebuild has made an index: %v", all)
	}
	s.rebuilt(0, "resume", "products", "--why", "go", "--json")
	s.rebuilt(0, "pause", "products", "--why", "wait", "--json")
	got := s.rebuilt(0, "abort", "products", "--why", "enough", "--json")
	if got.Phase != "aborted" && got.Phase != "done" {
		t.Errorf("got %+v", got)
	}
	if got.Phase == "aborted" {
		if behind, all := s.indexes(); fmt.Sprint(behind, all) != "[-v1] [-v1]" {
			t.Errorf("alias leads to %v of %v", behind, all)
		}
	}
	s.exec("update shop.product set name = 'later' where id = 2000")
	s.settled()
	s.verified(0)
}

// A mapping with new fields alone is added to the index in place. One that an index cannot get
// stops the projection, with the field and the reason, until a rebuild was asked for.
func TestRebuildToAnotherMapping(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	run := func() (stop func() string) {
		r := start(t, runDaemon, s.env...)
		return func() string {
			r.signals <- syscall.SIGTERM
			<-r.code
			return r.errOut.String()
		}
	}
	stop := run()
	s.exec("update shop.product set price = price + 1")
	s.settled()
	stop()

	query := strings.Replace(shopQuery, "p.name, p.price", "p.name, p.price, p.id as number", 1)
	s.declare(query, strings.Replace(shopMapping, `{"name"`, `{"number": {"type": "long"}, "name"`, 1))
	stop = run()
	s.exec("update shop.product set price = price + 1 where id = 7")
	s.settled()
	if text := stop(); s.document("7")["number"] != 7.0 || !strings.Contains(text, "its next event is written, and `weft rebuild products` writes all") || !strings.Contains(text, `"event":"elastic.mapping_extended"`) {
		t.Errorf("document %v; log: %s", s.document("7"), text)
	}

	if got := s.verified(0); !strings.Contains(got.VersionsOnly, "the definition changed") || got.Rows != 50 {
		t.Errorf("verify of documents of another query: got %+v, want it to say so, and none to be corrupt", got)
	}

	s.declare(query, strings.NewReplacer(`{"name"`, `{"number": {"type": "keyword"}, "color": {"type": "keyword"}, "name"`).Replace(shopMapping))
	stop = run()
	s.exec("update shop.product set price = price + 1 where id = 8")
	testenv.Eventually(t, func() bool {
		return s.count("select count(*) from weft_leader where released_at is null") == 1
	}, "a leader")
	if done := s.rebuilt(0, "products", "--why", "number is no number", "--json"); done.Phase != "done" {
		t.Errorf("got %+v", done)
	}
	s.settled()
	if got := s.verified(0); got.VersionsOnly != "" {
		t.Errorf("verify after the rebuild: got %+v, want contents compared", got)
	}
	if text := stop(); !strings.Contains(text, "mapper [number] cannot be changed from type [long] to [keyword]") || !strings.Contains(text, "weft rebuild products") {
		t.Errorf("the log does not say which field, and what to do: %s", text)
	}
}

// A definition that changes while a rebuild goes on ends it: the new index has documents of the one before.
func TestRebuildOfADefinitionThatChanges(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec(`update shop.product set price = price + 1;
		create function hold() returns trigger language plpgsql as $$ begin new.paused := new.phase = 'verifying'; return new; end $$;
		create trigger hold before update on weft_rebuild for each row execute function hold()`)
	first := start(t, runDaemon, s.env...)
	s.settled()
	s.exec("insert into weft_rebuild (projection, phase, replace_plain, asked_by, why, began_at, updated_at) values ('products', 'requested', false, 'test', 'test', now(), now())")
	testenv.Eventually(t, func() bool { return s.count("select count(*) from weft_rebuild where paused") == 1 }, "a rebuild that is to be compared")
	first.signals <- syscall.SIGTERM
	<-first.code
	s.declare(strings.Replace(shopQuery, "p.name, p.price", "p.name || '!' as name, p.price", 1), shopMapping)
	s.exec("drop trigger hold on weft_rebuild; update weft_rebuild set paused = false")
	second := start(t, runDaemon, s.env...)
	testenv.Eventually(t, func() bool { return s.count("select count(*) from weft_rebuild where finished_at is not null") == 1 }, "an end of the rebuild")
	if behind, all := s.indexes(); s.count("select count(*) from weft_rebuild where phase = 'failed' and note like '%definition has changed%'") != 1 || fmt.Sprint(behind, all) != "[-v1] [-v1]" {
		t.Errorf("alias leads to %v of %v; document %v", behind, all, s.document("7"))
	}
	if done := s.rebuilt(0, "products", "--why", "again", "--json"); done.Phase != "done" || !strings.HasSuffix(fmt.Sprint(s.document("7")["name"]), "!") {
		t.Errorf("got %+v and document %v", done, s.document("7"))
	}
	second.signals <- syscall.SIGTERM
	<-second.code
}
