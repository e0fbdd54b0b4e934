package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// runnerOf returns the environment of a command that has the rights of an instance alone.
func runnerOf(t *testing.T, m *morgue) []string {
	t.Helper()
	url := strings.TrimPrefix(m.env[0], "DATABASE_URL=")
	return []string{"DATABASE_URL=" + testenv.As(t, url, testenv.Runner(t, url))}
}

func TestQuarantineAndRelease(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	env := runnerOf(t, m)
	const id, search = "00000000-0000-4000-9000-000000000001", "search_index_to_elastic"
	const entity = "block:" + id
	m.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version)
		select ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 'block', $1::uuid, 'upsert', n from generate_series(1, 3) n`, id)
	run := func(args ...string) (out []quarantined) {
		t.Helper()
		r := weft(t, env, append(args, "--json")...)
		if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 {
			t.Fatalf("%v: got %+v, %v", args, r, err)
		}
		return out
	}
	if out := run("release", entity, "--by=alice", "--why=none"); len(out) != 2 || out[0].Changed || out[0].Quarantine != nil {
		t.Errorf("got %+v, want no quarantine to end", out)
	}
	if out := run("quarantine", entity, "--projection", search, "--by=alice", "--why=bad text"); len(out) != 1 || !out[0].Changed ||
		out[0].Projection != search || out[0].EntityID != id || out[0].Quarantine.By != "alice" || out[0].Quarantine.Why != "bad text" || out[0].Quarantine.At.IsZero() {
		t.Errorf("got %+v, want a new quarantine", out)
	}
	if out := run("quarantine", "block:"+strings.ToUpper(id), "--by=bob", "--why=y"); len(out) != 2 || out[0].Changed || out[0].Quarantine.By != "alice" || !out[1].Changed {
		t.Errorf("got %+v, want the first one as it is, and one in the other projection", out)
	}
	if r := weft(t, env, "quarantine", entity, "--projection", search, "--by=bob", "--why=y"); r.code != 0 || !strings.Contains(r.out, search+": "+entity+" was in quarantine by alice at 20") {
		t.Errorf("got %+v, want who has put it into quarantine", r)
	}
	if r := weft(t, env, "status"); !strings.Contains(r.out, "QUARANTINE  "+search+": 3 events of 1 entity wait until weft release\n        "+entity+" in quarantine by alice at 20") {
		t.Errorf("status: got %+v", r)
	}
	var st records.Status
	if err := json.Unmarshal([]byte(weft(t, env, "status", "--json").out), &st); err != nil || len(st.Projections[0].Quarantine) != 1 || st.Projections[0].Quarantined != 3 || st.Projections[0].Quarantine[0].EntityID != id {
		t.Errorf("status: got %+v, %v, want the entity in quarantine", st.Projections, err)
	}
	if r := weft(t, env, "event", event(2)); !strings.Contains(r.out, "Wait: its entity is in quarantine by alice at 20") || !strings.Contains(r.out, "weft release "+entity+" --by") {
		t.Errorf("event: got %+v, want the quarantine as its reason to wait", r)
	}
	var stories []records.Story
	if err := json.Unmarshal([]byte(weft(t, env, "event", event(2), "--json").out), &stories); err != nil || stories[0].Quarantine.By != "alice" {
		t.Errorf("event: got %+v, %v", stories, err)
	}
	if out := run("release", entity, "--by=bob", "--why=fixed"); len(out) != 2 || !out[0].Changed || !out[1].Changed || out[0].Quarantine != nil {
		t.Errorf("got %+v, want the end of both", out)
	}
	if err := json.Unmarshal([]byte(weft(t, env, "event", event(2), "--json").out), &stories); err != nil || stories[0].Quarantine != nil {
		t.Errorf("event: got %+v, %v, want no quarantine", stories, err)
	}
	r := weft(t, env, "audit", "--projection", search)
	if !strings.Contains(r.out, "release") || !strings.Contains(r.out, "quarantine") || strings.Count(r.out, entity) != 2 || !strings.Contains(r.out, "fixed") {
		t.Errorf("audit: got %+v, want both with the entity", r)
	}
	for typ, idle := range map[string]bool{"block": false, "blocks": true} {
		r := weft(t, env, "quarantine", typ+":"+id, "--by=a", "--why=x")
		if r.code != 0 || strings.Contains(r.out, "no event of it is open now: look at type and id") != idle {
			t.Errorf("%s: got %+v, want a doubt of the name: %v", typ, r, idle)
		}
		weft(t, env, "release", typ+":"+id, "--by=a", "--why=x")
	}
	for want, args := range map[string][]string{
		"want one entity, as TYPE:ID": {"quarantine", "--by=a", "--why=x"},
		`"block:" is no entity: want TYPE:ID, with a type of at most 50 characters and an id that is not empty`: {"release", "block:", "--by=a", "--why=x"},
		`"block" is no entity: want TYPE:ID`:                         {"quarantine", "block", "--by=a", "--why=x"},
		`"` + id + `" is no entity: want TYPE:ID`:                    {"release", id, "--by=a", "--why=x"},
		"--by is missing":                                            {"quarantine", entity, "--why=x"},
		"--why is missing":                                           {"release", entity, "--by=a"},
		"with a type of at most 50 characters":                       {"quarantine", strings.Repeat("x", 51) + ":7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11", "--by=a", "--why=x"},
		`"books" is no projection that runs: want one of search_ind`: {"quarantine", entity, "--projection=books", "--by=a", "--why=x"},
		`"7" is no id of an entity here: want a uuid`:                {"quarantine", "block:7", "--by=a", "--why=x"},
	} {
		if r := weft(t, env, args...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%v: got %+v, want %q", args, r, want)
		}
	}
	m.exec(`insert into weft_quarantine (group_name, projection, entity_type, entity_id, quarantined_at, quarantined_by, reason)
		select 'weft', $1, 'block', gen_random_uuid()::text, now(), 'x', 'y' from generate_series(1, $2)`, search, outbox.MaxQuarantined)
	if r := weft(t, env, "quarantine", entity, "--by=a", "--why=x"); r.code != exitRefused || !strings.Contains(r.errOut, "1000 entities are in quarantine already") {
		t.Errorf("got %+v, want a refusal of more than 1000", r)
	}
	if r := weft(t, env, "status"); !strings.Contains(r.out, "        and 995 more: weft status --json") {
		t.Errorf("status: got %+v, want few of them", r)
	}
}

func TestThrottle(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	env := runnerOf(t, m)
	const name = "search_index_to_elastic"
	run := func(args ...string) (out throttled) {
		t.Helper()
		r := weft(t, env, append([]string{"throttle", name, "--json"}, args...)...)
		if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 || out.Projection != name {
			t.Fatalf("%v: got %+v, %v", args, r, err)
		}
		return out
	}
	if out := run("--off", "--by=alice", "--why=none"); out.Changed || out.Throttle != nil {
		t.Errorf("got %+v, want no throttle to end", out)
	}
	if out := run("--rate=0.5", "--by=alice", "--why=busy"); !out.Changed || out.Throttle.Rate != 0.5 || out.Throttle.By != "alice" {
		t.Errorf("got %+v, want a new throttle", out)
	}
	if out := run("--rate=200", "--by=bob", "--why=less busy"); out.Throttle.Rate != 200 || out.Throttle.By != "bob" || out.Throttle.Why != "less busy" {
		t.Errorf("got %+v, want another rate", out)
	}
	if r := weft(t, env, "status"); !strings.Contains(r.out, "THROTTLED  "+name+": throttled to 200 events a second by bob at 20") {
		t.Errorf("status: got %+v", r)
	}
	var st records.Status
	if err := json.Unmarshal([]byte(weft(t, env, "status", "--json").out), &st); err != nil || st.Projections[0].Throttle.Rate != 200 || st.Projections[1].Throttle != nil {
		t.Errorf("status: got %+v, %v, want the one projection throttled", st.Projections, err)
	}
	if r := weft(t, env, "throttle", name, "--off", "--by=bob", "--why=idle"); r.code != 0 || !strings.Contains(r.out, name+": throttle ended") {
		t.Errorf("got %+v, want the end", r)
	}
	if r := weft(t, env, "audit"); strings.Count(r.out, "200 events a second") != 2 || !strings.Contains(r.out, "unthrottle") || !strings.Contains(r.out, "0.5 events a second") {
		t.Errorf("audit: got %+v, want three entries with their rates", r)
	}
	run("--rate=1", "--by=bob", "--why=one")
	for _, command := range []string{"status", "audit --action=throttle"} {
		if r := weft(t, env, strings.Fields(command)...); !strings.Contains(r.out, "1 event a second") {
			t.Errorf("%s: got %+v, want one event a second", command, r)
		}
	}
	for want, args := range map[string][]string{
		"want the name of one projection":  {"throttle", "--rate=1", "--by=a", "--why=x"},
		"want either --rate or --off":      {"throttle", name, "--rate=1", "--off", "--by=a", "--why=x"},
		"--rate 0: want 0.01 to 1000000":   {"throttle", name, "--rate=0", "--by=a", "--why=x"},
		"--rate NaN: want 0.01 to 1000000": {"throttle", name, "--rate=nan", "--by=a", "--why=x"},
		"--by is missing":                  {"throttle", name, "--rate=1", "--why=x"},
		`"books" is no projection that runs: want one of search_index_to_elastic, chronicle`: {"throttle", "books", "--off", "--by=a", "--why=x"},
	} {
		if r := weft(t, env, args...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%v: got %+v, want %q", args, r, want)
		}
	}
}
