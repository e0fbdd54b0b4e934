package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// finishedSite is a migrated database with finished events in the table and in the history:
// ten of today and five of each of two days of the past in both.
func finishedSite(t *testing.T) (dsn string, owner *pgxpool.Pool) {
	t.Helper()
	dsn = testenv.Database(t)
	owner = testenv.Pool(t, dsn)
	for _, sql := range []string{
		`select weft_history_attach('search_outbox_events', (now() at time zone 'UTC')::date - d) from unnest(array[0, 40, 50]) d`,
		fmt.Sprintf(fillFinished, "search_outbox_events", 10, 0), fmt.Sprintf(fillFinished, "search_outbox_events", 5, 40), fmt.Sprintf(fillFinished, "search_outbox_events", 5, 50),
		fmt.Sprintf(fillFinished, "search_outbox_history", 10, 0), fmt.Sprintf(fillFinished, "search_outbox_history", 5, 40), fmt.Sprintf(fillFinished, "search_outbox_history", 5, 50),
		`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, updated_at)
		 select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', 1, s, now() - interval '90 days' from unnest(array['pending', 'failed', 'processing']) s`,
	} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	// Inserts that are counted after the analysis would be counted twice.
	testenv.Eventually(t, func() bool {
		return text(t, owner, "select coalesce(sum(n_tup_ins), 0)::text from pg_stat_user_tables where relname like 'search_outbox_history%'") == "20"
	}, "the server has counted the inserts")
	if _, err := owner.Exec(t.Context(), "analyze search_outbox_history"); err != nil {
		t.Fatal(err)
	}
	return dsn, owner
}

const fillFinished = `insert into %s (id, entity_type, entity_id, op, event_version, status, processed_at)
	select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', i, 'done', now() - %[3]d * interval '24 hours' from generate_series(1, %[2]d) i`

const leftFinished = `select format('%s %s %s', (select count(*) from search_outbox_events where status = 'done'),
	(select count(*) from search_outbox_history), (select count(*) from weft_history_partitions('search_outbox_events')))`

func text(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (s string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// TestPrune: a dry run tells what the next one removes, which leaves what is younger and
// what is not finished, and is kept in the audit.
func TestPrune(t *testing.T) {
	t.Parallel()
	dsn, owner := finishedSite(t)
	env := []string{"DATABASE_URL=" + dsn}
	const before = "20 20 3"

	dry := weft(t, env, "prune", "--older-than=45d", "--dry-run")
	if dry.code != 0 || !strings.Contains(dry.out, "search_index_to_elastic: 5 done events would be deleted from search_outbox_events, 1 day of the history would be dropped") ||
		!strings.Contains(dry.out, "chronicle_events_to_entries: 0 done events would be deleted") {
		t.Errorf("dry run: got %+v", dry)
	}
	if got := text(t, owner, leftFinished); got != before {
		t.Errorf("after the dry run: got %s, want %s as before", got, before)
	}
	for i, tc := range []struct {
		olderThan, left string
		deleted, days   int
	}{{"60d", before, 0, 0}, {"45d", "15 15 2", 5, 1}, {"840h", "10 10 1", 5, 1}, {"35d", "10 10 1", 0, 0}} {
		r := weft(t, env, "prune", "--older-than", tc.olderThan, "--projection=search_index_to_elastic", "--json")
		var out pruned
		if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 || len(out.Projections) != 1 {
			t.Fatalf("%s: got %+v, %v", tc.olderThan, r, err)
		}
		p := out.Projections[0]
		if p.Deleted != int64(tc.deleted) || len(p.Partitions) != tc.days || p.Outcome != "finished" || p.AuditID == 0 || out.By != person() {
			t.Errorf("%s: got %+v, want %d events and %d days", tc.olderThan, out, tc.deleted, tc.days)
		}
		if tc.days == 1 && (p.Partitions[0].Estimate != 5 || p.Partitions[0].Until.Sub(p.Partitions[0].From).Hours() != 24 || !strings.HasPrefix(p.Partitions[0].Name, "search_outbox_history_")) {
			t.Errorf("%s: partition %+v", tc.olderThan, p.Partitions[0])
		}
		if got := text(t, owner, leftFinished); got != tc.left {
			t.Errorf("%s: left %s, want %s", tc.olderThan, got, tc.left)
		}
		want := fmt.Sprintf("prune search_index_to_elastic %d finished", tc.deleted+5*tc.days)
		if got := text(t, owner, `select format('%s %s %s %s', action, projection, count, detail->>'outcome') from weft_audit where id = $1`, p.AuditID); got != want {
			t.Errorf("%s, run %d: audit %q, want %q", tc.olderThan, i, got, want)
		}
	}
	if got := text(t, owner, `select count(*)::text from search_outbox_events where status <> 'done'`); got != "3" {
		t.Errorf("events that are not finished: got %s, want 3", got)
	}
}

// TestPruneByARoleThatOwnsNothing: it drops days with the right to it, and beside a reader
// says to come again.
func TestPruneByARoleThatOwnsNothing(t *testing.T) {
	t.Parallel()
	dsn, owner := finishedSite(t)
	user := testenv.Runner(t, dsn)
	env := []string{"DATABASE_URL=" + testenv.As(t, dsn, user)}
	if r := weft(t, env, "prune", "--older-than=30d"); r.code != exitRefused || !strings.Contains(r.errOut, "permission denied") {
		t.Errorf("without the right: got %+v, want code %d", r, exitRefused)
	}
	if got := text(t, owner, leftFinished); got != "20 20 3" {
		t.Errorf("without the right: left %s, want all", got)
	}
	if err := migrations.Grant(t.Context(), dsn, user.Username(), migrations.Mode{Table: "search_outbox_events", Retention: true},
		migrations.Mode{Table: "chronicle_outbox_events", Retention: true}); err != nil {
		t.Fatal(err)
	}
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select count(*) from search_outbox_history"); err != nil {
		t.Fatal(err)
	}
	inUse := func(r result, days string) {
		t.Helper()
		if r.code != exitTryAgain || !strings.Contains(r.out, days+" of the history dropped; finished but for days in use\nchronicle_events_to_entries: 0 ") ||
			!strings.Contains(r.errOut, "is in use") {
			t.Errorf("beside a reader: got %+v, want code %d, and %s removed", r, exitTryAgain, days)
		}
	}
	inUse(weft(t, env, "prune", "--older-than=45d"), "5 done events deleted from search_outbox_events, 0 days")
	inUse(weft(t, []string{"DATABASE_URL=" + dsn}, "prune", "--older-than=30d", "--wait=1s"), "5 done events deleted from search_outbox_events, 0 days")
	if got := text(t, owner, `select string_agg(detail->>'outcome', ', ' order by id) from weft_audit where action = 'prune' and projection = 'search_index_to_elastic'`); got != "broken off by an error, finished but for days in use, finished but for days in use" {
		t.Errorf("audit: got %q", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := weft(t, env, "prune", "--older-than=30d", "--rate=0"); r.code != 0 {
		t.Errorf("got %+v, want it done", r)
	}
	if got := text(t, owner, leftFinished); got != "10 10 1" {
		t.Errorf("left %s, want today's", got)
	}
}

// A session waits 3 s for locks unless it is told otherwise.
func TestPruneWaitsForReadersOfTheHistory(t *testing.T) {
	t.Parallel()
	dsn, owner := finishedSite(t)
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select count(*) from search_outbox_history"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan result, 1)
	go func() {
		ended <- weft(t, []string{"DATABASE_URL=" + dsn}, "prune", "--older-than=30d", "--projection=search_index_to_elastic", "--wait=10m")
	}()
	testenv.Eventually(t, func() bool {
		return len(ended) > 0 || text(t, owner, `select exists (select from pg_stat_activity where datname = current_database()
			and application_name = 'weft/prune' and query like '%detach partition%' and clock_timestamp() - query_start > interval '3.2 s')::text`) == "true"
	}, "the command waits for longer than that")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.code != 0 || text(t, owner, leftFinished) != "10 10 1" {
		t.Errorf("got %+v, left %s; want today's", r, text(t, owner, leftFinished))
	}
}

// TestPruneInterrupted stops between two batches, and the audit says how far it came.
func TestPruneInterrupted(t *testing.T) {
	t.Parallel()
	dsn, owner := finishedSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errOut buffer
	a := &app{environ: []string{"DATABASE_URL=" + dsn}, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, signals: notify}
	code := make(chan int, 1)
	go func() {
		code <- a.execute(ctx, []string{"prune", "--older-than=30d", "--projection=search_index_to_elastic", "--rate=1"})
	}()
	testenv.Eventually(t, func() bool { return !strings.HasPrefix(text(t, owner, leftFinished), "20 ") }, "the first row is deleted")
	cancel()
	if got := <-code; got != exitTryAgain || !strings.Contains(errOut.String(), "interrupted: what is removed stays removed") {
		t.Errorf("got code %d and %q, want %d", got, errOut.String(), exitTryAgain)
	}
	if got := text(t, owner, `select format('%s %s', detail->>'outcome', count > 10) from weft_audit where action = 'prune'`); got != "interrupted t" {
		t.Errorf("audit: got %q, want interrupted, with the days and some rows", got)
	}
	if r := weft(t, []string{"DATABASE_URL=" + dsn}, "prune", "--older-than=30d"); r.code != 0 || text(t, owner, leftFinished) != "10 10 1" {
		t.Errorf("again: got %+v, left %s", r, text(t, owner, leftFinished))
	}
}

// Commands at the same time share the days: what another one was quicker to remove is no fault.
func TestPrunesAtTheSameTimeShareTheDays(t *testing.T) {
	t.Parallel()
	dsn, owner := finishedSite(t)
	if _, err := owner.Exec(t.Context(), `select weft_history_attach('search_outbox_events', (now() at time zone 'UTC')::date - d) from generate_series(60, 90) d`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan result, 3)
	for range cap(ended) {
		go func() {
			ended <- weft(t, []string{"DATABASE_URL=" + dsn}, "prune", "--older-than=30d", "--projection=search_index_to_elastic", "--json")
		}()
	}
	days := 0
	for range cap(ended) {
		r := <-ended
		var out pruned
		if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 || len(out.Projections) != 1 {
			t.Errorf("got %+v, %v", r, err)
			continue
		}
		days += len(out.Projections[0].Partitions)
	}
	if got := text(t, owner, leftFinished); days != 33 || got != "10 10 1" {
		t.Errorf("%d days removed, left %s; want 33 and today's", days, got)
	}
}

// A day that was detached and could not be dropped is a table of its own, which no later command removes.
func TestPruneNamesADayThatItLeaves(t *testing.T) {
	t.Parallel()
	dsn, owner := finishedSite(t)
	if _, err := owner.Exec(t.Context(), `create function refuse() returns event_trigger language plpgsql as $$ begin raise 'terminating connection' using errcode = 'admin_shutdown'; end $$;
		create event trigger refuse on ddl_command_start when tag in ('DROP TABLE') execute function refuse()`); err != nil {
		t.Fatal(err)
	}
	r := weft(t, []string{"DATABASE_URL=" + dsn}, "prune", "--older-than=45d", "--projection=search_index_to_elastic")
	name := text(t, owner, "select relname::text from pg_class where relname like 'search_outbox_history_%' and relkind = 'r' and not relispartition")
	if r.code != exitUnavailable || !strings.Contains(r.errOut, name+" is detached and not dropped: Postgres at ") || !strings.HasSuffix(r.errOut, "; then `drop table public."+name+"` finishes its removal\n") {
		t.Errorf("got %+v, want code %d and what removes %s", r, exitUnavailable, name)
	}
}

func TestPruneRefuses(t *testing.T) {
	t.Parallel()
	dsn, owner := finishedSite(t)
	env := []string{"DATABASE_URL=" + dsn}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "--older-than is missing"},
		{[]string{"--older-than=0"}, exitUsage, "want a duration of more than 0 such as 30d or 36h"},
		{[]string{"--older-than=0d"}, exitUsage, "want a duration of more than 0"},
		{[]string{"--older-than=-30d"}, exitUsage, "want a duration of more than 0"},
		{[]string{"--older-than=30"}, exitUsage, "want a duration of more than 0"},
		{[]string{"--older-than=forever"}, exitUsage, "want a duration of more than 0"},
		{[]string{"--older-than=30d", "--projection=books"}, exitUsage, `"books" is no projection: want one of chronicle_events_to_entries, search_index_to_elastic`},
		{[]string{"--older-than=30d", "--rate=-1"}, exitUsage, `--rate "-1": want at least 0`},
		{[]string{"--older-than=30d", "--wait=0s"}, exitUsage, `--wait "0s": want at least 1s`},
		{[]string{"--older-than=30d", "--by=" + strings.Repeat("x", 121)}, exitUsage, "--by must not be longer"},
		{[]string{"--older-than=30d", "7"}, exitUsage, `unexpected argument "7"`},
		{[]string{"--older-than=30d", "--env=test"}, exitRefused, "environment"},
	} {
		if r := weft(t, env, append([]string{"prune"}, tc.args...)...); r.code != tc.code || !strings.Contains(r.errOut, tc.want) {
			t.Errorf("%v: got code %d and %q, want %d and %q", tc.args, r.code, r.errOut, tc.code, tc.want)
		}
	}
	if _, err := owner.Exec(t.Context(), "alter table search_outbox_events enable row level security"); err != nil {
		t.Fatal(err)
	}
	if r := weft(t, env, "prune", "--older-than=30d"); r.code != exitConfig || !strings.Contains(r.errOut, "cannot delete finished events: it has row security: turn it off") {
		t.Errorf("a table that must not lose rows: got %+v", r)
	}
	if got := text(t, owner, leftFinished); got != "20 20 3" {
		t.Errorf("left %s, want all", got)
	}
}
