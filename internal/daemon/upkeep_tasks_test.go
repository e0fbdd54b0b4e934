package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

const searchEvents = "search_outbox_events"

// table is a projection of which only the names are asked.
type table struct{ projections.Projection }

func (table) Name() string  { return projections.SearchIndexToElastic }
func (table) Table() string { return searchEvents }

// newUpkeep returns the upkeep of a projector under a role with the least rights, and the pool of
// the owner.
func newUpkeep(t *testing.T, finished outbox.Finished, retention time.Duration) (*upkeep, *pgxpool.Pool) {
	t.Helper()
	dsn := testenv.Database(t)
	owner := testenv.Pool(t, dsn)
	runner := testenv.Runner(t, dsn)
	if err := migrations.Grant(t.Context(), dsn, runner.Username(), migrations.Mode{Table: searchEvents, Finished: string(finished), Retention: retention > 0}); err != nil {
		t.Fatal(err)
	}
	pool := testenv.Pool(t, testenv.As(t, dsn, runner))
	cfg := config.Default()
	cfg.Instance, cfg.Outbox.Finished, cfg.Outbox.Retention = "weft-a", string(finished), retention
	d := &daemon{cfg: cfg, log: zap.NewNop(), pool: pool}
	var err error
	if d.upkeepMetrics, err = newUpkeepMetrics(prometheus.NewRegistry(), []string{projections.SearchIndexToElastic}); err != nil {
		t.Fatal(err)
	}
	l := projector{proj: table{}}
	l.store, err = outbox.OpenStore(t.Context(), pool, outbox.StoreConfig{Table: searchEvents, Group: "g", Owner: "weft-a", Lease: time.Minute, Finished: finished})
	if err != nil {
		t.Fatal(err)
	}
	return &upkeep{d: d, projector: l, epoch: 7, finished: finished, retention: retention, log: zap.NewNop()}, owner
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func number(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func done(t *testing.T, pool *pgxpool.Pool, n, daysAgo int) {
	t.Helper()
	exec(t, pool, fmt.Sprintf(`insert into %s (id, entity_type, entity_id, op, event_version, status, processed_at)
		select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', i, 'done', now() - interval '%d days' from generate_series(1, %d) i`, searchEvents, daysAgo, n))
}

const days = `select count(*) from weft_history_partitions('search_outbox_events')`

// TestUpkeepOfAnArchive: days are made ahead, what settles have kept is moved, old days are
// indexed, and dropped when the retention is over, which the audit tells.
func TestUpkeepOfAnArchive(t *testing.T) {
	t.Parallel()
	u, owner := newUpkeep(t, outbox.Archive, 30*24*time.Hour)
	ctx := t.Context()
	must := func(what string, run func(context.Context) error) {
		t.Helper()
		if err := run(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("days", u.days)
	must("days again", u.days)
	if n := number(t, owner, days); n != 8 {
		t.Errorf("days: got %d, want 8", n)
	}
	done(t, owner, 30, 0)
	done(t, owner, 20, 5)
	done(t, owner, 10, 28)
	done(t, owner, 7, 40) // beyond the retention
	must("sweep", u.sweep)
	if n := number(t, owner, "select count(*) from search_outbox_history"); n != 60 || number(t, owner, "select count(*) from "+searchEvents) != 0 {
		t.Errorf("history: got %d, want 60, and nothing in the table", n)
	}
	for action, want := range map[string]float64{"moved": 60, "deleted": 7} {
		if got := testutil.ToFloat64(u.d.upkeepMetrics.swept.WithLabelValues(projections.SearchIndexToElastic, action)); got != want {
			t.Errorf("swept, %s: got %v, want %v", action, got, want)
		}
	}
	must("index", u.index)
	if n := number(t, owner, days+" where indexed"); n != 2 {
		t.Errorf("indexed days: got %d, want the two that are over", n)
	}
	u.retention = 20 * 24 * time.Hour
	must("drop", u.drop)
	must("drop again", u.drop)
	if n := number(t, owner, "select count(*) from search_outbox_history"); n != 50 || number(t, owner, days) != 9 {
		t.Errorf("after the drop: %d events, %d days, want 50 and 9", n, number(t, owner, days))
	}
	entries, err := outbox.ReadAudit(ctx, owner, outbox.AuditFilter{Action: "prune", Limit: 10}, time.Minute)
	if err != nil || len(entries) != 2 {
		t.Fatalf("audit: got %v, %v, want one entry of the sweep and one of the drop", entries, err)
	}
	for i, want := range []string{`"partitions": ["search_outbox_history_`, `"events": 7`} {
		if e := entries[i]; e.Actor != "weft-a" || e.ByEpoch == nil || *e.ByEpoch != 7 || !strings.Contains(string(e.Detail), want) || !strings.HasPrefix(e.Why, "outbox.retention is ") {
			t.Errorf("audit: got %+v, detail %s, want %q", e, e.Detail, want)
		}
	}
}

// TestUpkeepOfKeptAndDeletedEvents: in keep the retention alone deletes; in delete a sweep
// takes what is done, and the audit is not told of what settles do all the time.
func TestUpkeepOfKeptAndDeletedEvents(t *testing.T) {
	t.Parallel()
	for finished, want := range map[outbox.Finished]struct{ left, audited int }{outbox.Keep: {5, 1}, outbox.Discard: {0, 0}} {
		t.Run(string(finished), func(t *testing.T) {
			t.Parallel()
			u, owner := newUpkeep(t, finished, 24*time.Hour)
			done(t, owner, 5, 0)
			done(t, owner, 4, 2)
			if err := u.sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := u.drop(t.Context()); err != nil {
				t.Errorf("drop without a history: %v", err)
			}
			if got := number(t, owner, "select count(*) from "+searchEvents); got != want.left {
				t.Errorf("left: got %d, want %d", got, want.left)
			}
			if got := number(t, owner, "select count(*) from weft_audit where action = 'prune' and count = 4"); got != want.audited {
				t.Errorf("audit entries: got %d, want %d", got, want.audited)
			}
			exec(t, owner, "alter table "+searchEvents+" enable row level security")
			if err := u.sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "has row security") {
				t.Errorf("sweep of a table that must not lose rows: got %v, want it refused", err)
			}
		})
	}
}

// TestUpkeepFollowsTheColumns: it says what to run while the history lacks one, and has the
// store read the table anew.
func TestUpkeepFollowsTheColumns(t *testing.T) {
	t.Parallel()
	u, owner := newUpkeep(t, outbox.Archive, 0)
	if err := u.columns(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, owner, "alter table "+searchEvents+" add tenant text, add region text")
	err := u.columns(t.Context())
	if err == nil || !strings.Contains(err.Error(), "lacks columns of its outbox table (tenant, region): run `weft migrate up`") {
		t.Errorf("got %v, want it to name the columns and what to run", err)
	}
	exec(t, owner, "alter table search_outbox_history add tenant text, add region text")
	if err := u.columns(t.Context()); err != nil {
		t.Errorf("after the history has got them: %v", err)
	}
	if got := u.projector.store.Shape().Columns; !cmp.Equal(got[len(got)-2:], []string{"tenant", "region"}) {
		t.Errorf("the store knows %v, want the new columns", got)
	}
}

// TestUpkeepTellsOfDaysThatAreMissing: somebody holds the history; the metric and the error
// say so, and the next run makes up for it.
func TestUpkeepTellsOfDaysThatAreMissing(t *testing.T) {
	t.Parallel()
	u, owner := newUpkeep(t, outbox.Archive, 0)
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "lock table only search_outbox_history in share update exclusive mode"); err != nil {
		t.Fatal(err)
	}
	missing := u.d.upkeepMetrics.missing.WithLabelValues(projections.SearchIndexToElastic)
	if err := u.days(t.Context()); err == nil || !strings.Contains(err.Error(), "lock timeout") || testutil.ToFloat64(missing) != 8 {
		t.Errorf("beside a lock: got %v, %v days missing, want a lock timeout and 8", err, testutil.ToFloat64(missing))
	}
	_ = tx.Rollback(t.Context())
	if err := u.days(t.Context()); err != nil || testutil.ToFloat64(missing) != 0 {
		t.Errorf("afterwards: got %v, %v days missing, want none", err, testutil.ToFloat64(missing))
	}
}

// Terms and entries of the audit that are older than the settings want go, by pages, with
// the rights of a leader; replays stay longer.
func TestUpkeepBoundsTheRecords(t *testing.T) {
	t.Parallel()
	u, owner := newUpkeep(t, outbox.Keep, 0)
	u.d.cfg.Audit.Keep, u.d.cfg.Audit.KeepFailures = 30*24*time.Hour, 365*24*time.Hour
	if _, err := owner.Exec(t.Context(), `insert into weft_audit (at, actor, action, why)
		select now() - make_interval(days => days), 'a', action, 'w'
		from (values (60, 'reclaim', $1::int), (20, 'reclaim', 3), (60, 'replay', 5), (400, 'replay', 7)) kinds (days, action, n), generate_series(1, n)`,
		2*recordsPage+1); err != nil {
		t.Fatal(err)
	}
	if err := u.d.forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left string
	if err := owner.QueryRow(t.Context(), "select string_agg(action || ' ' || n, ', ' order by action) from (select action, count(*) as n from weft_audit group by 1) a").Scan(&left); err != nil {
		t.Fatal(err)
	}
	if want := "reclaim 3, replay 5"; left != want {
		t.Errorf("left of the audit: got %q, want %q", left, want)
	}
}

// TestUpkeepRepeatsItsTasks: each at its own pace, after a fault a minute later, and a fault
// that lasts is logged once.
func TestUpkeepRepeatsItsTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, lines := observer.New(zapcore.ErrorLevel)
		m, err := newUpkeepMetrics(prometheus.NewRegistry(), nil)
		if err != nil {
			t.Fatal(err)
		}
		d := &daemon{upkeepMetrics: m}
		var good, bad, slow int
		broken := true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Hour-time.Second)
		defer cancel()
		d.repeat(ctx, zap.New(core), []*task{
			{name: taskDays, every: time.Hour, due: time.Now(), run: func(context.Context) error { good++; return nil }},
			{name: taskSweep, every: time.Hour, due: time.Now().Add(time.Minute), run: func(context.Context) error {
				bad++
				if broken = bad < 5; broken {
					return errors.New("no")
				}
				return nil
			}},
			{name: taskIndex, every: time.Hour, due: time.Now().Add(30 * time.Minute), run: func(context.Context) error {
				slow++
				time.Sleep(6 * time.Minute) // of this bubble's clock; a twentieth of two hours
				return nil
			}},
		})
		if good != 10 || bad != 5+9 || slow < 4 || slow > 5 {
			t.Errorf("runs in ten hours: got %d, %d, %d, want 10 hourly ones, 5 in minutes and 9 hourly ones, and one in two hours", good, bad, slow)
		}
		if n := lines.FilterField(zap.String("task", taskSweep)).Len(); n != 1 {
			t.Errorf("log lines of a fault that lasts: got %d, want 1", n)
		}
		if got := testutil.ToFloat64(m.runs.WithLabelValues(taskSweep, readingFailed)); got != 4 {
			t.Errorf("failed runs: got %v, want 4", got)
		}
	})
}

// TestUpkeepRestsAfterALongRunThatFails: a sweep that passes over rows tells of them after it has been through the whole
// table, and does not begin anew a minute later.
func TestUpkeepRestsAfterALongRunThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, err := newUpkeepMetrics(prometheus.NewRegistry(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Hour)
		defer cancel()
		runs := 0
		(&daemon{upkeepMetrics: m}).repeat(ctx, zap.NewNop(), []*task{{name: taskSweep, every: time.Hour, due: time.Now(), run: func(context.Context) error {
			runs++
			time.Sleep(6 * time.Minute) // of this bubble's clock
			return errors.New("no partition")
		}}})
		if runs != 10 {
			t.Errorf("%d runs in ten hours, want one an hour", runs)
		}
	})
}
