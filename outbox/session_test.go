package outbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A statement that has waited for a lock must see what the holder has done, whatever
// isolation the database was told to use by default.
func TestSessionParamsWinOverTheDatabase(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for name, value := range map[string]string{"default_transaction_isolation": "repeatable read", "enable_sort": "on"} {
		_, err := conn.Exec(t.Context(), "do $$ begin execute format('alter database %I set "+name+" = %L', current_database(), '"+value+"'); end $$")
		if err != nil {
			t.Fatal(err)
		}
	}
	pool := leaderPool(t, url)
	var isolation, sort string
	err = pool.QueryRow(t.Context(), "select current_setting('transaction_isolation'), current_setting('enable_sort')").Scan(&isolation, &sort)
	if err != nil || isolation != "read committed" || sort != "off" {
		t.Errorf("isolation %q, enable_sort %q, %v, want read committed and off", isolation, sort, err)
	}
}

// After a warm-up the calls with which a term begins find their statements planned, and nothing has changed.
func TestWarmUpPlansTheBeginningOfATerm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	x := b.lease(1, groups(b.list().Ready[0])...)
	pool := leaderPool(t, b.pool.Config().ConnString())
	session, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Release()
	next, ctx := b.newStore(session, "b", outbox.Keep), t.Context()
	planned := func() (statements []string) {
		t.Helper()
		rows, _ := session.Query(ctx, "select statement from pg_prepared_statements where generic_plans > 0")
		statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return statements
	}
	planned() // the look itself
	before := b.state()
	if err := next.WarmUp(ctx, session); err != nil {
		t.Fatal(err)
	}
	if b.state() != before {
		t.Error("the warm-up has changed a row")
	}
	warm := planned()

	b.setTerm(2, "b")
	if err := next.Occupy(ctx, 2); err != nil {
		t.Fatal(err)
	}
	request := outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxReclaims: 3, MaxProcessing: time.Minute}
	if got, err := next.ReclaimLeases(ctx, request); err != nil || len(got) != 1 {
		t.Fatalf("reclaimed %v, %v, want the lease %s", got, err, x.id)
	}
	_, reclaimed := next.ReclaimRows(ctx, request)
	_, joined := next.JoinRebuild(ctx, 2)
	_, _, held := next.Holds(ctx)
	_, _, _, putOff := next.PutOffEntities(ctx, 100, outbox.ID{})
	if err := errors.Join(reclaimed, joined, held, putOff); err != nil {
		t.Fatal(err)
	}
	l, err := next.List(ctx, outbox.ListRequest{Ready: 10, Due: 10})
	if err != nil || len(l.Due) != 1 {
		t.Fatalf("listed %+v, %v", l, err)
	}
	if got, err := next.Lease(ctx, 2, uuid.New(), groups(l.Due[0])); err != nil || got.Count() != 1 {
		t.Fatalf("leased %+v, %v", got, err)
	}
	for _, statement := range planned() {
		if !slices.Contains(warm, statement) {
			t.Errorf("planned only in the term: %s", statement)
		}
	}
}

// state is a sum of the rows of the outbox and of what goes with it.
func (b *bench) state() int {
	return b.number("select hashtext(concat((select json_agg(o) from " + table + " o), (select json_agg(l) from weft_lease l), (select json_agg(p) from weft_progress p)))")
}

// A lease whose plan was made and kept while the table was empty reads only its own rows when
// the table is full.
func TestPlanOfAnEmptyTableServesAFullOne(t *testing.T) {
	t.Parallel()
	if testenv.PostgresMajor(t) < 15 {
		t.Skip("a session cannot be told to count what it has read before PostgreSQL 15")
	}
	b := setup(t)
	b.exec("alter table " + table + " set (autovacuum_enabled = false)")
	b.exec("vacuum (analyze) " + table)
	cfg := b.pool.Config()
	cfg.MaxConns = 1
	for name, value := range outbox.SessionParams() {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	store := b.newStore(pool, "a", outbox.Keep)
	lease := func(n int) {
		t.Helper()
		found, err := store.List(t.Context(), outbox.ListRequest{Ready: n})
		if err == nil && len(found.Ready) == n {
			_, err = store.Lease(t.Context(), 1, uuid.New(), groups(found.Ready...))
		}
		if err != nil || len(found.Ready) != n {
			t.Fatalf("lease of %d events: %d are listed, %v", n, len(found.Ready), err)
		}
	}
	read := func() (rows int64) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), "select pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		return int64(b.number("select seq_tup_read from pg_stat_user_tables where relid = '" + table + "'::regclass"))
	}
	b.enqueue(1)
	lease(1)
	b.exec(`insert into ` + table + ` (id, entity_type, entity_id, op, event_version, status, created_at, updated_at, attempts)
		select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', i, 'pending', now(), now(), 0 from generate_series(2, 10000) i`)
	before := read()
	lease(500)
	if n := read() - before; n > 0 {
		t.Errorf("list and lease of 500 events have read %d rows by scans of the table, want none", n)
	}
}

// bounded is a pool that wants a deadline for the end of a transaction.
type bounded struct {
	*pgxpool.Pool
	t     *testing.T
	ended int
}

func (b *bounded) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := b.Pool.Begin(ctx)
	return &boundedTx{tx, b}, err
}

type boundedTx struct {
	pgx.Tx
	of *bounded
}

func (x *boundedTx) Rollback(ctx context.Context) error {
	x.of.ended++
	if _, ok := ctx.Deadline(); !ok {
		x.of.t.Error("a rollback has no deadline: a server that stands still would hold up the end of the term")
	}
	return x.Tx.Rollback(ctx)
}

// TestEveryCallOfASettleHasADeadline, also that which ends a transaction that has failed.
func TestEveryCallOfASettleHasADeadline(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool := &bounded{Pool: b.pool, t: t}
	b.store = b.newStore(pool, "a", outbox.Keep)
	b.enqueue(1)
	x := b.leaseAll()
	b.exec("update search_outbox_events set updated_at = now()")
	b.settle(x, x.all(outbox.Done)...)
	if pool.ended == 0 {
		t.Error("the settle has begun no transaction of several calls")
	}
}
