package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// atVersionFour returns a deployment under the schema before leases, with claims of a
// build of then in its rows.
func atVersionFour(t *testing.T, rows int) (dsn string, pool *pgxpool.Pool) {
	t.Helper()
	dsn, pool, _ = adopted(t, rows)
	up(t, dsn)
	downTo(t, dsn, 4)
	exec(t, pool, `insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at, released_at) values ('weft', 3, 'old-a', now(), now(), now())`)
	exec(t, pool, `update search_outbox_events set status = 'processing', owner = 'old-a', epoch = 3, lease_until = now() + interval '30 s', processing_started_at = now(), reclaims = 1
		where id in (select id from search_outbox_events where status = 'pending' limit 20)`)
	return dsn, pool
}

const rowsAndSum = `select format('%s %s', count(*), sum(hashtextextended((to_jsonb(r) - array['behind', 'discarded_at', 'discarded_by', 'discarded_reason'])::text, 0))) from search_outbox_events r`

func TestUpFromTheSchemaBeforeLeases(t *testing.T) {
	t.Parallel()
	dsn, pool := atVersionFour(t, 4000)
	before := one[string](t, pool, rowsAndSum)
	if got, want := versions(up(t, dsn)), []int64{5, 6, 7}; !cmp.Equal(got, want) {
		t.Errorf("steps: got %v, want %v", got, want)
	}
	if after := one[string](t, pool, rowsAndSum); after != before {
		t.Errorf("rows: got %s, want %s as before", after, before)
	}
	if diff := cmp.Diff(upgradedIndexes(), validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
	if got := one[string](t, pool, `select format('%s %s %s', group_name, epoch, instance) from weft_fence`); got != "weft 3 old-a" {
		t.Errorf("fence: got %s, want that of the leader", got)
	}
	const states = `select format('%s %s %s', status, count(*), count(epoch)) from search_outbox_events`
	live := strings.ReplaceAll(states, "search_outbox_events", "search_outbox_events_live") + " group by status order by 1"
	if diff := cmp.Diff(query[string](t, pool, states+" group by status order by 1"), query[string](t, pool, live)); diff != "" {
		t.Errorf("states of rows without a lease (-table +view):\n%s", diff)
	}
}

// grantsBeforeLeases are those of version 4 that a bump and a heartbeat take.
const grantsBeforeLeases = `grant usage on schema app to %[1]s; grant select, insert, update on app.weft_leader, app.weft_term to %[1]s`

// An instance of the build before leases, whose role knows nothing of the fence, moves it
// when it takes over; its heartbeats do not touch it.
func TestLeaderOfAnOlderBuildMovesTheFence(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	user := testenv.Runner(t, dsn)
	name := user.Username()
	exec(t, owner, "revoke all on all tables in schema app from "+name+"; revoke all on all functions in schema app from "+name)
	exec(t, owner, strings.ReplaceAll(grantsBeforeLeases, "%[1]s", name))
	old := testenv.Pool(t, testenv.As(t, dsn, user))

	const bump = `insert into weft_leader as w (group_name, epoch, instance, lock_backend_pid, acquired_at, renewed_at)
		values ('weft', $1, $2, pg_backend_pid(), clock_timestamp(), clock_timestamp())
		on conflict (group_name) do update set epoch = excluded.epoch, instance = excluded.instance, renewed_at = clock_timestamp(), released_at = null`
	const fence = `select format('%s %s', epoch, instance) from weft_fence where group_name = 'weft'`
	exec(t, old, bump, 1, "old-a")
	exec(t, old, bump, 2, "old-b")
	if got := one[string](t, owner, fence); got != "2 old-b" {
		t.Fatalf("fence: got %s, want 2 old-b", got)
	}
	version := one[uint32](t, owner, `select xmin from weft_fence`)
	exec(t, old, `update weft_leader set renewed_at = clock_timestamp() where group_name = 'weft'`)
	if got := one[uint32](t, owner, `select xmin from weft_fence`); got != version {
		t.Error("a heartbeat has written the fence")
	}
	for _, sql := range []string{"select from weft_fence", "update weft_fence set epoch = 9", "select from weft_lease", "select weft_move_fence()"} {
		if _, err := old.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: got %v, want permission denied", sql, err)
		}
	}

	// What a leader of the older term still has open keeps the newer one from being committed.
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "select from weft_fence where group_name = 'weft' and epoch = 2 and instance = 'old-b' for key share"); err != nil {
		t.Fatal(err)
	}
	_, err = old.Exec(t.Context(), "set lock_timeout = '50ms'; update weft_leader set epoch = 3 where group_name = 'weft'")
	if err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("bump beside an open statement of the term before: got %v, want it to wait", err)
	}
}

// The trigger needs a lock that shuts out heartbeats: the migration must not queue for it
// longer than a leader can do without.
func TestHeartbeatsPassAWaitingTrigger(t *testing.T) {
	t.Parallel()
	dsn, pool := atVersionFour(t, 200)
	exec(t, pool, `insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('other', 1, 'b', now(), now())`)
	_, release := hold(t, pool, `update weft_leader set renewed_at = now() where group_name = 'other'`)
	upBeside(t, dsn, pool, "ShareRowExclusiveLock", "weft_leader", release, func(ctx context.Context) error {
		_, err := pool.Exec(ctx, `update weft_leader set renewed_at = now() where group_name = 'weft'`)
		return err
	})
}

// A migration that is interrupted at any of its parts is finished by the next one.
func TestLeaseMigrationIsRepeatedAfterAnInterruption(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]string{
		"Column": "adding columns to chronicle_outbox_events", "Index": "building index weft_search_outbox_retry",
		"History": "creating table chronicle_outbox_history", "View": "making view chronicle_outbox_events_live",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, pool := atVersionFour(t, 200)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := lines{f: func(s string) {
				if strings.Contains(s, at) {
					cancel()
				}
			}}
			if _, err := migrations.Up(ctx, dsn, l.option()); !errors.Is(err, context.Canceled) {
				t.Fatalf("cancelled at %q: got %v, want context canceled", at, err)
			}
			var behind *migrations.BehindError
			if err := migrations.Check(t.Context(), pool); !errors.As(err, &behind) || behind.Have != 4 {
				t.Errorf("check: got %v, want behind at 4", err)
			}
			up(t, dsn)
			if diff := cmp.Diff(upgradedIndexes(), validIndexes(t, pool)); diff != "" {
				t.Errorf("indexes (-want +got):\n%s", diff)
			}
			if got := up(t, dsn); len(got) != 0 {
				t.Errorf("up again: got %v, want nothing", got)
			}
		})
	}
}

// Going back gives the build of then the indexes that it reads, which a database that no build has
// worked on does not get. From then on they stay until somebody drops them.
func TestDownBringsBackTheOlderIndexes(t *testing.T) {
	t.Parallel()
	dsn, pool, _ := adopted(t, 200)
	up(t, dsn)
	if diff := cmp.Diff(wantIndexes, validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes of a new database (-want +got):\n%s", diff)
	}
	downTo(t, dsn, 4)
	want := []string{"weft_chronicle_outbox_due", "weft_chronicle_outbox_failed", "weft_chronicle_outbox_processing", "weft_chronicle_outbox_ready",
		"weft_search_outbox_due", "weft_search_outbox_failed", "weft_search_outbox_processing", "weft_search_outbox_ready"}
	if diff := cmp.Diff(want, validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
	if got := query[string](t, pool, `select reloptions::text from pg_class where relname like '%outbox_events' and relnamespace = 'app'::regnamespace and reloptions::text like '%vacuum_truncate%'`); len(got) != 0 {
		t.Errorf("tables with weft's vacuum_truncate: got %v, want none", got)
	}

	up(t, dsn)
	if diff := cmp.Diff(upgradedIndexes(), validIndexes(t, pool)); diff != "" {
		t.Errorf("indexes after the upgrade (-want +got):\n%s", diff)
	}
	exec(t, pool, "drop index "+strings.Join(olderIndexes, ", "))
	if got := up(t, dsn); len(got) != 0 {
		t.Errorf("up: got %v, want it to leave the dropped indexes alone", got)
	}
}

// TestForgetKeepsWhatIsNew: the function deletes ended terms and audit entries by their age
// and kind, in pages; never the newest terms of a group.
func TestForgetKeepsWhatIsNew(t *testing.T) {
	t.Parallel()
	dsn, owner := setup(t)
	up(t, dsn)
	pool := testenv.Pool(t, testenv.As(t, dsn, testenv.Runner(t, dsn)))
	exec(t, owner, `insert into weft_term (group_name, epoch, instance, acquired_at, ended_at, end_reason)
		select g, i, 'a', now() - interval '2 years', now() - interval '2 years', 'stopped' from generate_series(1, 1010) i, unnest(array['weft', 'other']) g`)
	exec(t, owner, `update weft_term set ended_at = now() - interval '60 days', end_reason = 'replaced' where epoch = 3`)
	exec(t, owner, `update weft_term set ended_at = now() - interval '60 days' where epoch = 4`)
	exec(t, owner, `update weft_term set ended_at = now() - interval '2 days' where epoch = 5`)
	exec(t, owner, `insert into weft_audit (at, actor, action, why) select now() - age, 'a', action, why
		from (values ('reclaim', 'older_epoch'), ('reclaim', 'older_epoch, ended in failed'), ('replay', 'fixed'), ('prune', 'old'), ('resign_requested', 'x')) k(action, why),
		     (values (interval '2 days'), (interval '60 days'), (interval '2 years')) a(age)`)

	const forget = "select weft_forget($1::interval, $2::interval, $3::int)"
	for range 4 {
		one[int](t, pool, forget, "30 days", "365 days", 5)
	}
	want := []string{"3", "5"} // 1 to 10 are not among the newest 1,000
	for _, group := range []string{"weft", "other"} {
		if got := query[string](t, owner, `select epoch::text from weft_term where group_name = $1 and epoch <= 10 order by epoch`, group); !cmp.Equal(got, want) {
			t.Errorf("terms of %s: got %v, want %v", group, got, want)
		}
		if got := one[int](t, owner, `select count(*) from weft_term where group_name = $1 and epoch > 10`, group); got != 1000 {
			t.Errorf("newest terms of %s: got %d, want 1000", group, got)
		}
	}
	left := query[string](t, owner, `select action || ' ' || why || ' ' || extract(day from date_trunc('day', now() - at))::text from weft_audit order by 1`)
	wantLeft := []string{"prune old 2", "prune old 60", "reclaim older_epoch 2", "reclaim older_epoch, ended in failed 2", "reclaim older_epoch, ended in failed 60",
		"replay fixed 2", "replay fixed 60", "resign_requested x 2"}
	if diff := cmp.Diff(wantLeft, left); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
	for _, args := range [][]any{{"1 hour", "1 year", 5}, {"30 days", "1 day", 5}, {"30 days", "60 days", 0}, {nil, nil, nil}} {
		if _, err := pool.Exec(t.Context(), forget, args...); err == nil || !strings.Contains(err.Error(), "want at least a day") {
			t.Errorf("forget %v: got %v, want it refused", args, err)
		}
	}
	if _, err := pool.Exec(t.Context(), "delete from weft_audit"); err == nil {
		t.Error("the role may delete from the audit by itself")
	}
}
