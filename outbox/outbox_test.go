package outbox_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

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
	b := &bench{t: t, pool: testenv.Pool(t, testenv.Database(t))}
	b.store = b.newStore(b.pool, "a", outbox.Keep)
	b.setTerm(1, "a")
	return b
}

func (b *bench) newStore(db outbox.DB, owner string, finished outbox.Finished) *outbox.Store {
	b.t.Helper()
	s, err := outbox.OpenStore(b.t.Context(), db, outbox.StoreConfig{
		Table: table, Projection: "search_index_to_elastic", Group: "g", Owner: owner, Lease: leaseTime, Finished: finished, Timeout: time.Minute,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bench) strictStore(db outbox.DB) *outbox.Store {
	b.t.Helper()
	s, err := outbox.OpenStore(b.t.Context(), db, outbox.StoreConfig{Table: table, Group: "g", Owner: "a", Lease: leaseTime, Strict: true, Timeout: time.Minute})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// makeHistory makes one part of the history for all times.
func (b *bench) makeHistory() {
	b.t.Helper()
	b.exec("create table search_outbox_history_all partition of search_outbox_history for values from (minvalue) to (maxvalue)")
}

// setTerm lets an instance lead under an epoch.
func (b *bench) setTerm(n int64, instance string) {
	b.t.Helper()
	b.exec(`insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at)
	        values ('g', $1, $2, now(), now())
	        on conflict (group_name) do update set epoch = excluded.epoch, instance = excluded.instance`, n, instance)
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
	key := outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}
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

// list returns all that may go.
func (b *bench) list() *outbox.List {
	b.t.Helper()
	l, err := b.store.List(b.t.Context(), outbox.ListRequest{Ready: 1000, Due: 1000})
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// groups makes one group of each entity of rows, in the order of their first rows.
func groups(rows ...outbox.Row) (out []outbox.Group) {
	at := map[outbox.Key]int{}
	for _, r := range rows {
		i, ok := at[r.Key]
		if !ok {
			i = len(out)
			at[r.Key] = i
			out = append(out, outbox.Group{Key: r.Key, Check: true})
		}
		out[i].Rows = append(out[i].Rows, r)
	}
	for i := range out {
		slices.SortFunc(out[i].Rows, outbox.Row.Compare)
	}
	return out
}

// batch is what a lease has brought.
type batch struct {
	id uuid.UUID
	*outbox.Lease
}

func (b *bench) lease(epoch int64, g ...outbox.Group) batch {
	b.t.Helper()
	id := uuid.New()
	l, err := b.store.Lease(b.t.Context(), epoch, id, g)
	if err != nil {
		b.t.Fatal(err)
	}
	return batch{id, l}
}

// leaseAll leases everything that may go.
func (b *bench) leaseAll() batch {
	b.t.Helper()
	l := b.list()
	return b.lease(1, groups(append(l.Due, l.Ready...)...)...)
}

// all gives every event of a batch one verdict.
func (x batch) all(v outbox.Verdict) (out []outbox.Settlement) {
	for _, g := range x.Events {
		for i := range g {
			out = append(out, outbox.Settlement{Event: &g[i], Verdict: v, Reason: outbox.ReasonES5xx, Detail: "x", Delay: time.Minute})
		}
	}
	return out
}

func (b *bench) settle(x batch, in ...outbox.Settlement) outbox.Settled {
	b.t.Helper()
	s, err := b.store.Settle(b.t.Context(), 1, x.id, in)
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

func (b *bench) row(id outbox.ID) row {
	b.t.Helper()
	var r row
	err := b.pool.QueryRow(b.t.Context(), `select status, owner, epoch, attempts, reclaims, error_reason, error,
		next_retry_at, processed_at, lease_until from search_outbox_events where id = $1`, &id).
		Scan(&r.Status, &r.Owner, &r.Epoch, &r.Attempts, &r.Reclaims, &r.Reason, &r.Error, &r.Retry, &r.Done, &r.Lease)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) count(where string) (n int) {
	b.t.Helper()
	return b.number("select count(*) from " + table + " where " + where)
}

func (b *bench) number(sql string, args ...any) (n int) {
	b.t.Helper()
	if err := b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
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

// waitFor asks until the answer is more than zero.
func (b *bench) waitFor(sql string) {
	b.t.Helper()
	for b.number(sql) == 0 {
		if err := b.t.Context().Err(); err != nil {
			b.t.Fatal(err)
		}
	}
}
