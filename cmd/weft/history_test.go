package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	if r := weft(t, m.env, "history"); r.code != 0 || r.out != "no terms\n" {
		t.Errorf("empty: got %+v", r)
	}
	m.exec(`insert into weft_term (group_name, epoch, instance, acquired_at, ended_at, end_reason) values
		('weft', 1, 'a', '2026-05-04 01:00:00+00', '2026-05-04 02:00:00+00', 'resigned'),
		('weft', 2, 'b', '2026-05-04 02:00:00.04+00', '2026-05-04 03:00:00+00', 'replaced'),
		('weft', 3, 'a', '2026-05-04 03:00:00+00', null, null),
		('other', 1, 'x', '2026-05-04 03:00:00+00', null, null)`)
	m.exec(`insert into weft_audit (actor, action, why, from_owner, from_epoch, count) values
		('alice', 'resign_requested', 'new version', 'a', 1, 1), ('a', 'session_ended', 'a transaction …', null, 2, 1)`)
	url := strings.TrimPrefix(m.env[0], "DATABASE_URL=")
	env := []string{"DATABASE_URL=" + testenv.As(t, url, testenv.Runner(t, url))}
	r := weft(t, env, "history")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if r.code != 0 || len(lines) != 4 {
		t.Fatalf("got %+v, want three terms", r)
	}
	for i, want := range [][]string{
		{"EPOCH", "TAKEOVER", "WHY IT ENDED"},
		{"3 ", "a ", "2026-05-04T03:00:00Z", "not ended"},
		{"2 ", "b ", "1h0m0s", "it was lost without a word: killed, frozen or cut off; a ended 1 of its sessions"},
		{"1 ", "a ", "1h0m0s", "40ms", "it was asked to hand over (by alice: new version)"},
	} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d: got %q, want %q in it", i, lines[i], w)
			}
		}
	}
	var terms []pastTerm
	r = weft(t, env, "history", "--json", "--since=2026-05-04T02:30:00Z")
	if err := json.Unmarshal([]byte(r.out), &terms); err != nil || len(terms) != 2 || terms[0].EndedAt != nil || terms[1].TakeoverSecs != nil || terms[1].EndReason != "replaced" || terms[1].Next != "a" {
		t.Errorf("got %+v, %v, want the two newest", r, err)
	}
	if r := weft(t, env, "history", "--limit=1", "--json"); json.Unmarshal([]byte(r.out), &terms) != nil || len(terms) != 1 || terms[0].Epoch != 3 {
		t.Errorf("limit: got %+v", r)
	}
	const more = "and older ones; a higher --limit lists them\n"
	if r := weft(t, env, "history", "--limit=2"); r.code != 0 || strings.Count(r.out, "\n") != 4 || !strings.HasSuffix(r.out, more) {
		t.Errorf("two of three: got %+v", r)
	}
	if r := weft(t, env, "audit", "--limit=1"); r.code != 0 || strings.Count(r.out, "\n") != 3 || !strings.HasSuffix(r.out, more) {
		t.Errorf("audit, one of two: got %+v", r)
	}
	for _, command := range [][]string{{"history", "--limit=3"}, {"audit", "--limit=2"}} {
		if r := weft(t, env, command...); r.code != 0 || strings.Contains(r.out, "older") {
			t.Errorf("%v: got %+v", command, r)
		}
	}
	if r := weft(t, nil, "history", "--limit=0"); r.code != exitUsage {
		t.Errorf("got %+v, want code %d", r, exitUsage)
	}
}
