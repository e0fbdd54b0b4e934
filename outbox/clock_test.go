package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/outbox"
)

// A process whose wall clock is decades off writes the same times as any other:
// everything that reaches a table is the database's.
func TestLocalClockReachesNoTable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeHistory()
	before := b.now().Add(-time.Minute)
	url := b.pool.Config().ConnString()
	synctest.Test(t, func(t *testing.T) { // the bubble's clock stands in the year 2000
		if y := time.Now().Year(); y != 2000 {
			t.Fatalf("the year is %d here, want another than the database's", y)
		}
		pool, err := pgxpool.New(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		off := &bench{t: t, pool: pool}
		off.store = off.newStore(pool, "a", outbox.Archive)
		off.useEveryWrite()
	})
	columns := b.timeColumns()
	if len(columns) < 10 {
		t.Fatalf("found the time columns %v, want those of all tables", columns)
	}
	seen := 0
	for _, c := range columns {
		var low, high *time.Time
		if err := b.pool.QueryRow(t.Context(), fmt.Sprintf("select min(%s), max(%s) from %s", c[1], c[1], c[0])).Scan(&low, &high); err != nil {
			t.Fatal(err)
		}
		if low == nil {
			continue
		}
		seen++
		// Leases and retries lie ahead, by what the test has asked for.
		if low.Before(before) || high.After(b.now().Add(2*time.Hour)) {
			t.Errorf("%s.%s holds %v to %v, want the database's time, %v or later", c[0], c[1], low, high, before)
		}
	}
	if seen < 8 {
		t.Errorf("%d columns hold a time, want those of every write", seen)
	}
}

// useEveryWrite calls everything that writes, under epoch 1.
func (b *bench) useEveryWrite() {
	b.t.Helper()
	ctx := b.t.Context()
	must := func(what string, n int, err error) {
		b.t.Helper()
		if err != nil || n == 0 {
			b.t.Fatalf("%s: %d, %v", what, n, err)
		}
	}
	for v := int64(1); v <= 6; v++ {
		b.enqueue(v)
	}
	two := b.enqueue(7, 8)
	x := b.leaseAll()
	if x.Count() != 8 {
		b.t.Fatalf("leased %d, want all 8", x.Count())
	}
	delayed := func(v outbox.Verdict, reason outbox.Reason, i int) outbox.Settlement {
		return outbox.Settlement{Event: &x.Events[i][0], Verdict: v, Reason: reason, Delay: time.Hour}
	}
	s := b.settle(x, delayed(outbox.Done, "", 0), delayed(outbox.Superseded, "", 1), delayed(outbox.Retry, outbox.ReasonES5xx, 2),
		delayed(outbox.Failed, outbox.ReasonES4xx, 3), delayed(outbox.Retry, outbox.ReasonESConnect, 4),
		delayed(outbox.Failed, outbox.ReasonES4xx, 5))
	if s.At.IsZero() || len(s.Left) != 0 {
		b.t.Fatalf("settled %+v, want 6 rows", s)
	}
	must("record progress", 1, b.store.RecordProgress(ctx, 1, s.At))
	must("record index", 1, b.store.RecordIndex(ctx, 1, outbox.WrittenIndex{Index: "blocks-v1", UUID: "u"}))
	n, err := b.store.Wake(ctx, 1, []outbox.Reason{outbox.ReasonESConnect}, 10)
	must("wake", n, err)
	n, err = b.store.PutOff(ctx, 1, two, outbox.Position{Version: 7}, 10)
	must("put off", n, err)
	b.leaseAll()
	b.setTerm(2, "a")
	got, err := b.store.ReclaimLeases(ctx, outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxReclaims: 5})
	must("reclaim", len(got), err)
	must("discard", int(b.discard(outbox.Selector{IDs: []outbox.ID{x.Events[5][0].ID}}).Discarded), nil)
	r := b.beginReplay(outbox.Selector{})
	if sent := b.send(r, x.Events[3][0].ID); len(sent) != 1 {
		b.t.Fatalf("replayed %v, want the one that has failed", sent)
	}
	must("end replay", 1, r.End(ctx, outbox.ReplayOutcome{Outcome: "finished"}))
}

func (b *bench) now() (at time.Time) {
	b.t.Helper()
	if err := b.pool.QueryRow(context.Background(), "select clock_timestamp()").Scan(&at); err != nil {
		b.t.Fatal(err)
	}
	return at
}

// timeColumns lists table and column of every time that weft's and the contract's
// tables can hold.
func (b *bench) timeColumns() (out [][2]string) {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `select table_name, column_name from information_schema.columns
		where table_schema = current_schema() and data_type = 'timestamp with time zone'`)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var c [2]string
		if err := rows.Scan(&c[0], &c[1]); err != nil {
			b.t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}
