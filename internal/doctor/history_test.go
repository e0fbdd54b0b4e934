package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

const archived, itsHistory = "search_outbox_events", "search_outbox_history"

// archivist is an examination of a database whose history has the days of yesterday and the week ahead, as a leader makes
// them. day returns the name of the partition of a day from today.
func archivist(t *testing.T) (e *examination, pool *pgxpool.Pool, day func(n int) string) {
	t.Helper()
	url := testenv.Database(t)
	pool = testenv.Pool(t, url)
	exec(t, pool, "select weft_history_attach('"+archived+"', (now() at time zone 'UTC')::date + n) from generate_series(-2, 7) n")
	e = patient(t, url)
	e.Modes = []migrations.Mode{{Table: archived, Finished: string(outbox.Archive)}}
	var today time.Time
	if err := pool.QueryRow(t.Context(), "select (now() at time zone 'UTC')::date").Scan(&today); err != nil {
		t.Fatal(err)
	}
	return e, pool, func(n int) string { return itsHistory + today.AddDate(0, 0, n).Format("_20060102") }
}

// examined runs the check of the history.
func (e *examination) examined(t *testing.T) []Finding {
	t.Helper()
	e.found = nil
	if err := e.history(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e.found
}

// only wants one finding, and returns it.
func only(t *testing.T, found []Finding) Finding {
	t.Helper()
	if len(found) != 1 {
		t.Fatalf("got %+v, want one finding", found)
	}
	return found[0]
}

// heal runs the statements of remedies, and wants nothing to be found afterwards.
func (e *examination) heal(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	exec(t, pool, statements...)
	if found := e.examined(t); len(found) > 0 {
		t.Errorf("after %q: got %+v, want nothing", statements, found)
	}
}

// The days that a history lacks are named, with the statement that makes them; a leader makes the last of the week within an
// hour, and a table whose finished events stay needs none.
func TestMissingDaysOfTheHistoryAreFound(t *testing.T) {
	t.Parallel()
	e, pool, day := archivist(t)
	exec(t, pool, "drop table "+day(7))
	if found := e.examined(t); len(found) > 0 {
		t.Errorf("a healthy history: got %+v, want nothing", found)
	}
	exec(t, pool, "drop table "+day(2), "drop table "+day(4))
	found := e.examined(t)
	wantFinding(t, found, want{"history.days", Warning, itsHistory, "it will lack days: once one begins, its finished events stay in " + archived, "select weft_history_attach('" + archived + "'"})
	e.heal(t, pool, only(t, found).Remedy)

	exec(t, pool, "drop table "+day(3), fmt.Sprintf(`do $$ begin execute format('create table %s partition of `+itsHistory+` for values from (%%L) to (%%L)',
		(now() at time zone 'UTC')::date + 3 || ' 00:00Z', (now() at time zone 'UTC')::date + 3 || ' 18:00Z'); end $$`, day(3)))
	found = e.examined(t) // of a day that is covered in part, too
	wantFinding(t, found, want{"history.days", Warning, itsHistory, "it will lack days", "select weft_history_attach('" + archived + "'"})
	e.heal(t, pool, only(t, found).Remedy)

	for n := range 7 {
		exec(t, pool, "drop table "+day(n))
	}
	found = e.examined(t)
	wantFinding(t, found, want{"history.days", Warning, itsHistory, "it lacks the day of today", "select weft_history_attach('" + archived + "'"})
	remedy := only(t, found).Remedy
	e.Modes[0].Finished = string(outbox.Keep)
	if kept := e.examined(t); len(kept) > 0 {
		t.Errorf("events are kept: got %+v, want nothing", kept)
	}
	e.Modes[0].Finished = string(outbox.Archive)
	e.heal(t, pool, remedy)
}

// A column that the application has added is not in the history until the next migration, and finished events stay in the table.
func TestMissingColumnsOfTheHistoryAreFound(t *testing.T) {
	t.Parallel()
	e, pool, _ := archivist(t)
	exec(t, pool, "alter table "+archived+" add column colour text")
	wantFinding(t, e.examined(t), want{"history.columns", Warning, itsHistory, "it lacks columns of " + archived + " (colour): finished events stay there", "weft migrate up"})
	if _, err := migrations.Up(t.Context(), pool.Config().ConnString()); err != nil {
		t.Fatal(err)
	}
	e.heal(t, pool)
}

// A history without any day lacks none before the first start, which makes them; with an instance that runs it does.
func TestHistoryBeforeTheFirstStartLacksNothing(t *testing.T) {
	t.Parallel()
	e, pool, day := archivist(t)
	for n := -2; n <= 7; n++ {
		exec(t, pool, "drop table "+day(n))
	}
	if found := e.examined(t); len(found) > 0 {
		t.Errorf("before the first start: got %+v, want nothing", found)
	}
	if _, err := leader.Announce(t.Context(), pool, leader.Instance{Group: "g", Name: "a", Role: leader.RoleLeader}, 0); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, e.examined(t), want{"history.days", Warning, itsHistory, "it lacks the day of today", "select weft_history_attach('" + archived + "'"})
}

// A day that a killed command has left as a table of its own is named until it is dropped or attached again.
func TestDetachedDayIsFound(t *testing.T) {
	t.Parallel()
	e, pool, day := archivist(t)
	exec(t, pool, "create table "+itsHistory+"_99999999 ()", "create table "+itsHistory+"_old ()")
	detach := func(n int) (drop, attach string) {
		t.Helper()
		exec(t, pool, "alter table "+itsHistory+" detach partition "+day(n))
		found := e.examined(t)
		wantFinding(t, found, want{"history.days", Warning, day(n), "it is detached from " + itsHistory, "attach partition"})
		remedy := only(t, found).Remedy
		_, drop, _ = strings.Cut(remedy, "removal: ")
		drop, _, _ = strings.Cut(drop, ";")
		return drop, remedy[strings.Index(remedy, "alter table"):]
	}
	_, attach := detach(-1)
	e.heal(t, pool, attach)
	drop, _ := detach(-2)
	e.heal(t, pool, drop)
	_, attach = detach(0) // weft_history_attach would refuse the name
	e.heal(t, pool, attach)
}

// So is one of a part of a day, which is attached again with its own bounds.
func TestDetachedPartOfADayIsFound(t *testing.T) {
	t.Parallel()
	e, pool, day := archivist(t)
	exec(t, pool, "create table "+day(-1)+"_99 ()", "create table "+day(-1)+"_06x ()", "create table "+itsHistory+"s_20260101_06 ()")
	for _, n := range []int{0, -1} {
		exec(t, pool, "drop table "+day(n), fmt.Sprintf(`do $$ declare d timestamptz := (now() at time zone 'UTC')::date %+d || ' 00:00Z'; begin
			execute format('create table %s partition of `+itsHistory+` for values from (%%L) to (%%L)', d, d + interval '90 minutes');
			execute format('create table noon%d partition of `+itsHistory+` for values from (%%L) to (%%L)', d + interval '12 hours', d + interval '13 hours');
			end $$`, n, day(n), -n), fmt.Sprintf("select weft_history_attach('"+archived+"', (now() at time zone 'UTC')::date %+d)", n))
	}
	for _, part := range []string{day(0), day(0) + "_013", day(0) + "_13", day(-1), day(-1) + "_013", day(-1) + "_13"} {
		exec(t, pool, "alter table "+itsHistory+" detach partition "+part)
		found := e.examined(t)
		wantFinding(t, found, want{"history.days", Warning, part, "it is detached from " + itsHistory, "attach partition"})
		remedy := only(t, found).Remedy
		e.heal(t, pool, remedy[strings.Index(remedy, "alter table"):])
	}
}

// A detachment that was interrupted is named, and ended by its remedy.
func TestHalfDetachedDayIsFound(t *testing.T) {
	t.Parallel()
	e, pool, day := archivist(t)
	reader, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.Background()) }()
	if _, err := reader.Exec(t.Context(), "select from "+itsHistory); err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	testenv.Eventually(t, func() (half bool) { // on a slow machine the time may be over before it is half-detached
		for _, s := range []string{"set statement_timeout = '500ms'", "alter table " + itsHistory + " detach partition " + day(-1) + " concurrently"} {
			_, err = conn.Exec(t.Context(), s)
		}
		if err == nil {
			t.Fatal("the detachment did not wait for a reader")
		}
		err = pool.QueryRow(t.Context(), "select exists (select from pg_inherits where inhdetachpending)").Scan(&half)
		return err == nil && half
	}, "a day that is half-detached")
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := e.examined(t)
	wantFinding(t, found, want{"history.days", Warning, day(-1), "it is half detached from " + itsHistory, "finalize;"})
	exec(t, pool, only(t, found).Remedy)
	found = e.examined(t)
	wantFinding(t, found, want{"history.days", Warning, day(-1), "`weft prune` leaves it", "drop table"})
	e.heal(t, pool, fmt.Sprintf("drop table %s", day(-1)))
}

// A role that may not ask for the days of a history is told so, and the other checks go on.
func TestDaysOfTheHistoryWithoutTheRight(t *testing.T) {
	t.Parallel()
	e, pool, _ := archivist(t)
	role := testenv.Runner(t, e.Pool.Config().ConnString())
	exec(t, pool, "revoke execute on function weft_history_partitions(text) from public, "+pgx.Identifier{role.Username()}.Sanitize())
	other := patient(t, testenv.As(t, e.Pool.Config().ConnString(), role))
	other.Modes = e.Modes
	found, err := other.all(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, found, want{"history.days", Warning, "", "could not be examined: ", ""})
	wantFinding(t, found, want{"history.days", Warning, "", "permission denied for function weft_history_partitions", ""})
	wantFinding(t, found, want{"postgres.rights", Error, role.Username(), "weft_history_attach", ""})
	if kind, _ := postgres.Diagnose(other.history(t.Context())); kind != postgres.PermissionDenied {
		t.Errorf("got %v, want %v", kind, postgres.PermissionDenied)
	}
}
