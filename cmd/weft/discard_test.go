package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestDiscard(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	if r := weft(t, m.env, "failed", "discard", "--all", "--by=alice", "--why=x"); r.code != 0 || r.out != "no dead letters to discard\n" {
		t.Errorf("empty: got %+v", r)
	}
	m.fill()
	// With the rights of an instance alone.
	url := strings.TrimPrefix(m.env[0], "DATABASE_URL=")
	env := []string{"DATABASE_URL=" + testenv.As(t, url, testenv.Runner(t, url))}

	if r := weft(t, env, "failed", "discard", "--entity=book", "--dry-run"); r.code != 0 || !strings.Contains(r.out, "es_4xx") ||
		m.one("select count(*)::text from search_outbox_events where discarded_at is not null") != "0" {
		t.Errorf("dry run: got %+v, want a preview and no change", r)
	}
	r := weft(t, env, "failed", "discard", "--reason=es_4xx", "--by=alice", "--why=test data", "--json")
	var out discarded
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 || len(out.Projections) != 2 || out.Projections[0].Discarded != 5 || out.Projections[0].AuditID == 0 {
		t.Fatalf("got %+v, %v, want five of search discarded", r, err)
	}
	if r := weft(t, env, "failed", "list", "--json"); strings.Contains(r.out, event(1)) || !strings.Contains(r.out, event(6)) {
		t.Errorf("list: got %s, want those that are left", r.out)
	}
	for _, args := range [][]string{{"failed", "list", "--discarded", "--json"}, {"failed", "show", event(1)}, {"event", event(1)}} {
		if r := weft(t, env, args...); r.code != 0 || !strings.Contains(r.out, "alice") || !strings.Contains(r.out, "test data") {
			t.Errorf("%v: got %+v, want who discarded it and why", args, r)
		}
	}
	if r := weft(t, env, "event", event(1)); !strings.Contains(r.out, "Nothing: it was discarded. To send it again after all: weft replay "+event(1)) {
		t.Errorf("event: got %s", r.out)
	}
	if r := weft(t, env, "audit", "--action=discard"); r.code != 0 || !strings.Contains(r.out, "finished") || !strings.Contains(r.out, "test data") {
		t.Errorf("audit: got %+v", r)
	}
	var st records.Status
	if err := json.Unmarshal([]byte(weft(t, env, "status", "--json").out), &st); err != nil || st.Projections[0].Failed != 2 || st.Projections[0].Discarded != 5 {
		t.Errorf("status: got %+v, %v, want 2 failed and 5 discarded", st.Projections, err)
	}
	r = weft(t, env, "failed", "discard", event(1), event(6), "--by=alice", "--why=x")
	if want := "1 of the 2 ids is not in failed, or was discarded before; `weft event` says where an event is"; r.code != exitBad || !strings.Contains(r.errOut, want) {
		t.Errorf("by ids: got %+v, want %q", r, want)
	}
	if r := weft(t, env, "failed", "discard", event(1), "--by=alice", "--why=x"); r.code != exitBad || r.errOut != "weft: the event is not in failed, or was discarded before; `weft event` says where an event is\n" {
		t.Errorf("by one id: got %+v", r)
	}
	if r := weft(t, env, "replay", "--discarded", "--entity=book", "--by=alice", "--why=undo"); r.code != 0 || !strings.Contains(r.out, "5 of 5 replayed") {
		t.Errorf("replay: got %+v, want the books", r)
	}
	if n := m.one("select count(*)::text from search_outbox_events where status = 'pending' and discarded_at is null"); n != "5" {
		t.Errorf("%s are pending after the replay, want 5", n)
	}
}

func TestDiscardUsage(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"say which dead letters":                   {"--by=a", "--why=x"},
		"ids, filters and --all exclude":           {"--all", "--entity=book", "--by=a", "--why=x"},
		"--by is missing":                          {"--all", "--why=x"},
		"--why is missing":                         {"--all", "--by=a"},
		"must not contain control characters":      {"--all", "--by=a\x1b", "--why=x"},
		`"x" is no id of an event: want a UUID or`: {"x", "--by=a", "--why=x"},
	} {
		if r := weft(t, nil, append([]string{"failed", "discard"}, args...)...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%v: got %+v, want %q", args, r, want)
		}
	}
}
