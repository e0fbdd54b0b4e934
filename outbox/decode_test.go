package outbox_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/outbox"
)

// A claim says the same whatever protocol the connection speaks, and whether or not a
// lock was in the way.
func TestClaimsReadTheSameInEveryProtocol(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want := outbox.Event{
		ID: uuid.New(), Key: outbox.Key{Type: "block", ID: uuid.New()}, Op: outbox.Delete, Version: 1 << 60,
		Attempts: 3, Reclaims: 2, CreatedAt: time.Date(1999, 12, 31, 23, 59, 59, 999_999_000, time.UTC),
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Tracestate: "a=b",
	}
	b.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, attempts, reclaims, created_at, traceparent, tracestate)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`, [16]byte(want.ID), want.Key.Type, [16]byte(want.Key.ID), string(want.Op), want.Version,
		want.Attempts, want.Reclaims, want.CreatedAt, want.Traceparent, want.Tracestate)
	locked := b.enqueue(1 << 61)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		for _, careful := range []bool{false, true} {
			cfg := b.pool.Config()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			store, err := outbox.NewStore(pool, outbox.StoreConfig{Table: table, Projection: "p", Group: "g", Owner: "a", Lease: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			b.exec("update search_outbox_events set status = 'pending', owner = null, lease_until = null, processing_started_at = null")
			tx, err := b.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if careful {
				if _, err := tx.Exec(t.Context(), "select from search_outbox_events where entity_id = $1 for update", [16]byte(locked.ID)); err != nil {
					t.Fatal(err)
				}
			}
			c, err := store.Claim(t.Context(), outbox.ClaimRequest{Epoch: 1, Limit: 10})
			if err != nil {
				t.Fatalf("%v, careful %v: %v", mode, careful, err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			blocked := 0
			if careful {
				blocked = 1
			}
			if len(c.Ready) != 2-blocked || len(c.Blocked) != blocked || c.ReadyCandidates != 2 {
				t.Fatalf("%v, careful %v: %d ready, %d blocked of %d", mode, careful, len(c.Ready), len(c.Blocked), c.ReadyCandidates)
			}
			for _, e := range c.Ready {
				if e.Key == locked {
					continue
				}
				if e.ClaimedAt.IsZero() || !e.ClaimedAt.Equal(c.Now) || !e.CreatedAt.Equal(want.CreatedAt) {
					t.Errorf("%v, careful %v: claimed at %v, now %v, created at %v", mode, careful, e.ClaimedAt, c.Now, e.CreatedAt)
				}
				e.ClaimedAt, e.CreatedAt = time.Time{}, want.CreatedAt
				if e != want {
					t.Errorf("%v, careful %v: got %+v, want %+v", mode, careful, e, want)
				}
			}
		}
	}
}
