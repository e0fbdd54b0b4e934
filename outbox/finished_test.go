package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

const history = "search_outbox_history"

func (b *bench) finished() *outbox.FinishedEvents {
	b.t.Helper()
	f, err := outbox.OpenFinishedEvents(b.t.Context(), b.pool, table, time.Minute)
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

// attach makes the day of the history that was some days ago.
func (b *bench) attach(daysAgo int) {
	b.t.Helper()
	if _, err := b.finished().Attach(b.t.Context(), time.Now().AddDate(0, 0, -daysAgo)); err != nil {
		b.t.Fatal(err)
	}
}

// TestOpenRefusesTablesWhoseRowsMustNotLeave: whoever listens to a row that leaves its table,
// or keeps it there, is named, with what to do. To keep finished events is never refused.
func TestOpenRefusesTablesWhoseRowsMustNotLeave(t *testing.T) {
	t.Parallel()
	const listener = `create function heard() returns trigger language plpgsql as 'begin return old; end';`
	for name, tc := range map[string]struct{ sql, why, remedy string }{
		"TriggerOnDelete": {listener + `create trigger on_delete after delete on search_outbox_events for each row execute function heard()`,
			"has a trigger on delete (on_delete)", "drop it"},
		"StatementTrigger": {listener + `create trigger on_delete after insert or delete on search_outbox_events execute function heard()`,
			"has a trigger on delete (on_delete)", "drop it"},
		"Rule":        {`create rule silent as on delete to search_outbox_events do instead nothing`, "has a rule (silent)", "drop it"},
		"RowSecurity": {`alter table search_outbox_events enable row level security`, "has row security", "turn it off"},
		"ForeignKey": {`create table follows (event uuid references search_outbox_events on delete cascade)`,
			"is referenced by a foreign key (follows_event_fkey of follows)", "drop it"},
		"NoIdentity": {`create publication changes for all tables; alter table search_outbox_events replica identity nothing`,
			"is published (changes) without a replica identity", "replica identity"},
		"LostIdentity": {`create publication changes for table search_outbox_events; create unique index by_id on search_outbox_events (id);
			alter table search_outbox_events replica identity using index by_id; drop index by_id`, "is published (changes) without a replica identity", "replica identity"},
		"NoPrimaryKey": {`create publication changes for table search_outbox_events; alter table search_outbox_events drop constraint search_outbox_events_pkey`,
			"is published (changes) without a replica identity", "replica identity"},

		"NoTriggerOnDelete": {listener + `create trigger on_insert after insert or update on search_outbox_events for each row execute function heard()`, "", ""},
		"DisabledTrigger": {listener + `create trigger on_delete after delete on search_outbox_events for each row execute function heard();
			alter table search_outbox_events disable trigger on_delete`, "", ""},
		"Published":  {`create publication changes for all tables`, "", ""},
		"Outgoing":   {`create table books (id uuid primary key); alter table search_outbox_events add book uuid references books`, "", ""},
		"OfAnother":  {`create table search_outbox_other (id int); create rule silent as on delete to search_outbox_other do instead nothing`, "", ""},
		"InsertOnly": {`create publication changes for table search_outbox_events with (publish = 'insert'); alter table search_outbox_events replica identity nothing`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(tc.sql)
			for _, finished := range []outbox.Finished{outbox.Archive, outbox.Discard, outbox.Keep} {
				_, err := outbox.OpenStore(t.Context(), b.pool, outbox.StoreConfig{Table: table, Group: "g", Owner: "a", Lease: leaseTime, Finished: finished})
				if finished == outbox.Keep || tc.why == "" {
					if err != nil {
						t.Errorf("%s: %v", finished, err)
					}
					continue
				}
				shape, ok := errors.AsType[*outbox.ShapeError](err)
				if !ok || !strings.Contains(shape.Why, "cannot "+string(finished)+" finished events: it "+tc.why) || !strings.Contains(shape.Remedy, tc.remedy) {
					t.Errorf("%s: got %v, want a ShapeError that says %q and %q", finished, err, tc.why, tc.remedy)
				}
			}
			err := b.finished().CheckRemoval(t.Context())
			if (err != nil) != (tc.why != "") {
				t.Errorf("CheckRemoval: got %v, want what Open says", err)
			}
		})
	}
}

func TestOpenRefusesToArchiveWithoutAHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("drop table " + history)
	for finished, want := range map[outbox.Finished]string{outbox.Archive: "has no history table: run weft migrate up", outbox.Discard: ""} {
		_, err := outbox.OpenStore(t.Context(), b.pool, outbox.StoreConfig{Table: table, Group: "g", Owner: "a", Lease: leaseTime, Finished: finished})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", finished, err, want)
		}
	}
}

// TestSettleMovesOrDeletesWhatIsDone, and nothing else: what failed or is to be retried stays.
// In the history is all of the row, as the table would have kept it.
func TestSettleMovesOrDeletesWhatIsDone(t *testing.T) {
	t.Parallel()
	for finished, inHistory := range map[outbox.Finished]int{outbox.Archive: 2, outbox.Discard: 0} {
		t.Run(string(finished), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.attach(0)
			// Of names that SQL reads otherwise, and a value that SQL computes.
			more := `add column "Order" int default 7, add column "user" text default 'x', add column "it's {an ""\odd""}" text default 'y', add column twice bigint generated always as (event_version * 2) stored`
			b.exec("alter table " + table + " " + more)
			b.exec("alter table " + history + ` add column "Order" int, add column "user" text, add column "it's {an ""\odd""}" text, add column twice bigint`)
			b.store = b.newStore(b.pool, "a", finished)
			b.exec("update " + table + " set updated_at = now()") // nothing yet
			b.enqueue(1)
			b.enqueue(2)
			b.enqueue(3)
			b.enqueue(4)
			b.exec("update " + table + " set traceparent = '00-' || id, replay_count = 2, last_replayed_by = 'alice', attempts = 3, created_at = now() - interval '1 day'")
			b.exec("create table before as table " + table)
			x := b.leaseAll()
			in := x.all(outbox.Done)
			for i := range in {
				switch in[i].Event.Version {
				case 2:
					in[i].Verdict = outbox.Superseded
				case 3:
					in[i].Verdict = outbox.Failed
				case 4:
					in[i].Verdict = outbox.Retry
				}
			}
			if s := b.settle(x, in...); s.Kept != nil || len(s.Left) > 0 || s.At.IsZero() {
				t.Fatalf("settle: got %+v, want all settled", s)
			}
			if got := b.number("select count(*) from " + table + " where event_version in (3, 4) and status in ('failed', 'pending')"); got != 2 || b.number("select count(*) from "+table) != 2 {
				t.Errorf("left in the table: %d that failed or wait, want those two alone", got)
			}
			if got := b.number("select count(*) from " + history); got != inHistory {
				t.Fatalf("rows of the history: got %d, want %d", got, inHistory)
			}
			const changed = "- 'status' - 'processed_at' - 'updated_at' - 'processing_started_at'"
			if got := b.number(`select count(*) from ` + history + ` h join before b using (id)
				where to_jsonb(h) ` + changed + ` = to_jsonb(b) ` + changed + ` and h.status = 'done' and h.processed_at = h.updated_at
				  and h.processing_started_at <= h.processed_at and h.processed_at > now() - interval '1 minute' and h."Order" = 7 and h.twice = 2 * h.event_version`); got != inHistory {
				t.Errorf("%d rows of the history are what they were, want %d", got, inHistory)
			}
		})
	}
}

// TestSettleKeepsWhatItCannotRemove: a missing partition, right or column never fails an
// event. It is done, in the table, and the answer says why.
func TestSettleKeepsWhatItCannotRemove(t *testing.T) {
	t.Parallel()
	const insert, remove = "revoke insert on " + history + " from {role}", "revoke delete on " + table + " from {role}"
	for name, tc := range map[string]struct {
		finished          outbox.Finished
		sql, want, remedy string
	}{
		"Partition":      {outbox.Archive, "drop table {today}", "no partition of relation", "select weft_history_attach('" + table + "', (now() at time zone 'UTC')::date)"},
		"RightToInsert":  {outbox.Archive, insert, "permission denied for table " + history, "grant insert on " + history + " to {role}"},
		"RightToArchive": {outbox.Archive, remove, "permission denied for table " + table, "grant delete on " + table + " to {role}"},
		"RightToDelete":  {outbox.Discard, remove, "permission denied for table " + table, "grant delete on " + table + " to {role}"},
		// The application has added a column: its values must not get lost.
		"NewColumn":     {outbox.Archive, "alter table " + table + " add tenant text default 'x'", "WF004", "alter table " + history + " add tenant text"},
		"HistoryColumn": {outbox.Archive, "alter table " + history + " drop error_reason", `column "error_reason" of relation`, "alter table " + history + " add error_reason text"},
		"OtherType":     {outbox.Archive, "alter table " + history + " alter replay_count type uuid using null", "is of type uuid", "alter table " + history + " alter replay_count type int using 0"},
		"Table":         {outbox.Archive, "alter table " + history + " rename to away", `relation "` + history + `" does not exist`, "alter table away rename to " + history},
		"Trigger": {outbox.Discard, "create function swallow() returns trigger language plpgsql as 'begin return null; end'; create trigger swallow before delete on " +
			table + " for each row execute function swallow()", "WF003", "drop trigger swallow on " + table},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testenv.Database(t)
			b := &bench{t: t, pool: testenv.Pool(t, dsn)}
			b.setTerm(1, "a")
			b.attach(0)
			user := testenv.Runner(t, dsn)
			err := migrations.Grant(t.Context(), dsn, user.Username(), migrations.Mode{Table: table, Finished: string(tc.finished)})
			if err != nil {
				t.Fatal(err)
			}
			runner := testenv.Pool(t, testenv.As(t, dsn, user))
			b.store = b.newStore(runner, "a", tc.finished)
			var today string
			if err := b.pool.QueryRow(t.Context(), "select name from weft_history_partitions($1)", table).Scan(&today); err != nil {
				t.Fatal(err)
			}
			fill := strings.NewReplacer("{role}", user.Username(), "{today}", today)

			b.settleOne(nil) // the statement is prepared before the trouble begins
			b.exec(fill.Replace(tc.sql))
			b.settleOne(&tc.want)
			if got := b.count("status = 'done' and processed_at is not null and attempts = 0"); got != 1 {
				t.Errorf("%d done rows in the table, want 1", got)
			}
			b.exec(fill.Replace(tc.remedy))
			if err := b.store.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.settleOne(nil)
			if got := b.count("status = 'done'"); got != 1 {
				t.Errorf("%d done rows in the table after %q, want no more than before", got, tc.remedy)
			}
		})
	}
}

// settleOne settles a new event as done; kept is what the answer must say about why it stays.
func (b *bench) settleOne(kept *string) {
	b.t.Helper()
	b.enqueue(b.newest() + 1)
	x := b.leaseAll()
	s := b.settle(x, x.all(outbox.Done)...)
	switch {
	case len(s.Left) > 0 || s.At.IsZero():
		b.t.Errorf("settle: got %+v, want the event settled", s)
	case kept == nil && s.Kept != nil:
		b.t.Errorf("kept: got %v, want it removed", s.Kept)
	case kept != nil && (s.Kept == nil || !strings.Contains(s.Kept.Error(), *kept)):
		b.t.Errorf("kept: got %v, want %q", s.Kept, *kept)
	}
	if got := b.number("select count(*) from weft_lease"); got != 0 {
		b.t.Errorf("%d leases are left, want none", got)
	}
}

func (b *bench) newest() int64 {
	b.t.Helper()
	return int64(b.number("select coalesce(max(event_version), 0) from " + table))
}

// PostgreSQL detaches no partition concurrently beside a default one, which somebody has made by hand.
func TestPartitionBesideADefaultOneIsDropped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.finished()
	b.attach(5)
	b.exec("create table rest partition of search_outbox_history default")
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	parts, _, err := f.Partitions(t.Context())
	if err != nil || len(parts) != 2 {
		t.Fatalf("partitions: got %v, %v, want two", parts, err)
	}
	if _, err := f.DetachAndDrop(t.Context(), conn.Conn(), parts[0]); err != nil {
		t.Error(err)
	}
	if left, _, err := f.Partitions(t.Context()); err != nil || len(left) != 1 || left[0].Name != "rest" {
		t.Errorf("left: got %v, %v, want the default one", left, err)
	}
}
