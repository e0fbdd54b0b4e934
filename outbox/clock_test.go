package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/outbox"
)

// A process whose wall clock is decades off writes the same times as any other:
// everything that reaches a table is the database's.
func TestLocalClockReachesNoTable(t *testing.T) {
	t.Parallel()
	b := setup(t)
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
		off.store = off.newStore("a")
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
	must := func(what string, err error) {
		b.t.Helper()
		if err != nil {
			b.t.Fatalf("%s: %v", what, err)
		}
	}
	for v := int64(1); v <= 8; v++ {
		b.enqueueFor(outbox.Key{Type: "block", ID: uuid.New()}, v)
	}
	ev := b.claim(1, 8).Ready
	if len(ev) != 8 {
		b.t.Fatalf("claimed %d, want all 8", len(ev))
	}
	n, err := b.store.Renew(ctx, 1, ev)
	if err != nil || n != len(ev) {
		b.t.Fatalf("renewed %d, %v, want all", n, err)
	}
	s := b.settle(
		outbox.Settlement{Event: &ev[0], Verdict: outbox.Done},
		outbox.Settlement{Event: &ev[1], Verdict: outbox.Retry, Reason: outbox.ReasonES5xx, Delay: time.Hour},
		outbox.Settlement{Event: &ev[2], Verdict: outbox.Failed, Reason: outbox.ReasonES4xx},
		outbox.Settlement{Event: &ev[3], Verdict: outbox.Waiting, Delay: time.Hour},
		outbox.Settlement{Event: &ev[4], Verdict: outbox.GivenBack},
		outbox.Settlement{Event: &ev[5], Verdict: outbox.Retry, Reason: outbox.ReasonESConnect, Delay: time.Hour},
	)
	if s.Rows != 6 {
		b.t.Fatalf("settled %+v, want 6 rows", s)
	}
	must("record progress", b.store.RecordProgress(ctx, 1, s.At))
	_, err = b.store.Wake(ctx, 1, []outbox.Reason{outbox.ReasonESConnect})
	must("wake", err)
	_, err = b.store.GiveBackUnknown(ctx, 1, ev[6:7])
	must("give back", err)
	b.setEpoch(2)
	got, err := b.store.Reclaim(ctx, outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 5})
	must("reclaim", err)
	if len(got) != 1 || got[0].Rows != 1 {
		b.t.Fatalf("reclaimed %+v, want the one that was left", got)
	}
	r := b.beginReplay(outbox.Selector{})
	if sent := b.send(r, ev[2].ID); len(sent) != 1 {
		b.t.Fatalf("replayed %v, want the one that has failed", sent)
	}
	must("end replay", r.End(ctx, outbox.ReplayOutcome{Outcome: "finished"}))
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
