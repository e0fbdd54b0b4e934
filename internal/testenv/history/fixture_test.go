package history

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

type fixture struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func setup(t *testing.T) *fixture {
	t.Helper()
	pool := testenv.Pool(t, testenv.Database(t))
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

func (f *fixture) store(owner string, finished outbox.Finished) *outbox.Store {
	f.t.Helper()
	s, err := outbox.OpenStore(f.t.Context(), f.pool, outbox.StoreConfig{
		Table: table, Projection: "p", Group: group, Owner: owner, Lease: time.Minute, Finished: finished,
	})
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

// lease leases all that may go.
func (f *fixture) lease(s *outbox.Store, epoch int64) (uuid.UUID, []outbox.Event) {
	f.t.Helper()
	l, err := s.List(f.t.Context(), outbox.ListRequest{Ready: 10, Due: 10})
	if err != nil {
		f.t.Fatal(err)
	}
	rows := append(l.Ready, l.Due...)
	slices.SortFunc(rows, func(a, b outbox.Row) int { return a.Compare(b) })
	batch := uuid.New()
	leased, err := s.Lease(f.t.Context(), epoch, batch, []outbox.Group{{Key: entity, Rows: rows, Check: true}})
	if err != nil || len(leased.Events[0]) == 0 {
		f.t.Fatalf("lease of %d rows: %+v, %v", len(rows), leased, err)
	}
	return batch, leased.Events[0]
}

func (f *fixture) settle(s *outbox.Store, epoch int64, v outbox.Verdict, batch uuid.UUID, events []outbox.Event) {
	f.t.Helper()
	var in []outbox.Settlement
	for i := range events {
		in = append(in, outbox.Settlement{Event: &events[i], Verdict: v, Reason: outbox.ReasonES429})
	}
	out, err := s.Settle(f.t.Context(), epoch, batch, in)
	if err != nil || len(out.Left) > 0 || out.Kept != nil {
		f.t.Fatalf("settle: %+v, %v", out, err)
	}
}

// round leases what may go and settles it.
func (f *fixture) round(s *outbox.Store, epoch int64, v outbox.Verdict) {
	f.t.Helper()
	batch, events := f.lease(s, epoch)
	f.settle(s, epoch, v, batch, events)
}

func (f *fixture) reclaim(s *outbox.Store, epoch int64) {
	f.t.Helper()
	r := outbox.ReclaimRequest{Epoch: epoch, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 5}
	leases, err := s.ReclaimLeases(f.t.Context(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	rows, err := s.ReclaimRows(f.t.Context(), r)
	if err != nil || len(leases)+len(rows) == 0 {
		f.t.Fatalf("reclaimed %+v and %+v (%v), want something", leases, rows, err)
	}
}

// sound expects nothing of the checks.
func (f *fixture) sound(log *Log) {
	f.t.Helper()
	expect(f.t, "two active", TwoActive(log))
	expect(f.t, "unleased", Unleased(log))
	expect(f.t, "out of order", OutOfOrder(log))
	expect(f.t, "lost", Lost(log, nil))
	expect(f.t, "twice", Twice(log))
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

// archive returns the store of a leader that archives finished events.
func (f *fixture) archive() *outbox.Store {
	f.t.Helper()
	// Today's, and tomorrow's should the day end meanwhile.
	f.exec(`select weft_history_attach($1, (now() at time zone 'UTC')::date + n) from generate_series(0, 1) n`, table)
	f.lead(1, "a")
	return f.store("a", outbox.Archive)
}
