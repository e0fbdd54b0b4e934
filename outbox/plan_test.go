package outbox_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

// explained is a pool that runs every statement twice: under EXPLAIN ANALYZE in a
// transaction that is rolled back, to add up the blocks it touches, and for real.
type explained struct {
	*pgxpool.Pool
	t      *testing.T
	blocks int64
	rows   int64 // the largest number of rows that one node of a plan has read
	temp   int64 // blocks that did not fit into memory
}

func (e *explained) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	e.explain(ctx, e.Pool, sql, args)
	return e.Pool.Query(ctx, sql, args...)
}

func (e *explained) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	e.explain(ctx, e.Pool, sql, args)
	return e.Pool.QueryRow(ctx, sql, args...)
}

func (e *explained) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	e.explain(ctx, e.Pool, sql, args)
	return e.Pool.Exec(ctx, sql, args...)
}

func (e *explained) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	e.explainAll(ctx, e.Pool, b.QueuedQueries)
	return e.Pool.SendBatch(ctx, b)
}

func (e *explained) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := e.Pool.Begin(ctx)
	return &explainedTx{tx, e}, err
}

type explainedTx struct {
	pgx.Tx
	e *explained
}

func (x *explainedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	x.e.explain(ctx, x.Tx, sql, args)
	return x.Tx.Query(ctx, sql, args...)
}

func (x *explainedTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	x.e.explainAll(ctx, x.Tx, b.QueuedQueries)
	return x.Tx.SendBatch(ctx, b)
}

func (e *explained) explain(ctx context.Context, db beginner, sql string, args []any) {
	e.explainAll(ctx, db, []*pgx.QueuedQuery{{SQL: sql, Arguments: args}})
}

type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

func (e *explained) explainAll(ctx context.Context, db beginner, queries []*pgx.QueuedQuery) {
	tx, err := db.Begin(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	// What a pooled connection comes to after a few executions.
	if _, err := tx.Exec(ctx, "set local plan_cache_mode = force_generic_plan"); err != nil {
		e.t.Fatal(err)
	}
	// For 500 events what the default of 4 MB is for 2,500.
	if _, err := tx.Exec(ctx, "set local work_mem = '800kB'"); err != nil {
		e.t.Fatal(err)
	}
	for _, q := range queries {
		var out []struct{ Plan node }
		var text []byte
		if err := tx.QueryRow(ctx, "explain (analyze, buffers, timing off, format json) "+q.SQL, q.Arguments...).Scan(&text); err != nil {
			if _, ok := errors.AsType[*pgconn.PgError](err); !ok {
				e.t.Fatalf("%s: %v", q.SQL, err)
			}
			return // it is refused for real as well
		}
		if err := json.Unmarshal(text, &out); err != nil {
			e.t.Fatal(err)
		}
		e.blocks += out[0].Plan.Hit + out[0].Plan.Read
		e.temp += out[0].Plan.Temp
		e.rows = max(e.rows, out[0].Plan.largest())
	}
}

type node struct {
	Hit     int64   `json:"Shared Hit Blocks"`
	Read    int64   `json:"Shared Read Blocks"`
	Temp    int64   `json:"Temp Written Blocks"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Joined  float64 `json:"Rows Removed by Join Filter"`
	Plans   []node
}

func (n node) largest() int64 {
	m := int64((n.Rows + n.Removed + n.Joined) * n.Loops)
	for _, p := range n.Plans {
		m = max(m, p.largest())
	}
	return m
}

// A list, a lease and a settle cost what their batch costs, and a glance at the table what
// its limit says, whatever lies around: done, failed and waiting rows, with statistics from
// another time, on our own tables and on adopted ones with eleven indexes of the application's.
func TestCostFollowsTheBatch(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{false, true} {
		for _, statistics := range []string{fresh, ofBacklog, ofDrained} {
			t.Run(fmt.Sprintf("Adopted=%v/Statistics=%s", adopted, statistics), func(t *testing.T) {
				t.Parallel()
				b := crowded(t, adopted, statistics)
				b.glance()
				for _, n := range []int{20, 500} {
					for what, cost := range b.cost(n) {
						t.Logf("%s of %d events: %d blocks, at most %d rows in one step", what, n, cost.blocks, cost.rows)
						// A step of a plan that goes through the table, through another index or
						// through the batch once per event reads thousands of rows more.
						if limit := int64(3*n + 100); cost.rows > limit {
							t.Errorf("%s of %d events: a step reads %d rows, want at most %d", what, n, cost.rows, limit)
						}
						if limit := int64(150*n + 500); cost.blocks > limit {
							t.Errorf("%s of %d events touches %d blocks, want at most %d", what, n, cost.blocks, limit)
						}
						if cost.temp > 0 {
							t.Errorf("%s of %d events writes %d blocks to temporary files, want none", what, n, cost.temp)
						}
					}
				}
			})
		}
	}
}

// glance holds that a glance at the table costs what its limit says.
func (b *bench) glance() {
	b.t.Helper()
	cost := &explained{Pool: b.pool, t: b.t}
	s, err := outbox.OpenStore(b.t.Context(), cost, outbox.StoreConfig{Table: table, Group: "g", Owner: "a", Lease: leaseTime})
	if err != nil {
		b.t.Fatal(err)
	}
	const limit = 500
	st, err := s.Stats(b.t.Context(), leaseTime, limit)
	if err != nil || !st.Capped || st.Pending != limit || st.Retrying != limit || st.Failed != limit || st.Processing != 0 {
		b.t.Errorf("glance: got %+v, %v, want %d of each kind that there are more of", st, err, limit)
	}
	b.t.Logf("glance: %d blocks, at most %d rows in one step", cost.blocks, cost.rows)
	// The age of the oldest event is that of a fixed number of rows.
	if most := int64(limit + 1500); cost.rows > most {
		b.t.Errorf("a step of a glance reads %d rows, want at most %d", cost.rows, most)
	}
	if most := int64(4*limit + 4000); cost.blocks > most {
		b.t.Errorf("a glance touches %d blocks, want at most %d", cost.blocks, most)
	}
}

// TestGlancesReadAPage: what the leader asks again and again reads so many rows as it says, whatever is
// open and whatever another worker has claimed.
func TestGlancesReadAPage(t *testing.T) {
	t.Parallel()
	for _, statistics := range []string{fresh, ofBacklog, ofDrained} {
		t.Run(statistics, func(t *testing.T) {
			t.Parallel()
			b := crowded(t, false, statistics)
			b.exec("alter table search_outbox_events alter entity_id drop not null, alter event_version drop not null")
			b.exec(`insert into search_outbox_events (entity_type, entity_id, op, event_version, status, owner, lease_until, processing_started_at)
				select 'block', gen_random_uuid(), 'upsert', i, 'processing', 'py', now() + i * interval '1 min', now() from generate_series(1, 5000) i`)
			b.exec(`insert into search_outbox_events (entity_type, entity_id, op, event_version, status, owner, processing_started_at)
				select 'block', gen_random_uuid(), 'upsert', i, 'processing', 'py', now() from generate_series(1, 5000) i`)
			cost := &explained{Pool: b.pool, t: t}
			mender, err := outbox.OpenMender(t.Context(), cost, table, "p", leaseTime)
			if err != nil {
				t.Fatal(err)
			}
			store := b.newStore(cost, "a", outbox.Keep)
			for what, glance := range map[string]struct {
				most int64
				ask  func() error
			}{
				"foreign claims": {2000, func() error {
					owner, _, err := store.ForeignClaim(t.Context(), leaseTime)
					return cmp.Or(err, wantEqual(owner, "py"))
				}},
				"events of entities": {1000, func() error {
					keys := make([]outbox.Key, 500)
					for i := range keys {
						keys[i] = outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}
					}
					standing, err := mender.Standing(t.Context(), keys)
					return cmp.Or(err, wantEqual(len(standing), len(keys)))
				}},
				"claims that are over": {3000, func() error {
					got, err := store.ReclaimRows(t.Context(), outbox.ReclaimRequest{Epoch: 1, Limit: 100, MaxProcessing: time.Hour, MaxReclaims: 9})
					return cmp.Or(err, wantEqual(len(got), 0))
				}},
				"events without an entity or a version": {1000, func() error {
					got, err := store.Nameless(t.Context(), 1000)
					return cmp.Or(err, wantEqual(len(got), 0))
				}},
				"open events": {3 * 4000, func() error {
					n, err := mender.Open(t.Context(), 4000)
					return cmp.Or(err, wantEqual(n, 4000))
				}},
			} {
				cost.rows = 0
				if err := glance.ask(); err != nil || cost.rows > glance.most {
					t.Errorf("%s: a step reads %d rows, %v, want at most %d", what, cost.rows, err, glance.most)
				}
			}
		})
	}
}

func wantEqual[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

// When the planner's statistics were taken.
const (
	fresh     = "Fresh"
	ofBacklog = "OfABacklog"      // everything was pending
	ofDrained = "OfADrainedTable" // nothing was
)

// leaderPool has the sessions that an instance works on.
func leaderPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(cfg.ConnConfig.RuntimeParams, outbox.SessionParams())
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// crowded is a bench whose outbox holds fifty thousand rows, every night two hundred thousand,
// that a batch has nothing to do with: done, waiting for their retry, and dead.
func crowded(t *testing.T, adopted bool, statistics string) *bench {
	t.Helper()
	if !adopted {
		dsn := testenv.DatabaseWith(t, "_"+statistics, func(_ context.Context, dsn string) error {
			b := &bench{t: t, pool: leaderPool(t, dsn)}
			b.crowd(statistics)
			b.pool.Close()
			return nil
		})
		return &bench{t: t, pool: leaderPool(t, dsn)}
	}
	dsn := testenv.Schema(t)
	b := &bench{t: t, pool: leaderPool(t, dsn)}
	if err := legacy.Create(t.Context(), b.pool); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	b.crowd(statistics)
	return b
}

func (b *bench) crowd(statistics string) {
	b.t.Helper()
	b.setTerm(1, "a")
	b.exec("alter table search_outbox_events set (autovacuum_enabled = false)")
	b.makeHistory()
	fill := func(n int, status, retry string) {
		b.exec(fmt.Sprintf(`insert into search_outbox_events
			(id, entity_type, entity_id, op, event_version, status, next_retry_at, created_at, updated_at, attempts)
			select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', i, '%s', %s, now(), now(), 0
			from generate_series(1, %d) i`, status, retry, n*testenv.Volume(1, 4)))
	}
	if statistics == ofBacklog {
		fill(5_000, "pending", "null")
		b.exec("analyze search_outbox_events")
		b.exec("update search_outbox_events set status = 'done'")
	}
	fill(37_500, "done", "null")
	if statistics == ofDrained {
		b.exec("analyze search_outbox_events")
	}
	fill(7_500, "pending", "now() + interval '1 h'")
	fill(5_000, "failed", "null")
	fill(5_000, "pending", "null")
	b.exec(fmt.Sprintf("vacuum (analyze %v) search_outbox_events", statistics == fresh))
}

// cost lists, leases and settles n events in each way, and returns what each step has
// touched.
func (b *bench) cost(n int) map[string]*explained {
	b.t.Helper()
	ctx := b.t.Context()
	out := map[string]*explained{}
	under := func(what string, finished outbox.Finished) *outbox.Store {
		out[what] = &explained{Pool: b.pool, t: b.t}
		s := b.newStore(out[what], "a", finished)
		out[what].blocks, out[what].rows = 0, 0 // without what Open has read
		return s
	}
	check := func(what string, want, got int, err error) {
		b.t.Helper()
		if err != nil || got != want {
			b.t.Fatalf("%s: %d, %v, want %d", what, got, err, want)
		}
	}
	lease := func(what string) batch {
		l, err := under("list", outbox.Keep).List(ctx, outbox.ListRequest{Ready: n, Due: n})
		check("list", n, len(l.Ready), err)
		x := batch{id: uuid.New()}
		x.Lease, err = under(what, outbox.Keep).Lease(ctx, 1, x.id, groups(l.Ready...))
		check(what, n, x.Count(), err)
		return x
	}
	l, err := under("list", outbox.Keep).List(ctx, outbox.ListRequest{Ready: n})
	check("list", n, len(l.Ready), err)
	out["strict lease"] = &explained{Pool: b.pool, t: b.t}
	ordered, id := b.strictStore(out["strict lease"]), uuid.New()
	out["strict lease"].blocks, out["strict lease"].rows = 0, 0
	strict, err := ordered.Lease(ctx, 1, id, groups(l.Ready...))
	if err != nil {
		b.t.Fatalf("strict lease: %v", err)
	}
	check("strict lease", n, strict.Count(), err)
	_, err = ordered.Settle(ctx, 1, id, nil)
	check("release", 0, 0, err)

	_, err = under("list of the newest", outbox.Keep).List(ctx, outbox.ListRequest{Ready: n, Newest: true})
	check("list of the newest", 0, 0, err)
	back, err := under("look back", outbox.Keep).List(ctx, outbox.ListRequest{Ready: n, Back: true})
	check("look back", n, len(back.Ready), err)
	for _, finished := range []outbox.Finished{outbox.Keep, outbox.Archive, outbox.Discard} {
		x := lease("lease")
		what := "settle done, " + string(finished)
		s, err := under(what, finished).Settle(ctx, 1, x.id, x.all(outbox.Done))
		check(what, 0, len(s.Left), err)
	}
	x := lease("lease")
	l, err = under("list beside a lease", outbox.Keep).List(ctx, outbox.ListRequest{Ready: n, Without: []uuid.UUID{x.id}})
	check("list beside a lease", n, len(l.Ready), err)
	for i := range l.Ready {
		if l.Ready[i].ID == x.Events[0][0].ID {
			b.t.Error("the list shows an event of the lease that it was to leave out")
		}
	}
	b.exec("update "+table+" set updated_at = now() where id = $1", &x.Events[0][0].ID) // another version of the row
	s, err := under("careful settle", outbox.Keep).Settle(ctx, 1, x.id, x.all(outbox.Done))
	check("careful settle", 0, len(s.Left), err)
	x = lease("lease")
	s, err = under("settle retry", outbox.Keep).Settle(ctx, 1, x.id, x.all(outbox.Retry))
	check("settle retry", 0, len(s.Left), err)
	_, settled, err := under("resolve", outbox.Keep).Resolve(ctx, 1, x.id, x.all(outbox.Retry))
	check("resolve", 0, 0, err)
	if !settled {
		b.t.Fatal("resolve: not settled")
	}
	woken, err := under("wake", outbox.Keep).Wake(ctx, 1, []outbox.Reason{outbox.ReasonES5xx}, n)
	check("wake", n, woken, err)

	var key outbox.Key
	b.exec(fmt.Sprintf("update %s set next_retry_at = null, error_reason = null where error_reason = 'es_5xx'", table))
	key = b.enqueue()
	for v := range int64(n + 1) {
		b.enqueueFor(key, v)
	}
	own, err := under("list of an entity", outbox.Keep).List(ctx, outbox.ListRequest{Ready: n, Entity: &key})
	check("list of an entity", n, len(own.Ready), err)
	put, err := under("put off", outbox.Keep).PutOff(ctx, 1, key, own.Ready[0].Position(), n)
	check("put off", n, put, err)
	_, _, _, err = under("entities put off", outbox.Keep).PutOffEntities(ctx, n, outbox.ID{})
	check("entities put off", 0, 0, err)
	b.exec("delete from "+table+" where entity_id = $1", &key.ID)
	lease("lease")
	b.setTerm(2, "a")
	got, err := under("reclaim", outbox.Keep).ReclaimLeases(ctx, outbox.ReclaimRequest{Epoch: 2, Limit: n, MaxReclaims: 9})
	check("reclaim", 1, len(got), err)
	check("reclaim", n, got[0].Rows, nil)
	got, err = under("reclaim of rows", outbox.Keep).ReclaimRows(ctx, outbox.ReclaimRequest{Epoch: 2, MaxReclaims: 9, Limit: n})
	check("reclaim of rows", 0, len(got), err)
	b.setTerm(1, "a")
	return out
}
