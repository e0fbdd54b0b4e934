package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func versions(rows []outbox.Row) (out []int64) {
	for _, r := range rows {
		out = append(out, r.Version)
	}
	return out
}

func TestListShowsWhatMayGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := b.enqueue(5, 3, 1)
	b.enqueue(4, 2, 6)
	b.exec("update search_outbox_events set next_retry_at = now() + interval '1 h' where event_version = 1")
	b.exec("update search_outbox_events set next_retry_at = now() - interval '1 s', reclaims = 3 where event_version = 2")
	b.exec("update search_outbox_events set next_retry_at = 'infinity' where event_version = 6")
	b.exec("insert into search_outbox_events (entity_type, entity_id, op, event_version, status) select 'tag', gen_random_uuid(), 'upsert', 0, s from unnest(array['done', 'failed', 'processing']) s")
	l := b.list()
	if got := versions(l.Ready); !slices.Equal(got, []int64{3, 4, 5}) {
		t.Errorf("ready versions %v, want 3, 4, 5", got)
	}
	if got := versions(l.Due); !slices.Equal(got, []int64{2}) || !l.Suspects[l.Due[0].ID] || len(l.Suspects) != 1 {
		t.Errorf("due versions %v, suspects %v, want 2, which is one", got, l.Suspects)
	}
	for name, c := range map[string]struct {
		request outbox.ListRequest
		want    []int64
	}{
		"Limit":        {outbox.ListRequest{Ready: 2}, []int64{3, 4}},
		"FromPosition": {outbox.ListRequest{Ready: 9, From: &outbox.Position{Version: 4, ID: l.Ready[1].ID}}, []int64{4, 5}},
		"Newest":       {outbox.ListRequest{Ready: 2, Newest: true}, []int64{4, 5}},
		"Back":         {outbox.ListRequest{Ready: 9, Back: true}, []int64{3, 4, 5}},
		"None":         {outbox.ListRequest{Ready: 9, From: &outbox.Position{Version: 7, ID: l.Ready[1].ID}}, nil},
	} {
		got, err := b.store.List(t.Context(), c.request)
		if err != nil || !slices.Equal(versions(got.Ready), c.want) || len(got.Due) > 0 {
			t.Errorf("%s: %v, %v, want ready %v alone", name, got, err, c.want)
		} else if !c.request.Newest && (got.Look <= 0 || got.Took < got.Look || len(c.want) == 0 && got.Took != got.Look) {
			t.Errorf("%s: first row after %v, last one after %v, want none before the other", name, got.Look, got.Took)
		}
	}
	own, err := b.store.List(t.Context(), outbox.ListRequest{Ready: 9, Entity: &key})
	if err != nil || !slices.Equal(versions(own.Ready), []int64{3, 5}) {
		t.Errorf("the entity's own rows: %v, %v, want 3 and 5", own, err)
	}
}

func TestLeaseWritesNoEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1, 2)
	b.enqueue(3)
	var before string
	state := `select string_agg(xmin::text || ctid::text, ' ' order by event_version) from search_outbox_events`
	if err := b.pool.QueryRow(t.Context(), state).Scan(&before); err != nil {
		t.Fatal(err)
	}
	x := b.leaseAll()
	var after string
	if err := b.pool.QueryRow(t.Context(), state).Scan(&after); err != nil {
		t.Fatal(err)
	}
	if before != after || x.Count() != 3 {
		t.Errorf("%d events leased, rows before %s, after %s, want 3 and the same rows", x.Count(), before, after)
	}
	e := x.Events[0][1]
	if e.Version != 2 || e.Op != outbox.Upsert || e.Attempts != 0 || e.LeasedAt.IsZero() || e.CreatedAt.IsZero() || e.Due() {
		t.Errorf("leased event %+v", e)
	}
	// What is in flight, for people.
	if got := b.number("select count(*) from weft_inflight where batch = $1 and owner = 'a' and epoch = 1 and lease_until > leased_at", x.id); got != 3 {
		t.Errorf("weft_inflight shows %d events of the batch, want 3", got)
	}
	if got := b.number("select count(*) from search_outbox_events_live where status = 'processing' and owner = 'a' and lease_until > now() and processing_started_at <= now()"); got != 3 {
		t.Errorf("the live view shows %d events in processing, want 3", got)
	}
	if _, err := b.store.Settle(t.Context(), 1, x.id, nil); err != nil {
		t.Fatal(err)
	}
	if got := b.number("select count(*) from search_outbox_events_live where status = 'pending' and owner is null"); got != 3 {
		t.Errorf("%d events are pending after the release, want 3", got)
	}
}

func TestSlowLeaseOfOneEntityNamesIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := b.enqueue(1)
	g := groups(b.list().Ready...)
	defer testenv.Lock(t, b.pool.Config().ConnString(), table)()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := b.store.Lease(ctx, 1, uuid.New(), g)
	if !outbox.Slow(err) || !strings.HasSuffix(fmt.Sprint(err), ", with "+key.String()+" alone") {
		t.Errorf("lease of a locked table: %v, want one that took too long with %s alone", err, key)
	}
}

// TestLeaseRefusesWhatHasSomethingEarlier: the database knows what waits behind what,
// whatever the list has shown.
func TestLeaseRefusesWhatHasSomethingEarlier(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string // of version 1, after version 2 was listed
		check  bool   // only the mark lets the database look
		want   func(*outbox.Obstacle) bool
	}{
		"Waits":        {"next_retry_at = now() + interval '10 min'", false, func(o *outbox.Obstacle) bool { return o.Wait > 9*time.Minute && o.Wait <= 10*time.Minute }},
		"Parked":       {"next_retry_at = 'infinity'", false, func(o *outbox.Obstacle) bool { return o.Wait == 24*time.Hour }},
		"Due":          {"next_retry_at = now() - interval '1 s'", false, func(o *outbox.Obstacle) bool { return o.Wait == 0 && !o.Foreign }},
		"PutOff":       {"next_retry_at = now() + interval '1 h', behind = 0", false, func(o *outbox.Obstacle) bool { return o.Ready && !o.Foreign }},
		"OfAnother":    {"status = 'processing', lease_until = now() + interval '5 min'", false, func(o *outbox.Obstacle) bool { return o.Foreign && o.Wait > 4*time.Minute }},
		"Ready":        {"status = 'pending'", true, func(o *outbox.Obstacle) bool { return o.Ready && o.Wait == 0 }},
		"TieOfIDs":     {"event_version = 2, id = '00000000-0000-0000-0000-000000000001'", true, func(o *outbox.Obstacle) bool { return o.Version == 2 }},
		"LateCommit":   {"event_version = -5", true, func(o *outbox.Obstacle) bool { return o.Version == -5 }},
		"LaterIsFine":  {"event_version = 7", true, nil},
		"DoneIsFine":   {"status = 'done'", true, nil},
		"FailedIsFine": {"status = 'failed'", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.enqueue(1, 2)
			other := b.enqueue(3)
			rows := b.list().Ready
			b.exec("update search_outbox_events set " + c.change + " where event_version = 1")
			g := groups(rows[1], rows[2])
			g[0].Check = c.check
			x := b.lease(1, g...)
			if c.want == nil {
				if x.Count() != 2 || x.Obstacles[0] != nil {
					t.Errorf("%d events leased, obstacle %+v, want both and none", x.Count(), x.Obstacles[0])
				}
				return
			}
			if o := x.Obstacles[0]; o == nil || !c.want(o) {
				t.Errorf("obstacle %+v", o)
			}
			if len(x.Events[0]) != 0 || len(x.Events[1]) != 1 || x.Events[1][0].Key != other {
				t.Errorf("leased %v, want the other entity alone", x.Events)
			}
			if got := b.number("select cardinality(uuids) from weft_lease"); got != 1 {
				t.Errorf("the lease names %d events, want 1", got)
			}
		})
	}
}

func TestStrictLeaseRefusesWhatHasAFailedEventBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1, 2, 3)
	other := b.enqueue(4, 5)
	rows := b.list().Ready
	b.exec("update search_outbox_events set status = 'failed' where event_version in (1, 5)")
	b.store = b.strictStore(b.pool)
	x := b.lease(1, groups(rows[1], rows[3])...)
	if o := x.Obstacles[0]; o == nil || o.Version != 1 || o.Ready || o.Foreign || o.Wait != 24*time.Hour {
		t.Errorf("obstacle %+v, want the failed event, which nobody but a person ends", o)
	}
	if len(x.Events[0]) != 0 || len(x.Events[1]) != 1 || x.Events[1][0].Key != other {
		t.Errorf("leased %v, want the other entity, of which only a later event has failed", x.Events)
	}
	b.exec("update search_outbox_events set next_retry_at = now() + interval '1 h' where event_version = 2")
	if o := b.lease(1, groups(rows[2])...).Obstacles[0]; o == nil || o.Version != 1 {
		t.Errorf("obstacle %+v, want the failed event, which is earlier than the one that waits", o)
	}
}

func TestLeaseLeavesOutRowsThatHaveChanged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	moved, replaced := b.enqueue(2), b.enqueue(3)
	rows := b.list().Ready
	b.exec("update search_outbox_events set op = op where event_version = 2") // another address
	b.exec("delete from search_outbox_events where event_version = 3")
	b.exec("vacuum search_outbox_events")
	b.enqueueFor(replaced, 4) // takes the free address
	x := b.lease(1, groups(rows...)...)
	if x.Count() != 1 || len(x.Events[0]) != 1 {
		t.Errorf("leased %v, want the row that is as it was listed", x.Events)
	}
	// With nothing left of it, a batch has no lease.
	y := b.lease(1, groups(rows[1:]...)...)
	if y.Count() != 0 || b.number("select count(*) from weft_lease") != 1 {
		t.Errorf("leased %d of %s and %s, want nothing, and no lease", y.Count(), moved, replaced)
	}
}

// TestLeaseFallsBackToTheIndexWithManyWaitingRows: beyond two hundred waiting rows every
// entity is looked up.
func TestLeaseFallsBackToTheIndexWithManyWaitingRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`insert into search_outbox_events (entity_type, entity_id, op, event_version, next_retry_at)
		select 'tag', gen_random_uuid(), 'upsert', n, now() + interval '1 h' from generate_series(1, 300) n`)
	key := b.enqueue(1000, 1001)
	rows := b.list().Ready
	b.exec("update search_outbox_events set next_retry_at = now() + interval '2 h' where event_version = 1000")
	x := b.lease(1, outbox.Group{Key: key, Rows: rows[1:]})
	if x.Count() != 0 || x.Obstacles[0] == nil || x.Obstacles[0].Version != 1000 {
		t.Errorf("leased %d, obstacle %+v, want version 1000 in the way", x.Count(), x.Obstacles[0])
	}
}

// TestEveryModeThatKnowsTypesWorks: behind a pooler of sessions, statements may not be
// cached.
func TestEveryModeThatKnowsTypesWorks(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			cfg := b.pool.Config()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			b.store = b.newStore(pool, "a", outbox.Keep)
			b.enqueue(1, 2)
			b.enqueue(3)
			x := b.leaseAll()
			all := x.all(outbox.Done)
			all[2].Verdict = outbox.Retry
			if s := b.settle(x, all...); len(s.Left) != 0 || b.count("status = 'done'") != 2 {
				t.Errorf("settled %+v, want two events done", s)
			}
		})
	}
}

// TestIDsAsTheTablesHaveThem: numbers as ids of events, texts and numbers as ids of entities.
func TestIDsAsTheTablesHaveThem(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 256)
	for name, c := range map[string]struct {
		id, entity string
		keys       []outbox.ID
	}{
		"NumberAndText":   {"bigint", "text", []outbox.ID{outbox.Text(`a"b\c/%:`), outbox.Text("🦆"), outbox.Text(long)}},
		"NumberAndNumber": {"bigint", "bigint", []outbox.ID{outbox.Number(-1), outbox.Number(0), outbox.Number(1 << 62)}},
		"UUIDAndText":     {"uuid", "text", []outbox.ID{outbox.Text("1"), outbox.Text("10"), outbox.Text("9")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec("create table other_events (like search_outbox_events including all)")
			b.exec("alter table other_events alter id drop default, alter id type " + c.id + " using null, alter entity_id type " + c.entity + " using null")
			store, err := outbox.OpenStore(t.Context(), b.pool, outbox.StoreConfig{Table: "other_events", Projection: "p", Group: "g", Owner: "a", Lease: leaseTime})
			if err != nil {
				t.Fatal(err)
			}
			b.store = store
			var events []outbox.NewEvent
			for i, key := range c.keys {
				for v := range 2 {
					e := outbox.NewEvent{Key: outbox.Key{Type: "thing", ID: key}, Op: outbox.Upsert, Version: int64(v)}
					if c.id == "bigint" {
						e.ID = outbox.Number(int64(i*2 + v - 3))
					}
					events = append(events, e)
				}
			}
			if err := outbox.Enqueue(t.Context(), b.pool, "other_events", events...); err != nil {
				t.Fatal(err)
			}
			l := b.list()
			if len(l.Ready) != len(events) || !slices.IsSortedFunc(l.Ready, outbox.Row.Compare) {
				t.Fatalf("listed %v, want all in the order of (version, id)", l.Ready)
			}
			x := b.lease(1, groups(l.Ready...)...)
			if x.Count() != len(events) || x.Events[0][0].Key.ID.Kind().String() != c.entity {
				t.Fatalf("leased %d events, the first %+v", x.Count(), x.Events[0][0])
			}
			if got := b.number("select coalesce(cardinality(uuids), 0) + coalesce(cardinality(numbers), 0) from weft_lease"); got != len(events) {
				t.Errorf("the lease names %d events, want %d", got, len(events))
			}
			all := x.all(outbox.Done)
			all[0].Verdict = outbox.Retry
			if s := b.settle(x, all...); len(s.Left) != 0 {
				t.Errorf("left %v", s.Left)
			}
			if got := b.number("select count(*) from other_events where status = 'done'"); got != len(events)-1 {
				t.Errorf("%d events are done, want all but one", got)
			}
			if n, err := store.PutOff(t.Context(), 1, x.Events[0][0].Key, outbox.Position{Version: -1}, 10); err != nil || n != 0 {
				t.Errorf("put off %d, %v, want none: nothing is ready", n, err)
			}
		})
	}
}

// A table whose rows have a correlation_id hands it on, whatever its type, cut to 128 characters.
func TestLeaseReadsTheCorrelation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	first := b.leaseAll()
	if got := first.Events[0][0].Correlation; got != "" {
		t.Errorf("without a column: %q, want none", got)
	}
	b.settle(first, first.all(outbox.Done)...)
	b.exec("alter table search_outbox_events add column correlation_id text")
	b.store = b.newStore(b.pool, "a", outbox.Keep)
	for value, want := range map[string]string{"'request-7'": "request-7", "null": "", "repeat('x', 200)": strings.Repeat("x", 128)} {
		key := b.enqueue(1)
		b.exec("update search_outbox_events set correlation_id = " + value + " where entity_id = '" + key.ID.String() + "'")
		leased := b.leaseAll()
		if got := leased.Events[0][0].Correlation; got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
		b.settle(leased, leased.all(outbox.Done)...)
	}
}

// The counts of an adopted table may be wider than those that weft makes, and null.
func TestCountsAsAdoptedTablesHaveThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("drop view search_outbox_events_live")
	b.exec(`alter table search_outbox_events alter attempts type bigint, alter attempts drop not null, alter replay_count type bigint, alter replay_count drop not null`)
	b.store = b.newStore(b.pool, "a", outbox.Keep)
	b.enqueue(1)
	b.enqueue(2)
	b.enqueue(3)
	b.exec("update search_outbox_events set attempts = 5000000000, replay_count = 5000000000 where event_version = 1")
	b.exec("update search_outbox_events set attempts = null, replay_count = null where event_version = 2")
	b.exec("update search_outbox_events set attempts = null where event_version = 3")
	x := b.leaseAll()
	if n := x.Count(); n != 3 {
		t.Fatalf("leased %d events, want 3", n)
	}
	for i, want := range []int{1<<31 - 1, 0, 0} {
		if got := x.Events[i][0].Attempts; got != want {
			t.Errorf("event %d has %d attempts, want %d", i+1, got, want)
		}
	}
	in := x.all(outbox.Done)
	in[2].Verdict = outbox.Retry
	b.exec("update search_outbox_events set updated_at = now()") // so that the settle looks for the rows
	if got := b.settle(x, in...); len(got.Left) != 0 {
		t.Errorf("left %+v, want all settled", got.Left)
	}
	if got := b.count("status = 'done' or event_version = 3 and status = 'pending' and attempts = 1"); got != 3 {
		t.Errorf("%d rows are as they should be, want 3", got)
	}
	if got, err := b.store.Waiting(t.Context(), 5); err != nil || len(got) != 1 {
		t.Errorf("waiting: %+v, %v", got, err)
	}
}
