package history

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	table = "search_outbox_events"
	group = "history"
)

type fixture struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func setup(t *testing.T) *fixture {
	t.Helper()
	pool := labtest.Pool(t, labtest.Database(t))
	for range 2 { // a second call changes nothing
		if err := Install(t.Context(), pool, table); err != nil {
			t.Fatalf("Install: %v", err)
		}
	}
	return &fixture{t: t, pool: pool}
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

func (f *fixture) lead(epoch int64, instance string) {
	f.t.Helper()
	f.exec(`insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ($1, $2, $3, now(), now())
	        on conflict (group_name) do update set epoch = excluded.epoch, instance = excluded.instance`, group, epoch, instance)
}

func (f *fixture) store(owner string) *outbox.Store {
	f.t.Helper()
	s, err := outbox.NewStore(f.pool, outbox.StoreConfig{Table: table, Projection: "p", Group: group, Owner: owner, Lease: time.Minute})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func (f *fixture) enqueue(versions ...int64) {
	f.t.Helper()
	var events []outbox.NewEvent
	for _, v := range versions {
		events = append(events, outbox.NewEvent{ID: id(v), Key: entity, Op: outbox.Upsert, Version: v})
	}
	err := pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		return outbox.Enqueue(f.t.Context(), tx, table, events...)
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) claim(s *outbox.Store, epoch int64) []outbox.Event {
	f.t.Helper()
	c, err := s.Claim(f.t.Context(), outbox.ClaimRequest{Epoch: epoch, Limit: 10})
	if err != nil {
		f.t.Fatal(err)
	}
	return append(c.Due, c.Ready...)
}

func (f *fixture) settle(s *outbox.Store, epoch int64, v outbox.Verdict, events ...outbox.Event) {
	f.t.Helper()
	var in []outbox.Settlement
	for i := range events {
		in = append(in, outbox.Settlement{Event: &events[i], Verdict: v, Reason: outbox.ReasonES429})
	}
	if _, err := s.Settle(f.t.Context(), epoch, in); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) read() *Log {
	f.t.Helper()
	log, err := Read(f.t.Context(), f.pool, table, group)
	if err != nil {
		f.t.Fatal(err)
	}
	return log
}

func lines(log *Log) []string {
	var out []string
	for _, c := range log.Changes {
		line := fmt.Sprintf("%d %s %s>%s", c.Version, c.Op, c.From, c.To)
		if c.Owner != "" {
			line += fmt.Sprintf(" %s@%d attempts=%d", c.Owner, c.Epoch, c.Attempts)
		}
		if c.Reclaim {
			line += " reclaim"
		}
		out = append(out, line)
	}
	return out
}

func TestRecord(t *testing.T) {
	t.Parallel()

	t.Run("LifeOfEvents", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		a, b := f.store("a"), f.store("b")
		f.lead(1, "a")
		f.enqueue(1)
		f.settle(a, 1, outbox.Retry, f.claim(a, 1)...)
		claimed := f.claim(a, 1)
		if _, err := a.Renew(t.Context(), 1, claimed); err != nil {
			t.Fatal(err)
		}
		f.exec(`update weft_leader set renewed_at = clock_timestamp()`)
		f.lead(2, "b")
		if _, err := b.Reclaim(t.Context(), outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 5}); err != nil {
			t.Fatal(err)
		}
		f.settle(b, 2, outbox.Done, f.claim(b, 2)...)

		log := f.read()
		want := []string{
			"1 upsert >pending",
			"1 upsert pending>processing a@1 attempts=0",
			"1 upsert processing>pending a@1 attempts=1",
			"1 upsert pending>processing a@1 attempts=1",
			"1 upsert processing>pending a@1 attempts=2 reclaim",
			"1 upsert pending>processing b@2 attempts=2",
			"1 upsert processing>done b@2 attempts=2",
		}
		if diff := cmp.Diff(want, lines(log)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		var terms []string
		for _, term := range log.Terms {
			terms = append(terms, fmt.Sprintf("%d %s", term.Epoch, term.Instance))
		}
		if diff := cmp.Diff([]string{"1 a", "2 b"}, terms); diff != "" {
			t.Errorf("terms (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]Row{{id(1), Done}}, log.Rows); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		expect(t, "two active", TwoActive(log))
		expect(t, "out of order", OutOfOrder(log))
		expect(t, "lost", Lost(log, []Enqueued{{id(1), entity, 1}}))
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
		f.exec(insert, entity.Type, [16]byte(entity.ID), 1)
		f.exec(insert, another.Type, [16]byte(another.ID), 2)
		f.exec(`update search_index set event_version = event_version + 2`)
		f.exec(`delete from search_index where entity_id = $1`, [16]byte(entity.ID))
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
			key := outbox.Key{Type: "book", ID: uuid.New()}
			if _, err := tx.Exec(t.Context(), `select set_config('application_name', $1, true)`, application); err != nil {
				t.Fatal(err)
			}
			if err := outbox.Enqueue(t.Context(), tx, table, outbox.NewEvent{Key: key, Op: outbox.Upsert, Version: 1}); err != nil {
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
		before := position()
		f.lead(2, "b")
		f.enqueue(2)
		log, err := Since(t.Context(), f.pool, table, group, before)
		if err != nil {
			t.Fatal(err)
		}
		if len(log.Changes) != 1 || log.Changes[0].Version != 2 || len(log.Terms) != 1 || log.Terms[0].Epoch != 2 {
			t.Errorf("got %+v, want the second event and the second term", log)
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
		pool := labtest.Pool(t, labtest.Schema(t))
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
	a, b := f.store("a"), f.store("b")
	f.lead(1, "a")
	f.enqueue(1, 2)
	f.claim(a, 1)
	f.lead(2, "b")
	f.exec(`update search_outbox_events set status = 'done', owner = null where event_version = 2`)
	if _, err := b.Reclaim(t.Context(), outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 5}); err != nil {
		t.Fatal(err)
	}
	f.settle(b, 2, outbox.Done, f.claim(b, 2)...)

	log := f.read()
	expect(t, "two active", TwoActive(log), `settle by "a" under epoch 1 after epoch 2`)
	expect(t, "out of order", OutOfOrder(log), "the oldest version 1")
	expect(t, "lost", Lost(log, []Enqueued{{uuid.New(), entity, 7}}), "never recorded")
}
