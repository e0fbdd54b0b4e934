package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestSettleWritesEveryVerdict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := range int64(5) {
		b.enqueue(v)
	}
	b.exec("update search_outbox_events set attempts = 2, reclaims = 1, error_reason = 'es_429', error = 'full' where event_version in (0, 3)")
	x := b.leaseAll()
	of := func(i int) *outbox.Event { return &x.Events[i][0] }
	s := b.settle(x,
		outbox.Settlement{Event: of(0), Verdict: outbox.Done},
		outbox.Settlement{Event: of(1), Verdict: outbox.Superseded},
		outbox.Settlement{Event: of(2), Verdict: outbox.Retry, Reason: outbox.ReasonES5xx, Detail: "a\x00b\xff", Delay: time.Minute},
		outbox.Settlement{Event: of(3), Verdict: outbox.Failed, Reason: outbox.ReasonES4xx, Detail: strings.Repeat("é", 1200)},
	)
	if s.At.IsZero() || len(s.Left) != 0 || s.Kept != nil {
		t.Errorf("settled %+v, want a time and nothing left", s)
	}
	for i := range 2 {
		if r := b.row(of(i).ID); r.Status != "done" || r.Done == nil || r.Reclaims != 0 || r.Error != nil || r.Reason != nil || r.Retry != nil || r.Owner != nil {
			t.Errorf("done row is %+v", r)
		}
	}
	if r := b.row(of(0).ID); r.Attempts != 2 {
		t.Errorf("done row has %d attempts, want the 2 that failed", r.Attempts)
	}
	if r := b.row(of(2).ID); r.Status != "pending" || r.Attempts != 1 || *r.Reason != "es_5xx" || *r.Error != "a b\uFFFD" ||
		r.Retry.Before(s.At.Add(59*time.Second)) || r.Retry.After(s.At.Add(time.Minute)) {
		t.Errorf("retried row is %+v, want it due a minute after the settle", r)
	}
	if r := b.row(of(3).ID); r.Status != "failed" || r.Attempts != 3 || r.Reclaims != 0 || *r.Reason != "es_4xx" || *r.Error != strings.Repeat("é", 999)+"…" || r.Retry != nil {
		t.Errorf("failed row is %+v, want it failed after 3 attempts with 1,000 characters of error", r)
	}
	if r := b.row(of(4).ID); r.Status != "pending" || r.Retry != nil || r.Attempts != 0 {
		t.Errorf("the row without a verdict is %+v, want it as it was", r)
	}
	if got := b.number("select count(*) from weft_lease"); got != 0 {
		t.Errorf("%d leases after the settle, want none", got)
	}
	_, err := b.store.Settle(t.Context(), 1, uuid.New(), []outbox.Settlement{{Event: of(4)}})
	if err == nil || !strings.Contains(err.Error(), "has no verdict") {
		t.Errorf("without a verdict: %v", err)
	}
}

// An error may have characters that the encoding of the database lacks. It is written without them, and so is
// what is kept of an entity that is to be written again.
func TestSettleInADatabaseThatLacksCharacters(t *testing.T) {
	t.Parallel()
	b := &bench{t: t, pool: testenv.Pool(t, testenv.DatabaseIn(t, "LATIN1")+"&client_encoding=UTF8")}
	b.store = b.newStore(b.pool, "a", outbox.Keep)
	b.setTerm(1, "a")
	b.enqueue(1)
	x := b.leaseAll()
	e := &x.Events[0][0]
	b.settle(x, outbox.Settlement{Event: e, Verdict: outbox.Failed, Reason: outbox.ReasonES4xx, Detail: "field 名 …"})
	if r := b.row(e.ID); r.Status != "failed" || *r.Error != "field ? ?" {
		t.Errorf("the row is %+v, want it failed with the letters of its error", r)
	}
	redo := b.store.Redo(1)
	if err := redo.Add(t.Context(), []outbox.RedoEntity{{Event: *e, Detail: "field 名"}}); err != nil {
		t.Fatal(err)
	}
	if left, err := redo.Take(t.Context(), outbox.RedoEntity{}, 10); err != nil || len(left) != 1 || left[0].Detail != "field ?" {
		t.Errorf("to be written again: got %+v, %v, want the entity", left, err)
	}
}

// TestSettleNeedsItsLease: what was not leased, or was settled before, is not settled.
func TestSettleNeedsItsLease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	x := b.leaseAll()
	b.exec("update weft_lease set batch = gen_random_uuid()")
	if _, err := b.store.Settle(t.Context(), 1, x.id, x.all(outbox.Done)); err == nil || !strings.Contains(err.Error(), "has no lease") {
		t.Errorf("settled without a lease: %v", err)
	}
	if b.count("status = 'pending'") != 1 {
		t.Error("the row has changed")
	}
}

// TestFinishedEventsLeave: archived ones are in the history as they would be in the table.
func TestFinishedEventsLeave(t *testing.T) {
	t.Parallel()
	for _, finished := range []outbox.Finished{outbox.Archive, outbox.Discard} {
		t.Run(string(finished), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.makeHistory()
			b.store = b.newStore(b.pool, "a", finished)
			b.enqueue(1, 2)
			b.enqueue(3)
			b.exec("update search_outbox_events set attempts = 3, error = 'x', error_reason = 'es_429', next_retry_at = now() - interval '1 s', traceparent = 'tp' where event_version = 1")
			x := b.leaseAll()
			all := x.all(outbox.Done)
			all[2].Verdict = outbox.Retry
			if s := b.settle(x, all...); len(s.Left) != 0 || s.Kept != nil || s.At.IsZero() {
				t.Errorf("settled %+v", s)
			}
			if got := b.count("true"); got != 1 {
				t.Errorf("%d rows stay, want the one to be retried", got)
			}
			want := 0
			if finished == outbox.Archive {
				want = 2
			}
			if got := b.number(`select count(*) from search_outbox_history where status = 'done' and processed_at is not null and created_at is not null
				and error is null and next_retry_at is null and processing_started_at <= processed_at and event_version in (1, 2)`); got != want {
				t.Errorf("%d events in the history, want %d", got, want)
			}
			if got := b.number("select count(*) from search_outbox_history where event_version = 1 and attempts = 3 and traceparent = 'tp'"); got != min(1, want) {
				t.Errorf("%d events kept what they were written with, want %d", got, min(1, want))
			}
		})
	}
}

// TestRefusedHistoryKeepsEvents: a history without a part for today holds up nobody.
func TestRefusedHistoryKeepsEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store = b.newStore(b.pool, "a", outbox.Archive)
	b.enqueue(1)
	b.enqueue(2)
	x := b.leaseAll()
	s := b.settle(x, x.all(outbox.Done)...)
	if s.Kept == nil || !strings.Contains(s.Kept.Error(), "no partition") || len(s.Left) != 0 || b.count("status = 'done'") != 2 {
		t.Errorf("settled %+v, want both events done in the table, and why", s)
	}
}

// TestPublicationThatRefusesDeletesKeepsEvents: somebody makes it while an instance deletes what is done.
func TestPublicationThatRefusesDeletesKeepsEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store = b.newStore(b.pool, "a", outbox.Discard)
	b.enqueue(1)
	x := b.leaseAll()
	b.exec(`alter table search_outbox_events replica identity nothing; create publication p for table search_outbox_events with (publish = 'insert, delete')`)
	if s := b.settle(x, x.all(outbox.Done)...); s.Kept == nil || b.count("status = 'done'") != 1 {
		t.Errorf("settled %+v, want the event done in the table, and why", s)
	}
}

func TestTablesWhoseRowsMustNotLeave(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ make, want string }{
		"Trigger":      {"create function f() returns trigger language plpgsql as 'begin return old; end'; create trigger tell after delete on search_outbox_events for each row execute function f()", "has a trigger on delete (tell)"},
		"Rule":         {"create rule stay as on delete to search_outbox_events do instead nothing", "has a rule (stay)"},
		"Row security": {"alter table search_outbox_events enable row level security", "has row security"},
		"ForeignKey":   {"create table notes (event uuid references search_outbox_events (id) on delete cascade)", "is referenced by a foreign key (notes_event_fkey of notes)"},
		"Published":    {"create publication p for table search_outbox_events; alter table search_outbox_events replica identity nothing", "is published (p) without a replica identity"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			for _, sql := range strings.Split(strings.ReplaceAll(c.make, "return old; end", "return old\x00 end"), ";") {
				b.exec(strings.ReplaceAll(sql, "\x00", ";"))
			}
			_, err := outbox.OpenStore(t.Context(), b.pool, outbox.StoreConfig{Table: table, Group: "g", Owner: "a", Lease: leaseTime, Finished: outbox.Discard})
			if shape, ok := errors.AsType[*outbox.ShapeError](err); !ok || shape.Remedy == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a ShapeError that says %q", err, c.want)
			}
			b.newStore(b.pool, "a", outbox.Keep)
		})
	}
}

// TestOneEntityInTheWayHoldsUpNoOther: whatever the database has against one row, the
// other entities of the batch are settled, and all of its own stays open.
func TestOneEntityInTheWayHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after string // the lease
		want  error
	}{
		"AStrangersLock":      {after: "lock", want: outbox.ErrLocked},
		"Deleted":             {after: "delete from search_outbox_events where event_version = 1", want: outbox.ErrChanged},
		"Changed":             {after: "update search_outbox_events set op = 'delete' where event_version = 1", want: outbox.ErrChanged},
		"OfAnotherEntity":     {after: "update search_outbox_events set entity_id = gen_random_uuid() where event_version = 1", want: outbox.ErrChanged},
		"OfAnotherType":       {after: "update search_outbox_events set entity_type = 'tag' where event_version = 1", want: outbox.ErrChanged},
		"Released":            {after: "update search_outbox_events set next_retry_at = now() where event_version = 1", want: outbox.ErrChanged},
		"SettledByAnother":    {after: "update search_outbox_events set status = 'done' where event_version = 1", want: outbox.ErrChanged},
		"AddressOfAnotherRow": {after: `delete from search_outbox_events where event_version = 1\; vacuum search_outbox_events\; insert into search_outbox_events (entity_type, entity_id, op, event_version) values ('tag', gen_random_uuid(), 'upsert', 9)`, want: outbox.ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := func(sql string) {
				for _, s := range strings.Split(sql, `\;`) {
					if s != "" {
						b.exec(s)
					}
				}
			}
			bad := b.enqueue(1, 2)
			for v := int64(3); v < 8; v++ {
				b.enqueue(v)
			}
			x := b.leaseAll()
			release := func() {}
			if c.after == "lock" {
				release = b.hold("event_version = 1")
			} else {
				run(c.after)
			}
			s := b.settle(x, x.all(outbox.Done)...)
			release()
			if len(s.Left) != 1 || s.Left[0].Key != bad || !errors.Is(s.Left[0].Err, c.want) {
				t.Errorf("left %+v, want %s with %v", s.Left, bad, c.want)
			}
			if got := b.count("status = 'done' and event_version between 3 and 7"); got != 5 {
				t.Errorf("%d of the others are done, want 5", got)
			}
			if got := b.count("status = 'done' and event_version = 2"); got != 0 {
				t.Error("a later event of the entity is done, the earlier one is not")
			}
			if got := b.number("select count(*) from weft_lease"); got != 0 {
				t.Errorf("%d leases are left", got)
			}
		})
	}
}

// TestRowsThatHaveOnlyMovedAreSettled: another address, or another version of the row that
// says the same, changes nothing.
func TestRowsThatHaveOnlyMovedAreSettled(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]string{
		"Touched":   "update search_outbox_events set updated_at = now()",
		"Rewritten": "vacuum full search_outbox_events",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.enqueue(1, 2)
			b.enqueue(3)
			x := b.leaseAll()
			b.exec(move)
			if s := b.settle(x, x.all(outbox.Done)...); len(s.Left) != 0 || b.count("status = 'done'") != 3 {
				t.Errorf("settled %+v, want all done", s)
			}
		})
	}
}

// TestResolve finds out what became of a settle whose answer was lost.
func TestResolve(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	locked := b.enqueue(2)
	x := b.leaseAll()
	all := x.all(outbox.Done)
	if _, settled, err := b.store.Resolve(t.Context(), 1, x.id, all); err != nil || settled {
		t.Errorf("before the settle: settled %v, %v, want the lease", settled, err)
	}
	release := b.hold("event_version = 2")
	b.settle(x, all...)
	release()
	s, settled, err := b.store.Resolve(t.Context(), 1, x.id, all)
	if err != nil || !settled || len(s.Left) != 1 || s.Left[0].Key != locked {
		t.Errorf("after it: %+v, settled %v, %v, want %s left", s, settled, err, locked)
	}
}

// TestTimeOfASettleIsThatOfDoneEvents: an alert asks how long ago one was done, also while retries are settled.
func TestTimeOfASettleIsThatOfDoneEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	x := b.leaseAll()
	all := x.all(outbox.Retry)
	if s := b.settle(x, all...); !s.At.IsZero() {
		t.Errorf("settled a retry: %+v, want no time", s)
	}
	if s, settled, err := b.store.Resolve(t.Context(), 1, x.id, all); err != nil || !settled || len(s.Left) > 0 || !s.At.IsZero() {
		t.Errorf("resolved a retry: %+v, %v, %v, want no time", s, settled, err)
	}
}

// TestResolveWaitsForTheSettle: the answer may be lost while the settle goes on.
func TestResolveWaitsForTheSettle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	x := b.leaseAll()
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "delete from weft_lease"); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		settled bool
		err     error
	}
	got := make(chan answer)
	go func() {
		_, settled, err := b.store.Resolve(t.Context(), 1, x.id, x.all(outbox.Done))
		got <- answer{settled, err}
	}()
	b.waitFor("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.err != nil || !a.settled {
		t.Errorf("resolve: settled %v, %v, want that it has waited for the other transaction", a.settled, a.err)
	}
}

// TestAbandon ends what a lease may have begun whose answer was lost, once.
func TestAbandon(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.enqueue(2)
	x, y := b.lease(1, groups(b.list().Ready[0])...), b.lease(1, groups(b.list().Ready[1])...)
	for _, want := range []int{1, 0} {
		n, err := b.store.Abandon(t.Context(), 1, []uuid.UUID{x.id, uuid.New()})
		if err != nil || n != want {
			t.Errorf("abandoned %d, %v, want %d", n, err, want)
		}
	}
	if got := b.number("select count(*) from weft_lease where batch = $1", y.id); got != 1 {
		t.Error("the lease of another batch is gone")
	}
}

// TestRefusedSettleIsSplit: a settle of which the database refuses a row changes nothing, and each
// half of it can be settled by itself.
func TestRefusedSettleIsSplit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse string
		want   func(error) bool
	}{
		"AConstraint": {"alter table search_outbox_events add check (status <> 'done' or event_version <> 1) not valid", outbox.Refused},
		"ASwallowingTrigger": {`create function swallow() returns trigger language plpgsql as 'begin if old.event_version = 1 then return null; end if; return coalesce(new, old); end';
			create trigger swallow before update on search_outbox_events for each row execute function swallow()`,
			func(err error) bool { return outbox.Refused(err) && errors.Is(err, outbox.ErrChanged) }},
		"ARefusingTrigger": {`create function refuse() returns trigger language plpgsql as 'begin if old.event_version = 1 then raise object_not_in_prerequisite_state; end if; return new; end';
			create trigger refuse before update on search_outbox_events for each row execute function refuse()`, outbox.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(c.refuse)
			b.enqueue(1, 2)
			for v := int64(3); v < 8; v++ {
				b.enqueue(v)
			}
			x := b.leaseAll()
			all := x.all(outbox.Done)
			settle := func(batch uuid.UUID, in []outbox.Settlement) error {
				_, err := b.store.Settle(t.Context(), 1, batch, in)
				return err
			}
			if err := settle(x.id, all); !c.want(err) {
				t.Errorf("settled: %v, want that it is refused", err)
			}
			if b.count("status = 'done'") != 0 || b.number("select count(*) from weft_lease where cardinality(uuids) = 7") != 1 {
				t.Error("rows or lease have changed")
			}
			halves, ok := outbox.Halve(all)
			if !ok || len(halves[0].Settlements) != 3 {
				t.Fatalf("halves %+v, want 3 and 4 events", halves)
			}
			if err := b.store.Split(t.Context(), 1, x.id, halves); err != nil {
				t.Fatal(err)
			}
			if err := b.store.Split(t.Context(), 1, x.id, halves); err == nil || !strings.Contains(err.Error(), "has no lease") {
				t.Errorf("split again: %v, want that there is no lease", err)
			}
			if err := settle(halves[1].Batch, halves[1].Settlements); err != nil || b.count("status = 'done' and event_version > 3") != 4 {
				t.Errorf("the half without the row: %v", err)
			}
			if err := settle(halves[0].Batch, halves[0].Settlements); !c.want(err) {
				t.Errorf("the other half: %v, want that it is refused", err)
			}
			if _, ok := outbox.Halve(halves[0].Settlements[:2]); ok {
				t.Error("the events of one entity are divided")
			}
			b.setTerm(2, "a")
			if err := b.store.Split(t.Context(), 1, halves[0].Batch, halves); !errors.Is(err, outbox.ErrFenced) {
				t.Errorf("split under an older epoch: %v", err)
			}
		})
	}
}
