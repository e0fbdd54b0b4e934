package history

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	table = "search_outbox_events"
	group = "history"
)

func TestRecord(t *testing.T) {
	t.Parallel()

	t.Run("LifeOfEvents", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		a, b := f.store("a", outbox.Keep), f.store("b", outbox.Keep)
		f.lead(1, "a")
		f.enqueue(1)
		f.round(a, 1, outbox.Retry)
		f.exec(`update search_outbox_events set next_retry_at = now()`)
		f.lease(a, 1)
		f.exec(`update weft_leader set renewed_at = clock_timestamp()`)
		f.lead(2, "b")
		f.reclaim(b, 2)
		f.round(b, 2, outbox.Done)
		f.exec(`delete from search_outbox_events`)

		log := f.read()
		want := []string{
			"1 upsert >pending",
			"1 upsert pending>pending a@1 attempts=1",
			"1 upsert pending>pending a@1 attempts=2 reclaim",
			"1 upsert pending>done b@2 attempts=2",
			"1 upsert done>deleted",
		}
		if diff := cmp.Diff(want, lines(log)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		var leases []string
		for _, l := range log.Leases {
			leases = append(leases, fmt.Sprintf("%s@%d of %v: %v, %d settled, %d reclaimed", l.Owner, l.Epoch, l.Events, l.Ended.After(l.At), l.Settled, l.Reclaimed))
		}
		want = []string{
			fmt.Sprintf("a@1 of [%s]: true, 1 settled, 0 reclaimed", id(1)),
			fmt.Sprintf("a@1 of [%s]: true, 0 settled, 1 reclaimed", id(1)),
			fmt.Sprintf("b@2 of [%s]: true, 1 settled, 0 reclaimed", id(1)),
		}
		if diff := cmp.Diff(want, leases); diff != "" {
			t.Errorf("leases (-want +got):\n%s", diff)
		}
		var terms []string
		for _, term := range log.Terms {
			terms = append(terms, fmt.Sprintf("%d %s", term.Epoch, term.Instance))
		}
		if diff := cmp.Diff([]string{"1 a", "2 b"}, terms); diff != "" {
			t.Errorf("terms (-want +got):\n%s", diff)
		}
		f.sound(log)
	})

	t.Run("Archive", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		a := f.archive()
		f.enqueue(1)
		f.round(a, 1, outbox.Done)
		log := f.read()
		log.Finished = outbox.Archive
		if diff := cmp.Diff([]string{"1 upsert >pending", "1 upsert pending>archived a@1 attempts=0"}, lines(log)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		if len(log.Rows) != 0 || len(log.History) != 1 || log.History[0] != id(1) {
			t.Errorf("got rows %v and history %v, want the event in the history", log.Rows, log.History)
		}
		f.sound(log)
	})

	t.Run("Delete", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		a := f.store("a", outbox.Discard)
		f.lead(1, "a")
		f.enqueue(1, 2)
		f.round(a, 1, outbox.Done)
		log := f.read()
		log.Finished = outbox.Discard
		want := []string{"1 upsert >pending", "2 upsert >pending", "1 upsert pending>deleted a@1 attempts=0", "2 upsert pending>deleted a@1 attempts=0"}
		got := lines(log)
		slices.Sort(got[2:]) // of one statement
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		f.sound(log)
	})

	// Claims in rows, as an older build and other workers write them.
	t.Run("ClaimsInRows", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		f.lead(1, "a")
		f.enqueue(1, 2)
		f.exec(`update search_outbox_events set status = 'processing', owner = 'a', epoch = 1`)
		f.exec(`update search_outbox_events set lease_until = now()`) // a renewal
		f.exec(`update search_outbox_events set status = 'done', owner = null, processed_at = now() where event_version = 1`)
		f.lead(2, "b")
		f.reclaim(f.store("b", outbox.Keep), 2)
		f.round(f.store("b", outbox.Keep), 2, outbox.Done)
		log := f.read()
		got := lines(log)
		slices.Sort(got[2:4])
		want := []string{
			"1 upsert >pending", "2 upsert >pending", "1 upsert pending>processing a@1 attempts=0", "2 upsert pending>processing a@1 attempts=0",
			"1 upsert processing>done a@1 attempts=0", "2 upsert processing>pending a@1 attempts=1 reclaim", "2 upsert pending>done b@2 attempts=1",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		if len(log.Leases) != 3 {
			t.Errorf("got %d leases, want two claims and a batch", len(log.Leases))
		}
		f.sound(log)
	})

	t.Run("Source", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		for range 2 {
			if err := InstallSource(t.Context(), f.pool); err != nil {
				t.Fatalf("InstallSource: %v", err)
			}
		}
		insert := `insert into search_index (id, entity_type, entity_id, text, event_version) values (gen_random_uuid(), $1, $2, 'text', $3)`
		f.exec(insert, entity.Type, &entity.ID, 1)
		f.exec(insert, another.Type, &another.ID, 2)
		f.exec(`update search_index set event_version = event_version + 2`)
		f.exec(`delete from search_index where entity_id = $1`, &entity.ID)
		log := f.read()
		var got []string
		for i := range log.Source {
			c := &log.Source[i]
			got = append(got, fmt.Sprintf("%s %s", c.Key, c))
		}
		slices.Sort(got[2:4]) // of one statement
		want := []string{
			entity.String() + " written as version 1", another.String() + " written as version 2",
			entity.String() + " written as version 3", another.String() + " written as version 4",
			entity.String() + " deleted after version 3",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("source changes (-want +got):\n%s", diff)
		}
		if tx := log.Source[2].Tx; tx != log.Source[3].Tx || tx == log.Source[1].Tx {
			t.Errorf("got %+v, want the update's two rows in one transaction of their own", log.Source)
		}
	})

	t.Run("SessionsOfWeftAreNamed", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		for application, want := range map[string]string{
			"weft/g/a/work": "a", "weft/g/a": "", "other/g/a/work": "", "weft/g/a-very-long~12345678/work": "", "": "",
		} {
			tx, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			key := outbox.Key{Type: "book", ID: outbox.UUID(uuid.New())}
			if _, err := tx.Exec(t.Context(), `select set_config('application_name', $1, true)`, application); err != nil {
				t.Fatal(err)
			}
			if err := outbox.Enqueue(t.Context(), tx, table, outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: key, Op: outbox.Upsert, Version: 1}); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			log := f.read()
			if got := log.Changes[len(log.Changes)-1]; got.Key != key || got.By != want {
				t.Errorf("session %q: got change of %s by %q, want %s by %q", application, got.Key, got.By, key, want)
			}
		}
	})

	t.Run("Since", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		position := func() int64 {
			seq, err := Position(t.Context(), f.pool)
			if err != nil {
				t.Fatal(err)
			}
			return seq
		}
		if got := position(); got != 0 {
			t.Errorf("position before anything: got %d, want 0", got)
		}
		f.lead(1, "a")
		f.enqueue(1)
		a := f.store("a", outbox.Keep)
		batch, events := f.lease(a, 1)
		before := position()
		f.settle(a, 1, outbox.Done, batch, events)
		f.lead(2, "b")
		f.enqueue(2)
		log, err := Since(t.Context(), f.pool, table, group, before)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"1 upsert pending>done a@1 attempts=0", "2 upsert >pending"}, lines(log)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		if len(log.Terms) != 1 || log.Terms[0].Epoch != 2 {
			t.Errorf("got terms %+v, want the second", log.Terms)
		}
	})

	t.Run("CommitOrder", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		var exact bool
		if err := f.pool.QueryRow(t.Context(), `select current_setting('track_commit_timestamp')::boolean`).Scan(&exact); err != nil {
			t.Fatal(err)
		}
		f.enqueue(1, 2, 3)
		tx := func(version int64) pgx.Tx {
			x, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := x.Exec(t.Context(), `update search_outbox_events set status = 'done' where event_version = $1`, version); err != nil {
				t.Fatal(err)
			}
			return x
		}
		first, second, third := tx(1), tx(2), tx(3)
		for _, end := range []func(context.Context) error{second.Commit, first.Commit, third.Rollback} {
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		log := f.read()
		if log.Exact != exact {
			t.Errorf("Exact: got %v, want %v as the server says", log.Exact, exact)
		}
		want := []string{"2 upsert pending>done", "1 upsert pending>done"}
		if !exact {
			want[0], want[1] = want[1], want[0]
		}
		if diff := cmp.Diff(want, lines(log)[3:]); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	})

	t.Run("MissingTable", func(t *testing.T) {
		t.Parallel()
		pool := testenv.Pool(t, testenv.Schema(t))
		if err := Install(t.Context(), pool, table); err == nil {
			t.Error("Install without the tables: got no error")
		}
		// Nothing of a failed installation stays.
		var found *string
		if err := pool.QueryRow(t.Context(), `select to_regclass('weftlab_history')::text`).Scan(&found); err != nil {
			t.Fatal(err)
		}
		if found != nil {
			t.Errorf("table left behind: %s", *found)
		}
	})
}

// A zombie that ignores the fence is what the record is for.
func TestRecordShowsAnUnfencedWriter(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a, b := f.store("a", outbox.Keep), f.store("b", outbox.Keep)
	f.lead(1, "a")
	f.enqueue(1, 2)
	batch, _ := f.lease(a, 1)
	f.lead(2, "b")
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `delete from weft_lease where batch = $1`, batch); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `update search_outbox_events set status = 'done' where event_version = 2`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f.round(b, 2, outbox.Done)

	log := f.read()
	expect(t, "two active", TwoActive(log), `settle of what "a" leased under epoch 1 after epoch 2`)
	expect(t, "out of order", OutOfOrder(log), "the oldest version 1")
	expect(t, "lost", Lost(log, []Enqueued{{outbox.UUID(uuid.New()), entity, 7}}), "never recorded")
}
