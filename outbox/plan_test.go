package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/internal/lab/legacy"
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
}

func (e *explained) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	e.explain(ctx, b)
	return e.Pool.Query(ctx, sql, args...)
}

func (e *explained) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	e.explain(ctx, b)
	return e.Pool.QueryRow(ctx, sql, args...)
}

func (e *explained) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	e.explain(ctx, b)
	return e.Pool.SendBatch(ctx, b)
}

func (e *explained) explain(ctx context.Context, b *pgx.Batch) {
	tx, err := e.Begin(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	// What a pooled connection comes to after a few executions.
	if _, err := tx.Exec(ctx, "set local plan_cache_mode = force_generic_plan"); err != nil {
		e.t.Fatal(err)
	}
	for name, value := range outbox.SessionParams() {
		if _, err := tx.Exec(ctx, "select set_config($1, $2, true)", name, value); err != nil {
			e.t.Fatal(err)
		}
	}
	for _, q := range b.QueuedQueries {
		var out []struct{ Plan node }
		var text []byte
		if err := tx.QueryRow(ctx, "explain (analyze, buffers, timing off, format json) "+q.SQL, q.Arguments...).Scan(&text); err != nil {
			e.t.Fatalf("%s: %v", q.SQL, err)
		}
		if err := json.Unmarshal(text, &out); err != nil {
			e.t.Fatal(err)
		}
		e.blocks += out[0].Plan.Hit + out[0].Plan.Read
		e.rows = max(e.rows, out[0].Plan.largest())
	}
	if err := tx.Rollback(ctx); err != nil {
		e.t.Fatal(err)
	}
}

type node struct {
	Hit     int64   `json:"Shared Hit Blocks"`
	Read    int64   `json:"Shared Read Blocks"`
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

// A claim and a settle cost what their batch costs, whatever lies around it: done,
// failed and waiting rows, with statistics from another time, on our own tables and
// on adopted ones with eleven indexes of the application's.
func TestCostFollowsTheBatch(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{false, true} {
		for _, statistics := range []string{fresh, ofBacklog, ofDrained} {
			t.Run(fmt.Sprintf("Adopted=%v/Statistics=%s", adopted, statistics), func(t *testing.T) {
				t.Parallel()
				b := crowded(t, adopted, statistics)
				for _, n := range []int{20, 500} {
					for what, cost := range b.cost(n) {
						t.Logf("%s of %d events: %d blocks, at most %d rows in one step", what, n, cost.blocks, cost.rows)
						// A step of a plan that goes through the table, through another index or
						// through the batch once per event reads tens of thousands of rows.
						if limit := int64(3*n + 100); cost.rows > limit {
							t.Errorf("%s of %d events: a step reads %d rows, want at most %d", what, n, cost.rows, limit)
						}
						if limit := int64(150*n + 500); cost.blocks > limit {
							t.Errorf("%s of %d events touches %d blocks, want at most %d", what, n, cost.blocks, limit)
						}
					}
				}
			})
		}
	}
}

// A glance at the table costs what its limit says, whatever the length of the backlog.
func TestCostOfAGlance(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{false, true} {
		for _, statistics := range []string{fresh, ofBacklog, ofDrained} {
			t.Run(fmt.Sprintf("Adopted=%v/Statistics=%s", adopted, statistics), func(t *testing.T) {
				t.Parallel()
				b := crowded(t, adopted, statistics)
				cost := &explained{Pool: b.pool, t: t}
				s, err := outbox.NewStore(cost, outbox.StoreConfig{Table: table, Group: "g", Owner: "a", Lease: leaseTime})
				if err != nil {
					t.Fatal(err)
				}
				const limit = 500
				st, err := s.Glance(t.Context(), leaseTime, limit)
				if err != nil || !st.Capped || st.Pending != limit || st.Retrying != limit || st.Failed != limit || st.Processing != 0 {
					t.Errorf("got %+v, %v, want %d of each kind that there are more of", st, err, limit)
				}
				t.Logf("%d blocks, at most %d rows in one step", cost.blocks, cost.rows)
				// The age of the oldest event is that of a fixed number of rows.
				if most := int64(limit + 1500); cost.rows > most {
					t.Errorf("a step reads %d rows, want at most %d", cost.rows, most)
				}
				if most := int64(4*limit + 4000); cost.blocks > most {
					t.Errorf("it touches %d blocks, want at most %d", cost.blocks, most)
				}
			})
		}
	}
}

// When the planner's statistics were taken.
const (
	fresh     = "Fresh"
	ofBacklog = "OfABacklog"      // everything was pending
	ofDrained = "OfADrainedTable" // nothing was
)

// crowded is a bench whose outbox holds two hundred thousand rows that a claim has
// nothing to do with: done, waiting for their retry, and dead.
func crowded(t *testing.T, adopted bool, statistics string) *bench {
	t.Helper()
	url := labtest.Schema(t)
	b := &bench{t: t, pool: labtest.Pool(t, url)}
	if adopted {
		if err := legacy.Create(t.Context(), b.pool); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	b.setEpoch(1)
	b.exec("alter table search_outbox_events set (autovacuum_enabled = false)")
	fill := func(n int, status, retry string) {
		b.exec(fmt.Sprintf(`insert into search_outbox_events
			(id, entity_type, entity_id, op, event_version, status, next_retry_at, created_at, updated_at, attempts)
			select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', i, '%s', %s, now(), now(), 0
			from generate_series(1, %d) i`, status, retry, n))
	}
	if statistics == ofBacklog {
		fill(20_000, "pending", "null")
		b.exec("analyze search_outbox_events")
		b.exec("update search_outbox_events set status = 'done'")
	}
	fill(150_000, "done", "null")
	if statistics == ofDrained {
		b.exec("analyze search_outbox_events")
	}
	fill(30_000, "pending", "now() + interval '1 h'")
	fill(20_000, "failed", "null")
	fill(5_000, "pending", "null")
	b.exec(fmt.Sprintf("vacuum (analyze %v) search_outbox_events", statistics == fresh))
	return b
}

// cost claims, renews and settles n events and returns what each step has touched.
func (b *bench) cost(n int) map[string]*explained {
	b.t.Helper()
	out := map[string]*explained{}
	under := func(what string) *outbox.Store {
		out[what] = &explained{Pool: b.pool, t: b.t}
		s, err := outbox.NewStore(out[what], outbox.StoreConfig{
			Table: table, Projection: "search_index_to_elastic", Group: "g", Owner: "a", Lease: leaseTime,
		})
		if err != nil {
			b.t.Fatal(err)
		}
		return s
	}
	if found, err := under("peek").Peek(b.t.Context()); err != nil || !found {
		b.t.Fatalf("peek found %v, %v", found, err)
	}
	listed, _, err := under("list").List(b.t.Context(), n)
	if err != nil || len(listed) != n {
		b.t.Fatalf("listed %d of %d, %v", len(listed), n, err)
	}
	half := n / 2
	var ids []uuid.UUID
	for _, e := range listed[:half] {
		ids = append(ids, e.ID)
	}
	heads, err := under("claim of a list").Claim(b.t.Context(), outbox.ClaimRequest{Epoch: 1, Limit: n, Listed: ids})
	if err != nil || len(heads.Ready) != half {
		b.t.Fatalf("claimed %d of %d, %v", len(heads.Ready), half, err)
	}
	over := make([]outbox.Settlement, half)
	for i := range over {
		over[i] = outbox.Settlement{Event: &heads.Ready[i], Verdict: outbox.Done, Older: listed[half+i : half+i+1]}
	}
	if s, err := under("settle over others").Settle(b.t.Context(), 1, over); err != nil || s.Mismatch != 0 || len(over[half-1].Older) != 1 {
		b.t.Fatalf("settle over others: %+v, %v", s, err)
	}
	c, err := under("claim").Claim(b.t.Context(), outbox.ClaimRequest{Epoch: 1, Limit: n})
	if err != nil || len(c.Ready) != n {
		b.t.Fatalf("claimed %d of %d, %v", len(c.Ready), n, err)
	}
	if n, err := under("renew").Renew(b.t.Context(), 1, c.Ready); err != nil || n != len(c.Ready) {
		b.t.Fatalf("renewed %d of %d, %v", n, len(c.Ready), err)
	}
	settle := func(what string, verdict outbox.Verdict, events []outbox.Event) {
		var in []outbox.Settlement
		for i := range events {
			in = append(in, outbox.Settlement{Event: &events[i], Verdict: verdict, Reason: outbox.ReasonES5xx, Delay: leaseTime})
		}
		if s, err := under(what).Settle(b.t.Context(), 1, in); err != nil || s.Mismatch != 0 {
			b.t.Fatalf("%s: %+v, %v", what, s, err)
		}
	}
	settle("settle done", outbox.Done, c.Ready[:half])
	settle("settle retry", outbox.Retry, c.Ready[half:])
	return out
}
