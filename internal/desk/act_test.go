package desk

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/pki"
)

// stage is a desk with actions that runs. alice is an operator, bob is not. It acts with the
// rights of an instance alone, and reads by read-only sessions.
type stage struct {
	*rig
	url   string
	stop  func() error
	level string
}

func perform(t *testing.T, change ...func(*Options)) *stage {
	t.Helper()
	st := &stage{level: "info"}
	file := filepath.Join(t.TempDir(), "web.yml")
	text := "basic_auth_users:\n"
	for _, name := range []string{"alice", "bob"} {
		hash, err := bcrypt.GenerateFromPassword([]byte("of "+name), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		text += "  " + name + ": " + string(hash) + "\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	st.rig = setup(t, append([]func(*Options){func(o *Options) {
		o.WebConfig, o.Actions, o.Operators, o.Timeout = file, true, "carol.example,alice", 10*time.Second
		o.Level = LogLevel{Show: func() string { return st.level }, Change: func(to, _ string) error { st.level = to; return nil }}
		user := testenv.Runner(t, o.DB.(*pgxpool.Pool).Config().ConnString())
		dsn := testenv.As(t, o.DB.(*pgxpool.Pool).Config().ConnString(), user)
		o.ActDB = testenv.Pool(t, dsn)
		o.DB = readOnly(t, dsn)
	}}, change...)...)
	st.url, st.stop = st.running(t)
	return st
}

// readOnly opens sessions like those of the page.
func readOnly(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// ask sends a request in the name of user, and follows where it leads.
func (st *stage) ask(t *testing.T, user, method, path string, form url.Values, change ...func(*http.Request)) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, st.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, "of "+user)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, f := range change {
		f(req)
	}
	return send(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, req)
}

func send(t *testing.T, client *http.Client, req *http.Request) (int, string) {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// preview returns the form that an action's preview gives alice, with a reason filled in.
func (st *stage) preview(t *testing.T, path string) url.Values {
	t.Helper()
	code, body := st.ask(t, "alice", "GET", path, nil, func(req *http.Request) { req.Header.Set("Accept", "application/json") })
	var p plan
	if err := json.Unmarshal([]byte(body), &p); err != nil || code != http.StatusOK {
		t.Fatalf("%s: got %d, %v: %s", path, code, err, body)
	}
	form := url.Values{"why": {"mapping fixed"}}
	for name, value := range p.Fields {
		form.Set(name, value)
	}
	return form
}

// does confirms an action, waits for its end, and wants words in its result.
func (st *stage) does(t *testing.T, form url.Values, want ...string) {
	t.Helper()
	body := st.acts(t, form, func(body string) bool { return !strings.Contains(body, "<strong>running</strong>") })
	has(t, form.Get("action"), body, append([]string{"<strong>done</strong>", "mapping fixed", "alice"}, want...)...)
}

// acts confirms an action, and returns its result once that is as wanted.
func (st *stage) acts(t *testing.T, form url.Values, wanted func(body string) bool) string {
	t.Helper()
	code, body := st.ask(t, "alice", "POST", "/act", form)
	if code != http.StatusOK {
		t.Fatalf("%v: got %d: %s", form, code, body)
	}
	job := regexp.MustCompile(`/result\?job=\d+`).FindString(body)
	testenv.Eventually(t, func() bool {
		if !wanted(body) {
			body = st.seen(t, job)
		}
		return wanted(body)
	}, "the result of "+form.Get("action"))
	return body
}

func (r *rig) one(t *testing.T, sql string) (text string) {
	t.Helper()
	if err := r.pool.QueryRow(t.Context(), "select ("+sql+")::text").Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// dead writes dead letters of books, the n-th with version n.
func (r *rig) dead(t *testing.T, n int) {
	t.Helper()
	r.exec(t, fmt.Sprintf(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, attempts, error_reason, error, updated_at)
		select ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 'book', gen_random_uuid(), 'upsert', n, 'failed', 1,
		       case when n %% 2 = 0 then 'es_4xx' else 'unknown_exception' end, 'field ' || n, now() - interval '1 hour' from generate_series(1, %d) n`, n))
}

func deadLetter(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

const (
	failedNow    = "select count(*) from search_outbox_events where status = 'failed' and discarded_at is null"
	pendingNow   = "select count(*) from search_outbox_events where status = 'pending'"
	discardedNow = "select count(*) from search_outbox_events where discarded_at is not null"
	search       = "search_index_to_elastic"
)

func (r *rig) wantCounts(t *testing.T, when, failed, pending, discarded string) {
	t.Helper()
	if f, p, d := r.one(t, failedNow), r.one(t, pendingNow), r.one(t, discardedNow); f != failed || p != pending || d != discarded {
		t.Errorf("%s: %s failed, %s pending, %s discarded; want %s, %s, %s", when, f, p, d, failed, pending, discarded)
	}
}

func TestOneSelectedAndFilteredDeadLettersAreReplayedAndDiscarded(t *testing.T) {
	t.Parallel()
	st := perform(t)
	st.dead(t, 20)
	act := "/act?projection=" + search + "&action="
	has(t, "list", st.seen(t, "/failed"), "Replay selected", "Discard all that the filter finds", `name="id" value="`+deadLetter(1)+`"`)
	has(t, "event", st.seen(t, "/event?id="+deadLetter(1)), `<button name="action" value="replay">`)

	st.does(t, st.preview(t, act+"replay&id="+deadLetter(1)), "1 of 1 replayed; nobody leads")
	st.wantCounts(t, "after the replay of one", "19", "1", "0")
	st.does(t, st.preview(t, act+"discard&id="+deadLetter(2)+"&id="+deadLetter(3)), "finished: 2 of 2 discarded")
	st.wantCounts(t, "after the discard of two", "17", "1", "2")
	st.does(t, st.preview(t, act+"discard_all&reason=es_4xx&since=2h&entity=book&text=FIELD"), "9 of 9 discarded")
	st.wantCounts(t, "after the discard by a filter", "8", "1", "11")
	st.does(t, st.preview(t, act+"replay_all"), "8 of 8 replayed")
	st.wantCounts(t, "after the replay of all", "0", "9", "11")
	st.does(t, st.preview(t, act+"replay_all&discarded=yes&reason=es_4xx"), "10 of 10 replayed")
	st.wantCounts(t, "after the replay of discarded ones", "0", "19", "1")

	audit := st.one(t, "select string_agg(action || ' ' || count || ' ' || actor || ' ' || why, ', ' order by id) from weft_audit")
	if want := "replay 1 alice mapping fixed, discard 2 alice mapping fixed, discard 9 alice mapping fixed, replay 8 alice mapping fixed, replay 10 alice mapping fixed"; audit != want {
		t.Errorf("audit: got %s, want %s", audit, want)
	}
	if detail := st.one(t, "select detail->'selector'->>'text' || (detail->'selector' ? 'until') from weft_audit where count = 9"); detail != "FIELDtrue" {
		t.Errorf("audit of the filter: got %s, want its text and the time of the preview", detail)
	}
	if code, body := st.ask(t, "alice", "GET", "/api/result", nil); code != 200 || strings.Count(body, `"state": "done"`) != 5 {
		t.Errorf("results: got %d: %s", code, body)
	}
}

// An adopted table may have dead letters that do not say when they failed.
func TestDeadLettersWithoutATimeAreNotPassedOver(t *testing.T) {
	t.Parallel()
	st := perform(t)
	st.dead(t, 120)
	st.exec(t, "alter table search_outbox_events alter updated_at drop not null")
	st.exec(t, "update search_outbox_events set updated_at = case when id::text < '"+deadLetter(60)+"' then null when id::text < '"+deadLetter(110)+"' then 'infinity'::timestamptz else updated_at end")
	seen, path := 0, "/api/failed"
	for path != "" {
		var l lettersView
		if err := json.Unmarshal([]byte(st.seen(t, path)), &l); err != nil {
			t.Fatal(err)
		}
		seen += len(l.Listed)
		if path = ""; l.Next != "" {
			path = "/api/failed?after=" + url.QueryEscape(l.Next)
		}
	}
	if seen != 120 {
		t.Errorf("the pages list %d dead letters, want 120", seen)
	}
	st.exec(t, "update search_outbox_events set updated_at = now() where updated_at = 'infinity'")
	st.does(t, st.preview(t, "/act?projection="+search+"&action=replay&id="+deadLetter(1)), "1 of 1 replayed")
	st.does(t, st.preview(t, "/act?projection="+search+"&action=replay_all"), "119 of 119 replayed")
}

// seen returns a page as alice sees it.
func (st *stage) seen(t *testing.T, path string) string {
	t.Helper()
	code, body := st.ask(t, "alice", "GET", path, nil)
	if code != http.StatusOK {
		t.Fatalf("%s: got %d: %s", path, code, body)
	}
	return body
}

func TestActionOnAllIsRefusedWhenTheCountHasChangedSinceThePreview(t *testing.T) {
	t.Parallel()
	st := perform(t)
	st.dead(t, 5)
	for _, action := range []string{"replay_all", "discard_all"} {
		form := st.preview(t, "/act?action="+action+"&projection="+search)
		st.exec(t, "update search_outbox_events set status = 'done' where id = (select min(id::text)::uuid from search_outbox_events where status = 'failed')")
		before := st.one(t, failedNow)
		code, body := st.ask(t, "alice", "POST", "/act", form)
		if code != http.StatusConflict || !strings.Contains(body, "nothing was done") || !strings.Contains(body, "This is the new preview") {
			t.Errorf("%s: got %d: %s", action, code, body)
		}
		if got := st.one(t, failedNow); got != before || st.one(t, "select count(*) from weft_audit") != "0" {
			t.Errorf("%s: %s are in failed, want %s and no audit", action, got, before)
		}
	}
	// What fails after the preview is neither counted nor touched.
	form := st.preview(t, "/act?action=replay_all&projection="+search)
	st.exec(t, "insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, attempts, updated_at) values (gen_random_uuid(), 'late', gen_random_uuid(), 'upsert', 9, 'failed', 1, clock_timestamp())")
	st.does(t, form, "3 of 3 replayed")
	if got := st.one(t, "select string_agg(entity_type, ',') from search_outbox_events where status = 'failed'"); got != "late" {
		t.Errorf("in failed: %s, want the late one alone", got)
	}
	if code, _ := st.ask(t, "alice", "POST", "/act", form); code != http.StatusConflict {
		t.Errorf("the same form again: got %d, want 409", code)
	}
}

// Two operators have the previews of one dead letter on their screens; the second does not undo what the first did.
func TestActionOnADeadLetterIsRefusedWhenSomebodyHasDiscardedIt(t *testing.T) {
	t.Parallel()
	st := perform(t)
	st.dead(t, 1)
	replay, discard := "/act?action=replay&projection="+search+"&id="+deadLetter(1), "/act?action=discard&projection="+search+"&id="+deadLetter(1)
	late := []url.Values{st.preview(t, replay), st.preview(t, discard)}
	st.does(t, st.preview(t, discard), "1 of 1 discarded")
	for _, form := range late {
		code, body := st.ask(t, "alice", "POST", "/act", form)
		if code != http.StatusConflict || !strings.Contains(body, "1 event, 1 of them discarded") {
			t.Errorf("%s: got %d: %s", form.Get("action"), code, body)
		}
	}
	st.wantCounts(t, "after the refusals", "0", "0", "1")
	st.does(t, st.preview(t, replay), "1 of 1 replayed") // who sees that it is discarded may undo that
}

func TestPauseResumeHandOverAndLogLevel(t *testing.T) {
	t.Parallel()
	st := perform(t)
	pause, resume := "/act?action=pause&projection="+search, "/act?action=resume&projection="+search
	if code, body := st.ask(t, "alice", "GET", resume, nil); code != http.StatusConflict || !strings.Contains(body, "is not paused") {
		t.Errorf("resume of what runs: got %d: %s", code, body)
	}
	form := st.preview(t, pause)
	st.does(t, form, "paused: the leader leases nothing more")
	if by := st.one(t, "select paused_by || ': ' || reason from weft_pause"); by != "alice: mapping fixed" {
		t.Errorf("paused by %s", by)
	}
	has(t, "overview", st.seen(t, "/"), "Paused by <bdi>alice</bdi>")
	if code, _ := st.ask(t, "alice", "POST", "/act", form); code != http.StatusConflict {
		t.Errorf("pause again: got %d, want 409", code)
	}
	st.does(t, st.preview(t, resume), "resumed")
	// Somebody has pasted a reason with characters that are not seen.
	st.exec(t, "insert into weft_pause (group_name, projection, paused_at, paused_by, reason) values ('books', '"+search+"', now(), 'bob', E'INC\u200b-7 \U0001F468\u200d\U0001F527')")
	st.does(t, st.preview(t, resume), "resumed")

	if code, body := st.ask(t, "alice", "GET", "/act?action=resign", nil); code != http.StatusConflict || !strings.Contains(body, "nobody leads") {
		t.Errorf("hand-over without a leader: got %d: %s", code, body)
	}
	st.lead(t, "a", 3)
	if code, body := st.ask(t, "alice", "GET", "/act?action=resign", nil); code != http.StatusConflict || !strings.Contains(body, "no standby was seen") {
		t.Errorf("hand-over without a standby: got %d: %s", code, body)
	}
	st.exec(t, `insert into weft_instance (group_name, instance, role, version, host, pid, started_at, seen_at) values ('books', 'b', 'standby', '1', 'h', 1, now(), now())`)
	code, body := st.ask(t, "alice", "POST", "/act", st.preview(t, "/act?action=resign"))
	if code != http.StatusOK || !strings.Contains(body, "<strong>running</strong>") {
		t.Errorf("hand-over: got %d: %s", code, body)
	}
	testenv.Eventually(t, func() bool {
		return st.one(t, "select coalesce(max(resign_epoch || resign_by), '') from weft_leader") == "3alice"
	}, "the request")
	st.exec(t, "update weft_leader set epoch = 4, instance = 'b', acquired_at = clock_timestamp()")
	testenv.Eventually(t, func() bool { return strings.Contains(st.seen(t, "/result"), "b leads in epoch 4") }, "the new leader in the result")

	st.does(t, st.preview(t, "/act?action=log_level&level=debug"), "the level is debug")
	if code, body := st.ask(t, "alice", "POST", "/log/level", url.Values{"level": {"warn"}, "why": {"too much"}}); code != http.StatusOK || st.level != "warn" {
		t.Errorf("got %d and level %s: %s", code, st.level, body)
	}
	if _, body := st.ask(t, "bob", "GET", "/log/level", nil); !strings.Contains(body, `"warn"`) {
		t.Errorf("level: got %s", body)
	}
	if got := st.one(t, "select string_agg(actor || ' ' || (detail->>'from') || '>' || (detail->>'to'), ', ' order by id) from weft_audit where action = 'log_level'"); got != "alice info>debug, alice debug>warn" {
		t.Errorf("audit: %s", got)
	}
}

// forms are one request for each action.
func forms() []url.Values {
	var all []url.Values
	for _, text := range []string{
		"action=replay&id=" + deadLetter(1), "action=discard&id=" + deadLetter(1), "action=replay_all", "action=discard_all", "action=pause", "action=resume", "action=resign", "action=log_level&level=debug",
	} {
		v, _ := url.ParseQuery(text + "&why=x&state=5+events&projection=" + search)
		all = append(all, v)
	}
	return all
}

func TestActionsAreRefusedWithoutRights(t *testing.T) {
	t.Parallel()
	on := perform(t)
	off := perform(t, func(o *Options) { o.Actions = false })
	var tried []string
	for _, form := range forms() {
		tried = append(tried, form.Get("action"))
		for _, tc := range []struct {
			st         *stage
			user       string
			get, post  int
			change     func(*http.Request)
			whatIsSaid string
		}{
			{on, "", 401, 401, nil, "Unauthorized"},
			{on, "bob", 403, 403, nil, "bob may read this page, not act"},
			{on, "mallory", 401, 401, nil, "Unauthorized"},
			{off, "alice", 403, 405, nil, "only reads"},
			{on, "alice", 421, 421, func(r *http.Request) { r.Host = "evil.example" }, "no such name"},
			{on, "alice", 0, 403, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }, "another page"},
			{on, "alice", 0, 403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, "another page"},
			{on, "alice", 0, 403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, "another page"},
		} {
			if tc.change == nil {
				tc.change = func(*http.Request) {}
			}
			if code, body := tc.st.ask(t, tc.user, "POST", "/act", form, tc.change); code != tc.post || !strings.Contains(body, tc.whatIsSaid) {
				t.Errorf("%s posted by %q: got %d, want %d and %q: %s", form.Get("action"), tc.user, code, tc.post, tc.whatIsSaid, body)
			}
			if code, _ := tc.st.ask(t, tc.user, "GET", "/act?"+form.Encode(), nil, tc.change); tc.get != 0 && code != tc.get {
				t.Errorf("%s previewed by %q: got %d, want %d", form.Get("action"), tc.user, code, tc.get)
			}
		}
	}
	for name := range actions() {
		if !strings.Contains(strings.Join(tried, " ")+" ", name+" ") {
			t.Errorf("action %s is not tried", name)
		}
	}
	for _, st := range []*stage{on, off} {
		if got := st.one(t, "select count(*) from weft_audit") + st.one(t, "select count(*) from weft_pause") + st.level; got != "00info" {
			t.Errorf("something was changed: %s", got)
		}
	}
	for _, path := range []string{"/", "/failed", "/settings"} {
		if _, body := on.ask(t, "bob", "GET", path, nil); strings.Contains(body, "/act") {
			t.Errorf("%s offers bob an action", path)
		}
	}
}

func TestActionNeedsAReasonAndKnownInput(t *testing.T) {
	t.Parallel()
	st := perform(t)
	st.dead(t, 1)
	for text, want := range map[string]string{
		"action=replay_all&state=1+events":                      "the reason: must not be empty",
		"action=replay_all&state=1+events&why=a%1Bb":            "characters that are not seen",
		"action=replay_all&why=" + strings.Repeat("x", 1001):    "must not be longer",
		"action=drop&why=x":                                     "there is no action",
		"action=replay&why=x":                                   "no event is selected",
		"action=replay&why=x&id=nope":                           "is no id of an event",
		"action=replay_all&why=x&projection=nope":               "this instance has",
		"action=log_level&why=x&level=loud":                     "want debug, info",
		"action=discard_all&why=x&reason=nope":                  "none of the reasons",
		"action=replay&why=x&id=" + strings.Repeat("1,", 70000): "the form cannot be read",
	} {
		form, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		if code, body := st.ask(t, "alice", "POST", "/act", form); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%.60s: got %d, want %q: %s", text, code, want, body)
		}
	}
	st.wantCounts(t, "after refusals", "1", "0", "0")
}

func TestActionsNeedALoginOnLoopback(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"": "needs desk.web_config", "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n": "neither basic_auth_users"} {
		o := Options{Listen: "127.0.0.1:0", Actions: true, Operators: "alice", Health: admin.NewHealth("g", "a"), Log: zap.NewNop()}
		if file != "" {
			o.WebConfig = webConfig(t, file)
		}
		if _, err := Listen(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", file, err, want)
		}
	}
}

func TestRoleEndsWhenTheLoginIsSwitchedOff(t *testing.T) {
	t.Parallel()
	st := perform(t)
	form := st.preview(t, "/act?action=pause&projection="+search)
	if err := os.WriteFile(st.o.WebConfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, body := st.ask(t, "alice", "POST", "/act", form); code != http.StatusForbidden || !strings.Contains(body, "does not know who you are") {
		t.Errorf("got %d: %s", code, body)
	}
	if n := st.one(t, "select count(*) from weft_pause"); n != "0" {
		t.Error("somebody without a login has paused it")
	}
}

// With certificates alone, a client's Authorization header says nothing.
func TestCertificateNamesThePersonAndAForgedHeaderDoesNot(t *testing.T) {
	t.Parallel()
	authority, err := pki.New("clients")
	if err != nil {
		t.Fatal(err)
	}
	file := webConfig(t, "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: clients.pem\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "clients.pem"), authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	st := perform(t, func(o *Options) { o.WebConfig = file })
	client := func(host string) *http.Client {
		pair, err := authority.Issue("alice", host) // the common name is no name here
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}}}}
	}
	for _, tc := range []struct {
		host string
		want int
		says string
	}{{"dave.example", 403, "dave.example may read this page, not act"}, {"carol.example", 200, "carol.example"}} {
		form := url.Values{"action": {"pause"}, "projection": {search}, "state": {"running"}, "why": {"x"}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.Replace(st.url, "http:", "https:", 1)+"/act", strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.SetBasicAuth("alice", "of alice") // forged: nobody verifies it
		if code, body := send(t, client(tc.host), req); code != tc.want || !strings.Contains(body, tc.says) {
			t.Errorf("%s: got %d, want %d: %s", tc.host, code, tc.want, body)
		}
	}
	if by := st.one(t, "select string_agg(paused_by, ',') from weft_pause"); by != "carol.example" {
		t.Errorf("paused by %s, want carol.example", by)
	}
	u := &url.URL{Scheme: "spiffe", Host: "ops"}
	for want, cert := range map[string]*x509.Certificate{"": {}, "spiffe://ops": {URIs: []*url.URL{u}}, "h.example": {DNSNames: []string{"h.example"}, URIs: []*url.URL{u}},
		"ops@example": {EmailAddresses: []string{"ops@example"}, DNSNames: []string{"h.example"}}} {
		if got := nameOf(cert); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestReplayUnderWayIsShownAndEndsWithTheDesk(t *testing.T) {
	t.Parallel()
	st := perform(t)
	st.dead(t, 3)
	st.lead(t, "a", 1) // so that the replay is watched, and nobody settles
	body := st.acts(t, st.preview(t, "/act?action=replay_all&projection="+search), func(body string) bool {
		return strings.Contains(body, "3 of 3 sent, 0 done, 0 failed again, 3 not settled yet")
	})
	has(t, "result", body, "<strong>running</strong>", "data-running")
	if err := st.stop(); err != nil {
		t.Error(err)
	}
	if got := st.one(t, "select detail->>'outcome' || (detail->>'open') from weft_audit"); got != "interrupted3" {
		t.Errorf("audit: got %s, want that it was interrupted with 3 open", got)
	}
}

func TestWorkersAreBounded(t *testing.T) {
	t.Parallel()
	s := &Server{o: Options{Diagnose: error.Error}, log: zap.NewNop(), jobs: jobs{queue: make(chan func(context.Context))}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nobody waits for results
	release := make(chan struct{})
	idle := make(chan struct{}, jobsAtOnce+1)
	worker, end := context.WithCancel(t.Context())
	for range jobsAtOnce {
		go func() { s.jobs.work(worker); idle <- struct{}{} }()
	}
	slow := action{run: func(*Server, context.Context, plan, *Job) (string, error) { <-release; return "", errors.New("no") }}
	for i := range jobsAtOnce {
		testenv.Eventually(t, func() bool { return s.start(ctx, slow, plan{Action: "x"}, "alice", "y") != nil }, fmt.Sprint("worker ", i))
	}
	if s.start(ctx, slow, plan{}, "alice", "y") != nil || len(s.jobs.list(0)) != jobsAtOnce {
		t.Errorf("one more is taken; kept: %d", len(s.jobs.list(0)))
	}
	close(release)
	end()
	for range jobsAtOnce {
		<-idle
	}
	for _, j := range s.jobs.list(0) {
		if j.State != jobFailed || j.EndedAt == nil {
			t.Errorf("got %+v, want a failed job", j)
		}
	}
	for range 2 * jobsKept {
		now := time.Now()
		j := s.jobs.add(Job{})
		s.jobs.change(func() { j.EndedAt = &now })
	}
	if n := len(s.jobs.list(0)); n != jobsKept {
		t.Errorf("%d jobs are kept, want %d", n, jobsKept)
	}
}

// secrets of the login never leave.
func TestNoAnswerHoldsAPassword(t *testing.T) {
	t.Parallel()
	st := perform(t)
	hash := regexp.MustCompile(`\$2[aby]\$`)
	for _, path := range []string{"/", "/settings", "/api/settings", "/result", "/act?action=pause&projection=" + search} {
		if _, body := st.ask(t, "alice", "GET", path, nil); hash.MatchString(body) || strings.Contains(body, "of alice") || strings.Contains(body, secret) {
			t.Errorf("%s shows a secret", path)
		}
	}
}
