package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// TestEvent: wherever an event is, the command finds it, says where, and what to do.
func TestEvent(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	env := []string{"DATABASE_URL=" + testenv.As(t, dsn, testenv.Runner(t, dsn))}
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	entity := uuid.NewString()
	insert := func(version int, more string) string {
		t.Helper()
		id := uuid.NewString()
		exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, traceparent)
			values ($1, 'block', $2, 'upsert', $3, '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01')`, id, entity, version)
		if more != "" {
			exec("update search_outbox_events set "+more+" where id = $1", id)
		}
		return id
	}
	lease := func(id, owner string, epoch int, since string) {
		t.Helper()
		exec(`insert into weft_lease (batch, table_name, group_name, owner, epoch, leased_at, lease_until, uuids)
			values (gen_random_uuid(), 'search_outbox_events', 'weft', $2, $3, now() - $4::interval, now() + interval '30 s', array[$1::uuid])`, id, owner, epoch, since)
	}
	first := insert(1, "next_retry_at = now() + interval '10 min', attempts = 3, error_reason = 'es_5xx', error = E'boom\\nand more'")
	behind := insert(2, "next_retry_at = now() + interval '1 h', behind = 1")
	ready, due := insert(3, ""), insert(4, "next_retry_at = now() - interval '1 min', reclaims = 2")
	flying, stuck, orphan := insert(5, ""), insert(6, ""), insert(7, "")
	foreign, expired, older := insert(8, "status = 'processing', owner = 'python-1', lease_until = now() + interval '1 min', processing_started_at = now()"),
		insert(9, "status = 'processing', owner = 'python-1', lease_until = now() - interval '1 min'"), insert(10, "status = 'processing', owner = 'weft-old', epoch = 3")
	nameless := insert(15, "status = 'processing'")
	failed := insert(11, "status = 'failed', error_reason = 'es_4xx', replay_count = 2, last_replayed_by = 'alice', last_replayed_reason = 'fixed', last_replayed_at = now()")
	done, odd := insert(12, "status = 'done', processed_at = now()"), insert(13, "status = 'parked'")
	parked, after := insert(16, "next_retry_at = 'infinity'"), insert(17, "")
	exec(`insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('weft', 7, 'weft-a', now(), now())`)
	lease(flying, "weft-a", 7, "1 s")
	lease(stuck, "weft-a", 7, "2 h")
	lease(orphan, "weft-b", 6, "1 min")
	archived := uuid.NewString()
	exec(`select weft_history_attach('search_outbox_events', (now() at time zone 'UTC')::date)`)
	exec(`insert into search_outbox_history (id, entity_type, entity_id, op, event_version, status, attempts, reclaims, replay_count, processed_at)
		values ($1, 'block', $2, 'delete', 14, 'done', 0, 0, 0, now())`, archived, entity)

	const nobody = "Nobody leads group weft: start `weft run`"
	for _, tc := range []struct {
		id, place string
		want      []string
	}{
		{first, "waiting", []string{"waits for its retry time, 20", "tried again at its retry time", "es_5xx in docs/runbooks/reasons.md", "boom and more", nobody}},
		{behind, "behind", []string{"put off behind version 1 of its entity", "weft event " + first, "before it", first + ", version 1: tried at 20", nobody}},
		{ready, "ready", []string{"never tried", "after the earlier open events", behind + ", version 2: put off behind version 1", nobody}},
		{due, "due", []string{"due since 20", "taken back 2 times in a row", ready + ", version 3: ready"}},
		{flying, "in_flight", []string{"of weft-a, epoch 7, since 20", "weft-a had it in flight when its term ended; the next leader takes it back", nobody}},
		{stuck, "in_flight", []string{"in flight for 2h", "look at the log of weft-a", flying + ", version 5: in flight"}},
		{orphan, "in_flight", []string{"of weft-b, epoch 6", "takes it back when its own term begins"}},
		{foreign, "claimed", []string{"claimed by python-1", "Another worker has claimed it", "Stop the other worker"}},
		{expired, "claimed", []string{"its lease is over", "outbox.reclaim_interval", foreign + ", version 8: claimed by another worker"}},
		{older, "claimed", []string{"claimed by weft-old", "a build before leases has claimed it"}},
		{nameless, "claimed", []string{"claimed by - since -, lease until -", "without a lease time, after outbox.max_processing"}},
		{failed, "failed", []string{"a dead letter since 20", "es_4xx", "weft replay " + failed + " --by", "2×, last at 20", "by alice: fixed"}},
		{done, "done", []string{"done at 20", "Nothing: it is done"}},
		{parked, "waiting", []string{"parked: its retry time is infinity", "Ask who has parked it: weft never tries it", `update "search_outbox_events" set next_retry_at = now() where id = '` + parked + "';"}},
		{after, "ready", []string{parked + ", version 16: parked"}},
		{odd, "other", []string{`status "parked"`, "none of weft's"}},
		{archived, "archived", []string{"archived in search_outbox_history_20", "delete, version 14", "Nothing: it is done"}},
	} {
		r := weft(t, env, "event", tc.id)
		for _, want := range append(tc.want, tc.id, "block:"+entity, "search_index_to_elastic, table search_outbox_events") {
			if r.code != 0 || !strings.Contains(r.out, want) {
				t.Errorf("%s: got code %d and\n%s%s\nwant %q in it", tc.place, r.code, r.out, r.errOut, want)
			}
		}
		j := weft(t, env, "event", strings.ToUpper(tc.id), "--json")
		var out []records.Story
		if err := json.Unmarshal([]byte(j.out), &out); err != nil || j.code != 0 || len(out) != 1 || out[0].Place != tc.place || out[0].ID != tc.id || out[0].Advice == "" || out[0].Before == nil {
			t.Errorf("%s: got %+v, %v", tc.place, j, err)
			continue
		}
		if tc.place != "archived" && out[0].TraceID != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s: trace %q", tc.place, out[0].TraceID)
		}
	}

	if r := weft(t, env, "event", uuid.NewString()); r.code != exitBad || !strings.Contains(r.errOut, "is in no outbox table and not in the one day of the history since 20") {
		t.Errorf("unknown: got %+v, want code 1 and where it was looked for", r)
	}
	if r := weft(t, env, "event", uuid.NewString(), "--json"); r.code != exitBad || r.out != "[]\n" {
		t.Errorf("unknown, JSON: got %+v, want an empty list and code 1", r)
	}
	if r := weft(t, env, "event", "4711"); r.code != exitUsage || !strings.Contains(r.errOut, `"4711" is no id of an event here: want a uuid; see`) {
		t.Errorf("a number: got %+v, want the kind of id that is wanted", r)
	}
	for _, args := range [][]string{nil, {"x"}, {first, behind}, {"0af7651916cd43dd8448eb211c80319c00"}} {
		if r := weft(t, env, append([]string{"event"}, args...)...); r.code != exitUsage || r.out != "" {
			t.Errorf("%v: got %+v, want code %d", args, r, exitUsage)
		}
	}
}
