package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/replay"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/verify"
	"github.com/samuelhu324-dev/weft/outbox"
)

// morgue is a database with dead letters.
type morgue struct {
	t    *testing.T
	pool *pgxpool.Pool
	env  []string
}

func newMorgue(t *testing.T) *morgue {
	t.Helper()
	url := testenv.Database(t)
	return &morgue{t, testenv.Pool(t, url), []string{"DATABASE_URL=" + url}}
}

func (m *morgue) exec(sql string, args ...any) {
	m.t.Helper()
	if _, err := m.pool.Exec(m.t.Context(), sql, args...); err != nil {
		m.t.Fatalf("%s: %v", sql, err)
	}
}

func (m *morgue) one(sql string, args ...any) (text string) {
	m.t.Helper()
	if err := m.pool.QueryRow(m.t.Context(), sql, args...).Scan(&text); err != nil {
		m.t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// event is the id of the n-th event, in the form of the tables.
func event(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// fill makes five dead letters of books, two of tags and one chronicle event.
func (m *morgue) fill() {
	m.t.Helper()
	for _, table := range []string{"search_outbox_events", "chronicle_outbox_events"} {
		m.exec(`insert into `+table+` (id, entity_type, entity_id, op, event_version, status, attempts, error_reason, error, created_at, updated_at)
			select ('00000000-0000-4000-8000-' || lpad((n + $1)::text, 12, '0'))::uuid, case when n <= 5 then 'book' else 'tag' end,
			       ('00000000-0000-4000-9000-' || lpad(n::text, 12, '0'))::uuid, 'upsert', n, 'failed', 1,
			       case when n <= 5 then 'es_4xx' else 'deterministic_exception' end, E'field [rank_score]\n\tis out of range \x1b[31m' || repeat('x', 80),
			       '2026-05-04 03:02:01+00', '2026-05-04 04:00:00+00'::timestamptz + n * interval '1 min'
			from generate_series(1, $2) n`, map[bool]int{true: 0, false: 100}[table == "search_outbox_events"],
			map[bool]int{true: 7, false: 1}[table == "search_outbox_events"])
	}
	m.exec(`update search_outbox_events set replay_count = 2, last_replayed_by = 'bob', last_replayed_reason = 'a try', last_replayed_at = '2026-05-04 03:30:00+00'
		where event_version = 3`)
}

func TestFailed(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	if r := weft(t, m.env, "failed", "list"); r.code != 0 || r.out != "no dead letters\n" {
		t.Errorf("empty: got code %d and %q", r.code, r.out)
	}
	if r := weft(t, m.env, "failed", "summary", "--json"); r.code != 0 || r.out != "[]\n" {
		t.Errorf("empty: got code %d and %q", r.code, r.out)
	}
	m.fill()
	for name, args := range map[string][]string{
		"failed-summary-table.txt": {"summary"},
		"failed-summary.json":      {"summary", "--entity=tag", "--json"},
		"failed-list-table.txt":    {"list", "--limit=4"},
		"failed-list.json":         {"list", "--reason=es_4xx", "--since=2026-05-04T04:03:00Z", "--until=2026-05-04T04:04:00Z", "--json", "--projections=search_index_to_elastic"},
		"failed-show-table.txt":    {"show", event(3), event(101)},
		"failed-show.json":         {"show", event(7), "--json"},
	} {
		r := weft(t, m.env, append([]string{"failed"}, args...)...)
		if r.code != 0 || r.errOut != "" {
			t.Errorf("%v: got code %d and %q", args, r.code, r.errOut)
		}
		golden(t, name, r.out)
	}
	r := weft(t, m.env, "failed", "show", event(1), event(99))
	if want := "weft: not in failed: " + event(99) + "; `weft event` says where an event is\n"; r.code != exitBad || r.errOut != want || !strings.Contains(r.out, event(1)) {
		t.Errorf("got code %d, %q and %q, want %q", r.code, r.out, r.errOut, want)
	}
	for args, want := range map[string]int{
		"--since=1h":    0,
		"--entity=book": 5 + 1,
		"--entity=00000000-0000-4000-9000-000000000001":     2,
		"--entity=tag:00000000-0000-4000-9000-000000000006": 1,
		"--entity=tag:00000000-0000-4000-9000-000000000001": 0,
		"--until=2026-05-04T04:03:00Z":                      3,
		"--reason=deterministic_exception":                  2,
		"--reason=none":                                     0,
	} {
		var got records.DeadLetters
		r := weft(t, m.env, "failed", "list", "--json", args)
		if err := json.Unmarshal([]byte(r.out), &got); err != nil || got.Total != int64(want) || len(got.Listed) != want {
			t.Errorf("%s: got %d, %v, want %d", args, got.Total, err, want)
		}
	}
}

func TestFailedAndReplayUsage(t *testing.T) {
	t.Parallel()
	who := []string{"--by=alice", "--why=x"}
	for want, args := range map[string][]string{
		"say which dead letters: ids, --entity, --reason, --since, --until, or --all; see `weft replay --help`":                                 append([]string{"replay"}, who...),
		"ids, filters and --all exclude each other; see `weft replay --help`":                                                                   append([]string{"replay", "--all", "--reason=es_4xx"}, who...),
		"--by is missing: say who you are; see `weft replay --help`":                                                                            {"replay", "--all", "--why=x"},
		"--why is missing: say the reason; see `weft replay --help`":                                                                            {"replay", "--all", "--by=x"},
		"the reason: must not contain control characters; see `weft replay --help`":                                                             {"replay", "--all", "--by=x", "--why=a\nb"},
		"--rate \"-1\": want at least 0; see `weft replay --help`":                                                                              append([]string{"replay", "--all", "--rate=-1"}, who...),
		"\"x\" is no id of an event: want a UUID or a number; see `weft replay --help`":                                                         append([]string{"replay", "x"}, who...),
		"--entity \"book:\": the id is missing; the events of an entity whose id is empty are named by their own ids; see `weft replay --help`": append([]string{"replay", "--entity=book:"}, who...),
		"--entity \":7\": want TYPE:ID, ID or TYPE; see `weft replay --help`":                                                                   append([]string{"replay", "--entity=:7"}, who...),
		"--since \"-3h\": want a duration like 90m or 7d, or a time like 2026-05-04T03:02:01Z; see `weft replay --help`":                        append([]string{"replay", "--since=-3h"}, who...),
		"--until \"0001-01-01T00:00:00Z\": want a duration like 90m or 7d, or a time like 2026-05-04T03:02:01Z; see `weft replay --help`":       append([]string{"replay", "--until=0001-01-01T00:00:00Z"}, who...),
		"\"es_400\" is no reason: want one of es_429, es_4xx, es_5xx, es_timeout, es_connect, es_request_error, es_other, db_contention, db_unavailable, deterministic_exception, unknown_exception, none; see `weft failed list --help`": {"failed", "list", "--reason=es_400"},
		"--limit \"0\": want at least 1; see `weft failed list --help`": {"failed", "list", "--limit=0"},
		"the id of an event is missing; see `weft failed show --help`":  {"failed", "show"},
		"unexpected argument \"x\"; see `weft failed summary --help`":   {"failed", "summary", "x"},
		"a command is missing; see `weft failed --help`":                {"failed"},
		"--limit \"0\": want at least 1; see `weft audit --help`":       {"audit", "--limit=0"},
		"\"x\" is no action: want one of reclaim, session_ended, resign_requested, replay, discard, pause, resume, throttle, unthrottle, quarantine, release, prune, version_ahead, repair, load, rebuild, rebuild_pause, rebuild_resume, rebuild_abort, rebuild_drop_old, shards_create, shards_move, log_level; see `weft audit --help`": {"audit", "--action=x"},
	} {
		r := weft(t, []string{"DATABASE_URL=postgres://127.0.0.1:1/x"}, args...)
		if r.code != exitUsage || r.errOut != "weft: "+want+"\n" || r.out != "" {
			t.Errorf("%q: got code %d and %q, want %q", args, r.code, r.errOut, want)
		}
	}
}

// A span of time that ends before it begins selects nothing, and is a mistake.
func TestSinceIsBeforeUntil(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	r := weft(t, m.env, "replay", "--since=2h", "--until=3h", "--by=alice", "--why=x")
	if r.code != exitUsage || r.errOut != "weft: --since must be earlier than --until; see `weft replay --help`\n" {
		t.Errorf("got %+v", r)
	}
}

// Tables with other keys are of a later migration; here one is altered by hand.
func TestIDsAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	for want, args := range map[string][]string{
		"\"7\" is no id of an event here: want a uuid; see `weft failed show --help`":        {"failed", "show", "7"},
		"\"7\" is no id of an event here: want a uuid; see `weft replay --help`":             {"replay", "7", "--by=alice", "--why=x"},
		"\"7\" is no id of an entity here: want a uuid; see `weft failed list --help`":       {"failed", "list", "--entity=book:7"},
		"\"dune\" is no id of an entity here: want a uuid; see `weft replay --help`":         {"replay", "--entity=book:dune", "--by=alice", "--why=x"},
		"\"dune\" is no id of an entity here: want a uuid; see `weft failed summary --help`": {"failed", "summary", "--entity=book:dune"},
	} {
		if r := weft(t, m.env, args...); r.code != exitUsage || r.errOut != "weft: "+want+"\n" {
			t.Errorf("%q: got code %d and %q, want %q", args, r.code, r.errOut, want)
		}
	}
	m.exec("drop view weft_inflight, search_outbox_events_live")
	m.exec("alter table search_outbox_events drop column id, drop column entity_id")
	m.exec("alter table search_outbox_events add column id bigint primary key generated always as identity, add column entity_id text")
	m.exec("insert into search_outbox_events (entity_type, entity_id, op, event_version, status) select 'book', 'dune-' || n, 'upsert', n, 'failed' from generate_series(1, 3) n")
	env := append(m.env, "WEFT_PROJECTIONS=search_index_to_elastic")
	if r := weft(t, env, "failed", "show", "2"); r.code != 0 || !strings.Contains(r.out, "book:dune-2") {
		t.Errorf("show: got code %d, %q and %q", r.code, r.out, r.errOut)
	}
	if r := weft(t, env, "replay", "2", "--by=alice", "--why=x"); r.code != 0 || r.out != "search_index_to_elastic: 1 of 1 replayed; nobody leads, so that they wait for an instance\n" {
		t.Errorf("replay by id: got code %d, %q and %q", r.code, r.out, r.errOut)
	}
	if r := weft(t, env, "replay", "--entity=book:dune-3", "--by=alice", "--why=x"); r.code != 0 {
		t.Errorf("replay by entity: got code %d, %q and %q", r.code, r.out, r.errOut)
	}
	if got := m.one("select string_agg(id::text, ' ') from search_outbox_events where status = 'failed'"); got != "1" {
		t.Errorf("in failed: got %s, want 1", got)
	}
	if got := m.one("select count(*)::text from search_outbox_events where status = 'pending' and next_retry_at is not null"); got != "2" {
		t.Errorf("due: got %s, want the two that were replayed", got)
	}
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	who := []string{"replay", "--all", "--by=alice", "--why=x"}
	t.Run("WithoutMigration", func(t *testing.T) {
		t.Parallel()
		r := weft(t, []string{"DATABASE_URL=" + testenv.Schema(t)}, who...)
		if r.code != exitTryAgain || !strings.Contains(r.errOut, "run `weft migrate up`") {
			t.Errorf("got code %d and %q", r.code, r.errOut)
		}
	})
	t.Run("OtherEnvironment", func(t *testing.T) {
		t.Parallel()
		m := newMorgue(t)
		m.fill()
		m.exec("insert into environment_sentinel (id, env) values (1, 'dev')")
		for _, args := range [][]string{who, append(who, "--dry-run")} {
			if r := weft(t, append(m.env, "WORDLOOM_ENV=test"), args...); r.code != exitRefused || !strings.Contains(r.errOut, "dev") {
				t.Errorf("%v: got code %d and %q", args, r.code, r.errOut)
			}
		}
		if got := m.one("select count(*)::text from search_outbox_events where status = 'failed'"); got != "7" {
			t.Errorf("%s rows are in failed, want all 7", got)
		}
	})
	t.Run("ReadOnly", func(t *testing.T) {
		t.Parallel()
		m := newMorgue(t)
		m.fill()
		m.exec("alter database " + m.one("select current_database()") + " set default_transaction_read_only = on")
		if r := weft(t, m.env, who...); r.code != exitTryAgain {
			t.Errorf("got code %d and %q", r.code, r.errOut)
		}
	})
}

func TestReplayWithoutLeader(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.fill()
	m.env = append(m.env, "WEFT_GROUP=crew")
	r := weft(t, m.env, "replay", "--reason=es_4xx", "--limit=3", "--dry-run")
	if r.code != 0 || !strings.HasSuffix(r.out, "would replay 4 of 6\n") {
		t.Errorf("dry run: got code %d, %q and %q", r.code, r.out, r.errOut)
	}
	if got := m.one("select count(*)::text from weft_audit"); got != "0" {
		t.Errorf("a dry run has left %s entries in the audit", got)
	}
	r = weft(t, m.env, "replay", "--reason=es_4xx", "--limit=3", "--by=alice", "--why=mapping fixed", "--wait=1h")
	want := "search_index_to_elastic: 3 of 3 replayed; nobody leads, so that they wait for an instance\n" +
		"chronicle_events_to_entries: 1 of 1 replayed; nobody leads, so that they wait for an instance\n"
	if r.code != 0 || r.out != want || r.errOut != "" {
		t.Errorf("got code %d, %q and %q, want %q", r.code, r.out, r.errOut, want)
	}
	if got := m.one("select string_agg(event_version::text, ' ' order by event_version) from search_outbox_events where status = 'pending' and last_replayed_by = 'alice'"); got != "1 2 3" {
		t.Errorf("the versions %s are pending, want the three lowest", got)
	}
	r = weft(t, m.env, "replay", event(1), event(4), event(98), "--by=alice", "--why=x", "--json")
	var out replayed
	if err := json.Unmarshal([]byte(r.out), &out); err != nil {
		t.Fatal(err)
	}
	if r.code != exitBad || r.errOut != "weft: 2 of the 3 ids were not in failed; `weft event` says where an event is\n" || out.Projections[0].Replayed != 1 || out.Projections[0].Outcome != replay.Finished || out.Projections[0].Watched {
		t.Errorf("got code %d, %q and %s, want one replayed", r.code, r.errOut, r.out)
	}
	if r := weft(t, m.env, "replay", "--entity=shelf", "--by=alice", "--why=x"); r.code != 0 || r.out != "no dead letters to replay\n" {
		t.Errorf("got code %d and %q, want nothing to replay", r.code, r.out)
	}
	if r := weft(t, m.env, "replay", "--all", "--by=alice", "--why=x", "--rate=0"); r.code != 0 {
		t.Errorf("got code %d and %q", r.code, r.errOut)
	}
	if got := m.one("select count(*)::text from search_outbox_events where status = 'failed'"); got != "0" {
		t.Errorf("%s are left in failed, want none", got)
	}

	r = weft(t, m.env, "audit", "--action=replay", "--projection=search_index_to_elastic")
	line := regexp.MustCompile(`(?m)^\S+Z  replay  alice  3      search_index_to_elastic  -     mapping fixed  finished; 0 done, 0 failed again, 3 open$`)
	if r.code != 0 || !line.MatchString(r.out) || strings.Count(r.out, "\n") != 4 {
		t.Errorf("audit: got code %d and\n%s, want three replays, one as %s", r.code, r.out, line)
	}
	var entries []records.AuditEntry
	r = weft(t, m.env, "audit", "--by=alice", "--since=1h", "--json", "--limit=2")
	if err := json.Unmarshal([]byte(r.out), &entries); err != nil || len(entries) != 2 || entries[0].Actor != "alice" || !strings.Contains(string(entries[0].Detail), `"all": true`) {
		t.Errorf("audit: got %s, %v, want the newest two with their selectors", r.out, err)
	}
}

// A leader that answers is watched: here somebody settles in its name.
func TestReplayTellsWhatBecameOfThem(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fate      string // of what is pending, in SQL
		args      []string
		code      int
		out, errs string
	}{
		"Done": {"status = 'done'", nil, 0,
			"search_index_to_elastic: 7 of 7 replayed: 7 done, 0 failed again, 0 not settled yet\n", ""},
		"SomeFail": {"status = case when event_version = 2 then 'failed' else 'done' end, error = 'still no'", nil, exitBad,
			"search_index_to_elastic: 7 of 7 replayed: 6 done, 1 failed again, 0 not settled yet\n", "weft: 1 failed again (es_4xx: still no)\n"},
		"Open": {"status = 'processing'", []string{"--wait=300ms"}, exitInconclusive,
			"search_index_to_elastic: 7 of 7 replayed: 0 done, 0 failed again, 7 not settled yet\n", "weft: 7 are not settled yet; see `weft status`\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrew(t)
			m := &morgue{t, c.pool, c.env}
			m.fill()
			c.join("a", atOnce)
			ctx, cancel := context.WithCancel(context.Background())
			settled := make(chan struct{})
			go func() {
				defer close(settled)
				for range testenv.Every(ctx, 5*time.Millisecond) {
					_, _ = c.pool.Exec(ctx, "update search_outbox_events set "+tt.fate+", updated_at = clock_timestamp() where status = 'pending'")
				}
			}()
			defer func() { cancel(); <-settled }()
			r := weft(t, m.env, append([]string{"replay", "--all", "--by=alice", "--why=x", "--projections=search_index_to_elastic"}, tt.args...)...)
			if r.code != tt.code || r.out != tt.out || r.errOut != tt.errs {
				t.Errorf("got code %d, %q and %q, want %d, %q and %q", r.code, r.out, r.errOut, tt.code, tt.out, tt.errs)
			}
		})
	}
}

func TestReplayStopsWhenNothingGoesThrough(t *testing.T) {
	t.Parallel()
	got := replayed{Projections: []replayedByProject{{Projection: "p", Matched: 90, Replayed: 10, Failed: 10, Outcome: replay.Stopped, Watched: true, Reason: "es_4xx", Error: "no"}}}
	err := got.verdict(0)
	code, lines := explain(err)
	if want := "stopped: all of the last 10 failed again (es_4xx: no); fix the cause first, or use --keep-going"; code != exitBad || lines[0] != want {
		t.Errorf("got %d, %q, want %q", code, lines, want)
	}
}

// The bar belongs to a terminal; elsewhere a line comes now and then.
func TestMeter(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	m := newMeter(&b, "p")
	p := replay.Progress{Matched: 10, Sent: 4, Done: 2, Failed: 1, Open: 1}
	m.replayed(p)
	if b.Len() > 0 {
		t.Errorf("at once: %q, want nothing yet", b.String())
	}
	m.last = m.last.Add(-meterEvery)
	m.replayed(p)
	m.note("waiting")
	if want := "weft: p: 2 done, 1 failed again, 1 on the way, 4 of 10 sent\nweft: waiting\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// No time left is told of a comparison that has read nothing yet.
func TestMeterOfAComparison(t *testing.T) {
	t.Parallel()
	for seen, want := range map[int64]string{
		0:   "weft: p: 0 of about 400 rows and documents, 0 differ, 0 a second, an unknown time left\n",
		100: "weft: p: 100 of about 400 rows and documents, 0 differ, 10 a second, about 30s left\n",
	} {
		var b bytes.Buffer
		m := newMeter(&b, "p")
		m.last = m.last.Add(-meterEvery)
		m.verified(verify.Report{Total: 400, Seen: seen}, 10*time.Second)
		if b.String() != want {
			t.Errorf("%d seen: got %q, want %q", seen, b.String(), want)
		}
	}
}

func TestAuditOutcome(t *testing.T) {
	t.Parallel()
	for detail, want := range map[string]string{
		`null`: "-", `{"outcome":"running"}`: "running, or killed",
		`{"outcome":"finished","done":3,"failed_again":1,"open":2}`: "finished; 3 done, 1 failed again, 2 open",
	} {
		if got := records.OutcomeOf(outbox.AuditEntry{Action: "replay", Detail: []byte(detail)}); got != want {
			t.Errorf("%s: got %q, want %q", detail, got, want)
		}
	}
	if got := records.OutcomeOf(outbox.AuditEntry{Action: "prune", Detail: []byte(`{"outcome":"finished","deleted":7,"partitions":["a","b"]}`)}); got != "finished; 7 deleted, 2 days dropped" {
		t.Errorf("prune: got %q", got)
	}
	if got := records.OutcomeOf(outbox.AuditEntry{Action: "version_ahead", Detail: []byte(`{"entities":["book:1","tag:2"]}`)}); got != "book:1, tag:2" {
		t.Errorf("version_ahead: got %q", got)
	}
	if got := records.OutcomeOf(outbox.AuditEntry{Action: "reclaim", Detail: []byte(`{"outcome":"x"}`)}); got != "-" {
		t.Errorf("reclaim: got %q", got)
	}
}
