package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

func TestNewStoreNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := outbox.NewStore(nil, outbox.StoreConfig{Table: "Robert'); drop", Owner: strings.Repeat("x", 121), Finished: "burn"})
	for _, want := range []string{"table", "group is empty", "owner", "lease", `finished "burn"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

func TestOpenRefusesTablesThatItCannotWorkOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`create table child_events () inherits (search_outbox_events)`)
	b.exec(`create table parts_events (like search_outbox_events) partition by list (op)`)
	b.exec(`create table old_events (like search_outbox_events); alter table old_events drop column behind`)
	b.exec(`create table short_events (like search_outbox_events); alter table short_events alter id type text`)
	b.exec(`create table date_events (like search_outbox_events); alter table date_events drop entity_id; alter table date_events add entity_id date`)
	for name, want := range map[string]string{
		"search_outbox_events": "has inheritance children",
		"child_events":         "is not an ordinary table",
		"parts_events":         "is not an ordinary table",
		"old_events":           "run `weft migrate up`",
		"short_events":         `has an id of type "text"`,
		"date_events":          `has an entity_id of type "date"`,
		"no_events":            "does not exist",
	} {
		_, err := outbox.DescribeTable(t.Context(), b.pool, name, time.Minute)
		shape, ok := errors.AsType[*outbox.ShapeError](err)
		if !ok || !strings.Contains(err.Error(), want) || shape.Table != name || shape.Remedy == "" {
			t.Errorf("%s: got %v, want a ShapeError that says %q", name, err, want)
		}
	}
}

// TestOlderEpochIsFenced: once a newer term has begun, also one that a failover has given
// the same epoch to another instance, no statement of the older one changes a row.
func TestOlderEpochIsFenced(t *testing.T) {
	t.Parallel()
	for name, term := range map[string]struct {
		epoch    int64
		instance string
	}{"NewerEpoch": {2, "b"}, "SameEpochOfAnotherInstance": {1, "b"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.enqueue(1)
			b.enqueue(2)
			l := b.list()
			x := b.lease(1, groups(l.Ready[0])...)
			b.setTerm(term.epoch, term.instance)
			ctx := t.Context()
			calls := map[string]func() error{
				"lease": func() error {
					_, err := b.store.Lease(ctx, 1, uuid.New(), groups(l.Ready[1]))
					return err
				},
				"settle":  func() error { _, err := b.store.Settle(ctx, 1, x.id, x.all(outbox.Done)); return err },
				"release": func() error { _, err := b.store.Settle(ctx, 1, x.id, nil); return err },
				"resolve": func() error { _, _, err := b.store.Resolve(ctx, 1, x.id, x.all(outbox.Done)); return err },
				"reclaim lease": func() error {
					_, err := b.store.ReclaimLeases(ctx, outbox.ReclaimRequest{Epoch: 1, Limit: 10, MaxReclaims: 3})
					return err
				},
				"reclaim rows": func() error {
					_, err := b.store.ReclaimRows(ctx, outbox.ReclaimRequest{Epoch: 1, Limit: 10, MaxReclaims: 3, MaxProcessing: time.Minute})
					return err
				},
				"put off":  func() error { _, err := b.store.PutOff(ctx, 1, l.Ready[1].Key, outbox.Position{}, 10); return err },
				"wake":     func() error { _, err := b.store.Wake(ctx, 1, outbox.Reasons(), 10); return err },
				"abandon":  func() error { _, err := b.store.Abandon(ctx, 1, []uuid.UUID{x.id}); return err },
				"progress": func() error { return b.store.RecordProgress(ctx, 1, time.Now()) },
				"occupy":   func() error { return b.store.Occupy(ctx, 1) },
				"index":    func() error { return b.store.RecordIndex(ctx, 1, outbox.WrittenIndex{Index: "blocks-v1", UUID: "u"}) },
			}
			for name, call := range calls {
				if err := call(); !errors.Is(err, outbox.ErrFenced) {
					t.Errorf("%s: got %v, want ErrFenced", name, err)
				}
			}
			if got := b.count("status = 'pending' and next_retry_at is null and attempts = 0"); got != 2 {
				t.Errorf("%d rows are as they were, want 2", got)
			}
			if got := b.number("select count(*) from weft_lease"); got != 1 {
				t.Errorf("%d leases, want the old one", got)
			}
		})
	}
}

// TestBumpWaitsForAnOpenLease: a transaction that has taken the fence ends before the next
// term begins.
func TestBumpWaitsForAnOpenLease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "select from weft_fence where group_name = 'g' and epoch = 1 and instance = 'a' for key share"); err != nil {
		t.Fatal(err)
	}
	// A heartbeat does not wait.
	b.exec("update weft_leader set renewed_at = now() where group_name = 'g'")
	_, err = b.pool.Exec(t.Context(), "begin; set local lock_timeout = '50ms'; update weft_leader set epoch = 2 where group_name = 'g'; commit")
	if err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Fatalf("the bump returned %v, want it to wait for the fence", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.setTerm(2, "b")
}

func TestStats(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := range int64(6) {
		b.enqueue(v)
	}
	l := b.list()
	x := b.lease(1, groups(l.Ready[:4]...)...)
	b.settle(x, append(x.all(outbox.Done)[:2], outbox.Settlement{Event: &x.Events[2][0], Verdict: outbox.Retry, Reason: outbox.ReasonES429, Delay: time.Hour},
		outbox.Settlement{Event: &x.Events[3][0], Verdict: outbox.Failed, Reason: outbox.ReasonES4xx})...)
	y := b.lease(1, groups(l.Ready[4])...)
	b.exec("insert into search_outbox_events (entity_type, entity_id, op, event_version, status, lease_until) values ('tag', gen_random_uuid(), 'upsert', 9, 'processing', now() - interval '1 s')")
	b.exec("update weft_lease set leased_at = leased_at - interval '1 h'")
	if err := b.store.RecordProgress(t.Context(), 1, time.Now().Truncate(time.Microsecond)); err != nil {
		t.Fatal(err)
	}
	b.exec("analyze search_outbox_events")
	for name, read := range map[string]func() (outbox.Stats, error){
		"Stats":  func() (outbox.Stats, error) { return b.store.Stats(t.Context(), time.Minute, 0) },
		"Glance": func() (outbox.Stats, error) { return b.store.Stats(t.Context(), time.Minute, 100) },
	} {
		s, err := read()
		if err != nil {
			t.Fatal(err)
		}
		got := [...]int64{s.Pending, s.Retrying, s.Processing, s.Failed, s.Stuck, s.DoneEstimate, s.Lag()}
		if want := [...]int64{1, 1, 2, 1, 2, 2, 4}; got != want {
			t.Errorf("%s: pending, retrying, processing, failed, stuck, done, lag are %v, want %v", name, got, want)
		}
		if s.LastSettle == nil || s.NextRetry == nil || s.Oldest <= 0 || s.Capped {
			t.Errorf("%s: %+v, want the last settle, the next retry, an age, and no cap", name, s)
		}
	}
	s, err := b.store.Stats(t.Context(), time.Minute, 1)
	if err != nil || !s.Capped {
		t.Errorf("a glance at one row of each kind: %+v, %v, want it to be capped", s, err)
	}
	b.settle(y, y.all(outbox.Done)...)
}

func TestEnqueueNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	same := outbox.UUID(uuid.New())
	err := outbox.Enqueue(t.Context(), b.pool, table,
		outbox.NewEvent{Key: outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}, Op: outbox.Upsert, Version: 1},
		outbox.NewEvent{ID: same, Key: outbox.Key{ID: same}, Op: "move", Version: -1, Traceparent: strings.Repeat("x", 513)},
		outbox.NewEvent{Key: outbox.Key{Type: "b\x00", ID: outbox.UUID(uuid.Nil)}, Op: outbox.Delete},
		outbox.NewEvent{Key: outbox.Key{Type: "b", ID: outbox.Text(strings.Repeat("x", 2501))}, Op: outbox.Delete},
	)
	for _, want := range []string{
		"event 1 of", `op "move"`, "entity type of 0 characters", "event id equals", "version -1", "traceparent of 513",
		"event 2 of", "null byte", "entity id is zero", "event 3 of", "entity id of 2501 bytes", "of another kind",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
	if got := b.count("true"); got != 0 {
		t.Errorf("%d rows were written, want none", got)
	}
}

// What is in flight hides neither that a count has met its limit nor a part of the backlog, and is
// not counted twice where it was due.
func TestStatsOfWhatIsInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := range int64(15) {
		b.enqueue(v)
	}
	glance := func() outbox.Stats {
		t.Helper()
		s, err := b.store.Stats(t.Context(), time.Minute, 10)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	b.lease(1, groups(b.list().Ready[:3]...)...)
	if s := glance(); !s.Capped || s.Pending < 10 || s.Processing != 3 {
		t.Errorf("15 events, 3 of them in flight: %+v, want at least 10 ready ones, capped", s)
	}
	b.exec("delete from weft_lease")
	b.exec("update search_outbox_events set next_retry_at = now() - interval '1 s' where event_version < 8")
	b.exec("delete from search_outbox_events where event_version >= 8")
	b.lease(1, groups(b.list().Due...)...)
	for name, s := range map[string]outbox.Stats{"glance": glance(), "stats": b.stats()} {
		if s.Pending != 0 || s.Retrying != 0 || s.Processing != 8 || s.Lag() != 8 || s.Capped {
			t.Errorf("%s of 8 due events in flight: %+v, want 8 in flight and nothing else", name, s)
		}
	}
}

func (b *bench) stats() outbox.Stats {
	b.t.Helper()
	s, err := b.store.Stats(b.t.Context(), time.Minute, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// TestRowsThatNameNoEventAreLeftOut: an adopted table may allow them, and none of them holds up others. They are named.
func TestRowsThatNameNoEventAreLeftOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("alter table search_outbox_events alter entity_id drop not null, alter event_version drop not null")
	want := b.enqueue(5)
	b.exec(`insert into search_outbox_events (entity_type, entity_id, op, event_version, next_retry_at)
		select 'block', case when no = 'version' then gen_random_uuid() end, 'upsert', case when no = 'entity' then 1 end, at
		from unnest(array['entity', 'version']) no, unnest(array[null, now()]) at`)
	for what, r := range map[string]outbox.ListRequest{"list": {Ready: 9, Due: 9}, "newest": {Ready: 9, Newest: true}, "look back": {Ready: 9, Back: true}} {
		got, err := b.store.List(t.Context(), r)
		if err != nil || len(got.Ready) != 1 || got.Ready[0].Key != want || len(got.Due) != 0 {
			t.Errorf("%s: got %+v, %v, want the event alone", what, got, err)
		}
	}
	for most, want := range map[int]int{9: 4, 3: 3} {
		if got, err := b.store.Nameless(t.Context(), most); err != nil || len(got) != want {
			t.Errorf("%d at most: %v, %v, want %d events", most, got, err, want)
		}
	}
}
