package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

// A role that may not use the schema sees no tables there: they are not missing.
func TestCommandsWithoutTheSchema(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	runner, pool := testenv.Runner(t, url), testenv.Pool(t, url)
	role := pgx.Identifier{runner.Username()}.Sanitize()
	for _, s := range []string{"revoke usage on schema public from public", "revoke usage on schema public from " + role} {
		if _, err := pool.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"DATABASE_URL=" + testenv.As(t, url, runner), "ELASTIC_URL=http://127.0.0.1:1"}
	for _, command := range []string{"status", "failed summary", "failed discard --all --by a --why b", "replay --all --by a --why b", "verify",
		"release block:7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by a --why b", "rebuild status search_index_to_elastic", "prune --older-than 1d", "doctor"} {
		r := weft(t, env, strings.Fields(command)...)
		if want := "lacks usage on schema public: grant usage on schema public to " + role + "; or run `weft migrate grant "; r.code != exitRefused || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: got %+v, want code %d and %q", command, r, exitRefused, want)
		}
	}
}

func TestCommandsInASchemaWhoseNameNeedsQuotes(t *testing.T) {
	t.Parallel()
	base := testenv.Database(t)
	if _, err := testenv.Pool(t, base).Exec(t.Context(), `create schema "My App"`); err != nil {
		t.Fatal(err)
	}
	url, err := postgres.InSchema(base, `"My App"`)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"DATABASE_URL=" + url, "WEFT_PROJECTIONS=chronicle_events_to_entries"}
	for _, command := range []string{"migrate up", "doctor", "outbox list", "verify", "failed list", "prune --older-than 1d", "audit", "support-bundle --out " + t.TempDir() + "/b.tar.gz", "uninstall --yes"} {
		if r := weft(t, env, strings.Fields(command)...); r.code != 0 || strings.Contains(r.out+r.errOut, "does not exist") {
			t.Errorf("%s: got %+v", command, r)
		}
	}
}

// A statement that takes too long, as behind a lock, is no fault of weft, and says what to look at.
func TestCommandsOnLockedTables(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	unlock := testenv.Lock(t, url, "search_outbox_events, weft_leader, weft_rebuild, weft_quarantine, weft_verify")
	index := testenv.Index(t)
	es, err := reconcile.NewClient(testenv.ElasticURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(es.Close)
	if err := es.Do(t.Context(), http.MethodPut, "/"+index, struct{}{}, nil); err != nil {
		t.Fatal(err)
	}
	env := []string{"DATABASE_URL=" + url, "ELASTIC_URL=" + testenv.ElasticURL(t), "ELASTIC_INDEX=" + index, "WEFT_DB_TIMEOUT=300ms"}
	for _, command := range []string{"status", "failed summary", "failed list", "failed discard --all --by a --why b", "replay --all --by a --why b", "verify",
		"release block:7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by a --why b", "rebuild status search_index_to_elastic", "prune --older-than 1d"} {
		r := weft(t, env, strings.Fields(command)...)
		if r.code != exitUnavailable || !strings.Contains(r.errOut, " in time: ") || !strings.HasSuffix(r.errOut, "; "+postgres.SayBusy+"\n") {
			t.Errorf("%s: got %+v, want code %d and %q", command, r, exitUnavailable, postgres.SayBusy)
		}
		if strings.Contains(r.out+r.errOut, "no dead letters") {
			t.Errorf("%s: got %+v, want nothing said of dead letters that were not counted", command, r)
		}
	}
	// The doctor examines the rest. The server and the command wait for the same time: either may end a statement.
	unlock()
	testenv.Lock(t, url, "weft_pause")
	r := weft(t, append(env, "WEFT_DB_TIMEOUT=2s"), "doctor")
	if n := strings.Count(r.out, "could not be examined: "); n == 0 || strings.Count(r.out, postgres.SayBusy+"\n") != n {
		t.Errorf("doctor: got %+v, want what it could not examine, and for each %q", r, postgres.SayBusy)
	}
}

// With the ordinary limits it is lock_timeout that ends a statement behind a lock.
func TestCommandBehindALock(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.Lock(t, url, "weft_pause")
	r := weft(t, []string{"DATABASE_URL=" + url}, "pause", "search_index_to_elastic", "--by=alice", "--why=x")
	if want := "weft: Postgres" + at(t, url) + " did not grant a lock in time: canceling statement due to lock timeout; pg_locks"; r.code != exitUnavailable || !strings.HasPrefix(r.errOut, want) {
		t.Errorf("got %+v, want code %d and %q", r, exitUnavailable, want)
	}
}

// at is how a message names the server of a URL.
func at(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return " at " + u.Host + u.Path
}

// A message of a fault in an open session names the role and the server.
func TestFaultsOfASessionNameRoleAndServer(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	runner, pool := testenv.Runner(t, dsn), testenv.Pool(t, dsn)
	env := []string{"DATABASE_URL=" + testenv.As(t, dsn, runner)}
	if _, err := pool.Exec(t.Context(), "revoke all on weft_pause, weft_outbox from "+pgx.Identifier{runner.Username()}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	want := "weft: Postgres" + at(t, dsn) + " denies permission to role " + runner.Username() + ": permission denied for table weft_"
	for _, command := range []string{"status", "pause search_index_to_elastic --by=a --why=b", "outbox list"} {
		if r := weft(t, env, strings.Fields(command)...); r.code != exitRefused || !strings.HasPrefix(r.errOut, want) {
			t.Errorf("%s: got %+v, want code %d and %q", command, r, exitRefused, want)
		}
	}

	unlock := testenv.Lock(t, dsn, "weft_leader")
	defer unlock()
	done := make(chan result, 1)
	go func() { done <- weft(t, env, "status") }()
	testenv.Eventually(t, func() bool {
		var n int
		err := pool.QueryRow(t.Context(), "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'weft/status' and wait_event_type = 'Lock'").Scan(&n)
		return err == nil && n > 0
	}, "the end of a session that waits")
	if r, want := <-done, "weft: Postgres"+at(t, dsn)+" has ended the session: terminating connection"; r.code != exitUnavailable || !strings.HasPrefix(r.errOut, want) {
		t.Errorf("got %+v, want code %d and %q", r, exitUnavailable, want)
	}
}

// TestServerThatDoesNotAnswerIsNamed: behind a firewall that drops packets, or of a host that hangs, a statement may run out of
// time before its connection does. No lock is to be looked for then.
func TestServerThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	frozen, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // its kernel takes connections, and nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	silent := frozen.Addr().String()
	env := []string{"DATABASE_URL=postgres://u@" + silent + "/d?sslmode=disable&connect_timeout=6"} // longer than what the state of the leader may take
	want := "weft: no answer from Postgres at " + silent + "/d in time: check the network, the firewall and the server\n"
	if r := weft(t, env, "status"); r.code != exitUnavailable || r.errOut != want {
		t.Errorf("got %+v, want code %d and %q", r, exitUnavailable, want)
	}
}

// A command that is interrupted while it waits for the database is no fault of weft.
func TestInterruptedCommands(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	testenv.Lock(t, dsn, "weft_leader, weft_pause, weft_quarantine, weft_rebuild, search_outbox_events, weft_schema_version")
	for _, command := range []string{"status", "pause search_index_to_elastic --by=a --why=b", "throttle search_index_to_elastic --rate=5 --by=a --why=b", "resign --why=x",
		"quarantine book:7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by=a --why=b", "replay --all --by=a --why=b", "failed discard --all --by=a --why=b", "failed list",
		"wait 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11", "rebuild search_index_to_elastic --why=x", "load search_index_to_elastic", "top --once", "doctor"} {
		name := "weft/" + strings.Fields(command)[0]
		ctx, interrupt := context.WithCancel(t.Context())
		var errOut buffer
		a := &app{environ: []string{"DATABASE_URL=" + dsn, "ELASTIC_URL=http://127.0.0.1:1"}, stdin: strings.NewReader(""), stdout: io.Discard, stderr: &errOut, signals: notify}
		code := make(chan int, 1)
		go func() { code <- a.execute(ctx, strings.Fields(command)) }()
		testenv.Eventually(t, func() bool {
			var waits bool
			err := pool.QueryRow(t.Context(), "select exists (select from pg_stat_activity where datname = current_database() and application_name = $1 and wait_event_type = 'Lock')", name).Scan(&waits)
			return err == nil && waits
		}, command+" waits for a lock")
		interrupt()
		if got := <-code; got != exitTryAgain || !strings.HasPrefix(errOut.String(), "weft: interrupted") {
			t.Errorf("%s: got code %d and %q, want %d", command, got, errOut.String(), exitTryAgain)
		}
	}
}

// TestInterruptedBeforeTheCountClaimsNothing: whether there are dead letters is not known by then.
func TestInterruptedBeforeTheCountClaimsNothing(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	testenv.Lock(t, dsn, "search_outbox_events")
	for _, command := range []string{"replay --all --by=a --why=b", "failed discard --all --by=a --why=b"} {
		ctx, interrupt := context.WithCancel(t.Context())
		var out, errOut buffer
		a := &app{environ: []string{"DATABASE_URL=" + dsn}, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, signals: notify}
		code := make(chan int, 1)
		go func() { code <- a.execute(ctx, strings.Fields(command)) }()
		testenv.Eventually(t, func() bool {
			var waits bool
			err := pool.QueryRow(t.Context(), "select exists (select from pg_stat_activity where datname = current_database() and application_name = $1 and wait_event_type = 'Lock')",
				"weft/"+strings.Fields(command)[0]).Scan(&waits)
			return err == nil && waits
		}, command+" waits for a lock")
		interrupt()
		if got := <-code; got != exitTryAgain || out.String() != "" || !strings.HasPrefix(errOut.String(), "weft: interrupted: ") {
			t.Errorf("%s: got code %d, %q and %q, want %d and nothing but the interruption", command, got, out.String(), errOut.String(), exitTryAgain)
		}
	}
}

// A hand-over that was asked for stands when the command that waits for it is interrupted.
func TestInterruptedResignSaysThatTheRequestStands(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	drained := make(chan struct{})
	defer close(drained)
	c.join("a", func() { <-drained })
	ctx, interrupt := context.WithCancel(t.Context())
	var errOut buffer
	a := &app{environ: c.env, stdin: strings.NewReader(""), stdout: io.Discard, stderr: &errOut, signals: notify}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, []string{"resign", "--force", "--why=x", "--wait=1h"}) }()
	testenv.Eventually(t, func() bool {
		var asked bool
		err := c.pool.QueryRow(t.Context(), `select exists (select from weft_leader where resign_epoch = epoch) and not exists (select from pg_stat_activity
			where datname = current_database() and application_name = 'weft/resign' and query like '%resign_requested%')`).Scan(&asked)
		return err == nil && asked
	}, "the command waits for the answer to its request")
	interrupt()
	if got, want := <-code, "weft: interrupted: a was asked to hand over, and the request stands; see `weft status`\n"; got != exitInconclusive || errOut.String() != want {
		t.Errorf("got code %d and %q, want %d and %q", got, errOut.String(), exitInconclusive, want)
	}
}

// A proxy may cut answers, or send another one: that is no fault of weft, and the server is named.
func TestServerWhoseAnswersCannotBeRead(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"hits":`)
	}))
	t.Cleanup(srv.Close)
	env := []string{"DATABASE_URL=" + testenv.Database(t), "ELASTIC_URL=" + srv.URL}
	want := "the answer cannot be read: unexpected end of JSON input; it is from Elasticsearch at " + strings.TrimPrefix(srv.URL, "http://") + ": look at that server"
	if r := weft(t, env, "verify"); r.code != exitUnavailable || !strings.Contains(r.errOut, want) {
		t.Errorf("got %+v, want code %d and %q", r, exitUnavailable, want)
	}
	if r := weft(t, env, "doctor"); r.code != exitBad || !strings.Contains(r.out, "no use: the answer cannot be read: unexpected end of JSON input") {
		t.Errorf("doctor: got %+v, want code %d and that the answer cannot be read", r, exitBad)
	}
}

// TestServerWhoseAnswersDoNotEnd: a proxy may send on and on. Commands read no more than an answer may have, and name the server.
func TestServerWhoseAnswersDoNotEnd(t *testing.T) {
	t.Parallel()
	space := []byte(strings.Repeat(" ", 64<<10))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		for err := error(nil); err == nil; {
			_, err = w.Write(space)
		}
	}))
	t.Cleanup(srv.Close)
	env := []string{"DATABASE_URL=" + testenv.Database(t), "ELASTIC_URL=" + srv.URL}
	host := strings.TrimPrefix(srv.URL, "http://")
	if r := weft(t, env, "verify"); r.code != exitUnavailable || !strings.Contains(r.errOut, "request or answer is too large: more than 16777216 bytes, or without an end, from Elasticsearch at "+host+"; look at that server") {
		t.Errorf("verify: got %+v, want code %d and %s", r, exitUnavailable, host)
	}
	if r := weft(t, env, "doctor"); !strings.Contains(r.out, "no use: request or answer is too large") || !strings.Contains(r.out, host) {
		t.Errorf("doctor: got %+v, want a finding about %s", r, host)
	}
}
