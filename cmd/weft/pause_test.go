package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	// With the rights of an instance alone.
	url := strings.TrimPrefix(m.env[0], "DATABASE_URL=")
	env := []string{"DATABASE_URL=" + testenv.As(t, url, testenv.Runner(t, url))}
	const name = "search_index_to_elastic"
	run := func(args ...string) (out paused, r result) {
		t.Helper()
		r = weft(t, env, append(args, "--json")...)
		if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 || out.Projection != name {
			t.Fatalf("%v: got %+v, %v", args, r, err)
		}
		return out, r
	}
	if out, _ := run("resume", name, "--by=alice", "--why=none"); out.Changed || out.Pause != nil {
		t.Errorf("got %+v, want no pause to end", out)
	}
	if out, _ := run("pause", name, "--by=alice", "--why=reindexing"); !out.Changed || out.Pause.By != "alice" || out.Pause.Why != "reindexing" || out.Pause.At.IsZero() {
		t.Errorf("got %+v, want a new pause", out)
	}
	if out, _ := run("pause", name, "--by=bob", "--why=y"); out.Changed || out.Pause.By != "alice" {
		t.Errorf("got %+v, want the first pause as it is", out)
	}
	if r := weft(t, env, "pause", name, "--by=bob", "--why=y"); r.code != 0 || !strings.Contains(r.out, "was paused by alice at 20") {
		t.Errorf("got %+v, want who has paused it", r)
	}
	if r := weft(t, env, "status"); !strings.Contains(r.out, "PAUSED  "+name+": paused by alice at 20") || !strings.Contains(r.out, ": reindexing; weft resume ends it") {
		t.Errorf("status: got %+v", r)
	}
	var st records.Status
	if err := json.Unmarshal([]byte(weft(t, env, "status", "--json").out), &st); err != nil || st.Projections[0].Pause == nil || st.Projections[1].Pause != nil {
		t.Errorf("status: got %+v, %v, want the one projection paused", st.Projections, err)
	}
	if out, _ := run("resume", name, "--by=bob", "--why=done"); !out.Changed || out.Pause != nil {
		t.Errorf("got %+v, want the end of the pause", out)
	}
	r := weft(t, env, "audit", "--json")
	var log []records.AuditEntry
	if err := json.Unmarshal([]byte(r.out), &log); err != nil || len(log) != 2 || log[0].Action != "resume" || log[0].Actor != "bob" || log[1].Action != "pause" || log[1].Why != "reindexing" {
		t.Errorf("audit: got %+v, %v", log, err)
	}
	for want, args := range map[string][]string{
		"want the name of one projection": {"pause", "--by=a", "--why=x"},
		"--by is missing":                 {"pause", name, "--why=x"},
		"--why is missing":                {"resume", name, "--by=a"},
		`"books" is no projection that runs: want one of search_index_to_elastic, chronicle`: {"pause", "books", "--by=a", "--why=x"},
	} {
		if r := weft(t, env, args...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%v: got %+v, want %q", args, r, want)
		}
	}
}

// The command returns when the leader has seen the pause, and says that it has not heard so where the leader does not answer.
func TestPauseWaitsUntilTheLeaderObeys(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	c.join("a", atOnce)
	const name = "search_index_to_elastic"
	if r := weft(t, c.env, "pause", name, "--by=alice", "--why=none"); r.code != 0 || !strings.Contains(r.out, "leases nothing more within a second") {
		t.Errorf("without an answer of the leader: got %+v", r)
	}
	if r := weft(t, c.env, "resume", name, "--by=alice", "--why=none", "--json"); r.code != 0 || strings.Contains(r.out, "obeyed") {
		t.Fatalf("got %+v", r)
	}

	health := admin.NewHealth("crew", "a")
	health.SetRole(admin.Leader, 1)
	report := admin.Handler(admin.Options{Health: health, Gatherer: prometheus.NewRegistry(), Log: zap.NewNop()})
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 3 {
			health.SetPause(name, "paused by alice")
		}
		report.ServeHTTP(w, r)
	}))
	defer server.Close()
	c.serveAt(server.Listener.Addr().String())
	if r := weft(t, c.env, "pause", name, "--by=alice", "--why=none"); r.code != 0 || !strings.Contains(r.out, "paused: the leader begins no more leases, and what") || asked.Load() != 3 {
		t.Errorf("got %+v after %d questions, want the third answer awaited", r, asked.Load())
	}
	if r := weft(t, c.env, "pause", name, "--by=alice", "--why=none", "--json"); r.code != 0 || !strings.Contains(r.out, `"obeyed": true`) {
		t.Errorf("got %+v", r)
	}
}
