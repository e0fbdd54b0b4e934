package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/samuelhu324-dev/weft/internal/records"
)

// hostileText is a text that clears a terminal, changes its title, turns the direction of writing round and
// looks like a row of a table.
const hostileText = "a\x1b[2J\x1b]0;x\a\u009b1m\u202eb\u200b\t\r\n2026 z"

// newHostile is a database whose texts are hostileText. The ids of its entities are texts, too.
func newHostile(t *testing.T) *morgue {
	t.Helper()
	m := newMorgue(t)
	m.env = append(m.env, "WEFT_PROJECTIONS=search_index_to_elastic")
	m.exec("drop view weft_inflight, search_outbox_events_live")
	m.exec("alter table search_outbox_events drop column entity_id")
	m.exec("alter table search_outbox_events add column entity_id text")
	m.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, attempts, error_reason, error, traceparent,
			replay_count, last_replayed_by, last_replayed_reason, discarded_at, discarded_by, discarded_reason)
		select $2::text::uuid, $1::text, $1, left($1, 20), 1, 'failed', 1, $1, $1, $1, 1, $1, $1, null::timestamptz, null, null
		union all select $3::text::uuid, $1, $1, left($1, 20), 2, 'failed', 1, $1, $1, $1, 1, $1, $1, now(), $1, $1
		union all select $4::text::uuid, $1, $1, left($1, 20), 3, 'pending', 1, $1, $1, $1, 1, $1, $1, null, null, null`,
		hostileText, event(1), event(2), event(3))
	m.exec("update search_outbox_events set next_retry_at = now() + interval '1 hour' where status = 'pending'")
	m.exec("insert into weft_audit (actor, action, why, projection, from_owner, count) values ($1::text, $1, $1, $1, $1, 1)", hostileText)
	m.exec("insert into weft_instance (group_name, instance, role, version, host, pid, started_at, seen_at) values ('weft', $1::text, 'standby', $1, $1, 1, now(), now())", hostileText)
	m.exec("insert into weft_term (group_name, epoch, instance, acquired_at, ended_at, end_reason) values ('weft', 1, $1::text, now(), now(), $1)", hostileText)
	m.exec("insert into weft_leader (group_name, epoch, instance, lock_backend_pid, lock_backend_start, acquired_at, renewed_at) values ('weft', 1, $1, 1, now(), now(), now())", hostileText)
	m.exec("insert into weft_pause (group_name, projection, paused_at, paused_by, reason) values ('weft', 'search_index_to_elastic', now(), $1::text, $1)", hostileText)
	return m
}

// A text of the database neither controls the terminal nor looks like a line of the command.
func TestHostileTextsAreInert(t *testing.T) {
	t.Parallel()
	m := newHostile(t)
	for _, command := range []string{"status", "audit", "failed summary", "failed list", "failed list --discarded", "failed show " + event(1) + " " + event(2),
		"event " + event(1), "event " + event(3), "history", "top --once", "replay --all --dry-run", "failed discard --all --dry-run", "wait " + event(1)} {
		args := strings.Fields(command)
		plain := weft(t, m.env, args...)
		for _, c := range plain.out + plain.errOut {
			if c != '\n' && (unicode.Is(unicode.Cc, c) || unicode.Is(unicode.Cf, c)) {
				t.Errorf("%s: the output has %U:\n%q", command, c, plain.out+plain.errOut)
				break
			}
		}
		if strings.Contains(plain.out, "\n2026 z") {
			t.Errorf("%s: a text begins a line:\n%s", command, plain.out)
		}
		if args[0] == "top" {
			continue
		}
		asJSON := weft(t, m.env, append(args, "--json")...)
		if !json.Valid([]byte(asJSON.out)) || strings.ContainsAny(asJSON.out, "\x1b\u009b\u202e\u200b") {
			t.Errorf("%s --json: got %q", command, asJSON.out)
		}
	}
	var got records.DeadLetters
	if r := weft(t, m.env, "failed", "list", "--json"); json.Unmarshal([]byte(r.out), &got) != nil || len(got.Listed) != 1 || got.Listed[0].EntityID != hostileText {
		t.Errorf("got %+v, want the id as it is", r)
	}
}

// The command that an advice names is about the entity, whatever its id makes of a shell.
func TestAdviceQuotesTheEntity(t *testing.T) {
	t.Parallel()
	m := newHostile(t)
	m.exec("delete from weft_pause")
	for i, id := range []string{"4711", "it's $(touch x) `id`; ls", "a  b\\n", hostileText} {
		n := event(100 + i)
		m.exec("insert into search_outbox_events (id, entity_type, entity_id, op, event_version) values ($1::text::uuid, 'order', $2, 'upsert', 1)", n, id)
		if r := weft(t, m.env, "quarantine", "order:"+id, "--by=alice", "--why=x"); r.code != 0 {
			t.Fatalf("quarantine: %+v", r)
		}
		r := weft(t, m.env, "event", n)
		_, rest, _ := strings.Cut(r.out, "weft release ")
		word, _, ok := strings.Cut(rest, " --by YOU")
		if !ok {
			t.Fatalf("got %+v, want how to release it", r)
		}
		said, err := exec.CommandContext(t.Context(), "bash", "-c", "printf %s "+word).Output()
		if err != nil || string(said) != "order:"+id {
			t.Errorf("%q: a shell makes %q of %s: %v", id, said, word, err)
		}
	}
}

// What a message quotes is inert, too.
func TestMessagesAreInert(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "weft.yaml")
	if err := os.WriteFile(file, []byte(`"un\e[2Jknown": 1`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := weft(t, []string{"DATABASE_URL=postgres://h/d"}, "status", "--config", file)
	if want := `weft: configuration: un\u{1b}[2Jknown: unknown setting`; r.code != exitConfig || !strings.HasPrefix(r.errOut, want) {
		t.Errorf("got %+v, want code %d and %q", r, exitConfig, want)
	}
}
