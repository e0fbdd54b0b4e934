package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { labtest.Main(m) }

const (
	table     = "search_outbox_events"
	leaseTime = 30 * time.Second
)

// bench is a migrated database, a store under epoch 1 and the means to look at
// the rows.
type bench struct {
	t     *testing.T
	pool  *pgxpool.Pool
	store *outbox.Store
}

func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, pool: labtest.Pool(t, labtest.Database(t))}
	b.store = b.newStore("a")
	b.setEpoch(1)
	return b
}

func (b *bench) newStore(owner string) *outbox.Store {
	b.t.Helper()
	s, err := outbox.NewStore(b.pool, outbox.StoreConfig{
		Table: table, Projection: "search_index_to_elastic", Group: "g", Owner: owner, Lease: leaseTime,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bench) setEpoch(n int64) {
	b.t.Helper()
	b.exec(`insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at)
	        values ('g', $1, 'x', now(), now())
	        on conflict (group_name) do update set epoch = excluded.epoch`, n)
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// enqueue writes one upsert per version for a new entity and returns its key.
func (b *bench) enqueue(versions ...int64) outbox.Key {
	b.t.Helper()
	key := outbox.Key{Type: "block", ID: uuid.New()}
	b.enqueueFor(key, versions...)
	return key
}

func (b *bench) enqueueFor(key outbox.Key, versions ...int64) {
	b.t.Helper()
	var events []outbox.NewEvent
	for _, v := range versions {
		events = append(events, outbox.NewEvent{Key: key, Op: outbox.Upsert, Version: v})
	}
	if err := outbox.Enqueue(b.t.Context(), b.pool, table, events...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) claim(epoch int64, limit int) *outbox.Claimed {
	b.t.Helper()
	c, err := b.store.Claim(b.t.Context(), outbox.ClaimRequest{Epoch: epoch, Limit: limit})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *bench) settle(in ...outbox.Settlement) outbox.Settled {
	b.t.Helper()
	s, err := b.store.Settle(b.t.Context(), 1, in)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// row is what an operator sees of an event.
type row struct {
	Status   string
	Owner    *string
	Epoch    *int64
	Attempts int
	Reclaims int
	Reason   *string
	Error    *string
	Retry    *time.Time
	Done     *time.Time
	Lease    *time.Time
}

func (b *bench) row(id uuid.UUID) row {
	b.t.Helper()
	var r row
	err := b.pool.QueryRow(b.t.Context(), `select status, owner, epoch, attempts, reclaims, error_reason, error,
		next_retry_at, processed_at, lease_until from search_outbox_events where id = $1`, [16]byte(id)).
		Scan(&r.Status, &r.Owner, &r.Epoch, &r.Attempts, &r.Reclaims, &r.Reason, &r.Error, &r.Retry, &r.Done, &r.Lease)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) count(where string) (n int) {
	b.t.Helper()
	if err := b.pool.QueryRow(b.t.Context(), "select count(*) from "+table+" where "+where).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// hold locks rows in a transaction of a stranger until the returned func is called.
func (b *bench) hold(where string, args ...any) (release func()) {
	b.t.Helper()
	tx, err := b.pool.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(b.t.Context(), "select from "+table+" where "+where+" for update", args...); err != nil {
		b.t.Fatal(err)
	}
	done := false
	release = func() {
		if !done {
			done = true
			_ = tx.Rollback(context.Background())
		}
	}
	b.t.Cleanup(release)
	return release
}
