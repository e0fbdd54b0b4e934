package projections

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const group = "test"

// leading returns a context with the authority of epoch.
func leading(tb testing.TB, epoch int64) context.Context {
	return outbox.WithAuthority(tb.Context(), outbox.Authority{Group: group, Epoch: epoch, Instance: "a", Check: func() error { return nil }})
}

// bench is a migrated database whose leader is at epoch 1.
type bench struct {
	tb   testing.TB
	pool *pgxpool.Pool
}

func setup(tb testing.TB) *bench {
	tb.Helper()
	b := &bench{tb: tb, pool: testenv.Pool(tb, testenv.Database(tb))}
	b.exec("insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ($1, 1, 'a', now(), now())", group)
	return b
}

func (b *bench) exec(sql string, args ...any) {
	b.tb.Helper()
	if _, err := b.pool.Exec(b.tb.Context(), sql, args...); err != nil {
		b.tb.Fatalf("%s: %v", sql, err)
	}
}

// hurried returns the bench with sessions of its own, which wait for a lock for 100 ms.
func (b *bench) hurried() *bench {
	b.tb.Helper()
	cfg := b.pool.Config()
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "100ms"
	pool, err := pgxpool.NewWithConfig(b.tb.Context(), cfg)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(pool.Close)
	return &bench{tb: b.tb, pool: pool}
}

// one returns the single value of a query.
func one[T any](b *bench, sql string, args ...any) T {
	b.tb.Helper()
	var v T
	if err := b.pool.QueryRow(b.tb.Context(), sql, args...).Scan(&v); err != nil {
		b.tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

func event(op outbox.Op, key outbox.Key, version int64) outbox.Event {
	return outbox.Event{Row: outbox.Row{ID: outbox.UUID(uuid.New()), Key: key, Version: version}, Op: op}
}

func key() outbox.Key { return outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())} }

var noDetail = cmpopts.IgnoreFields(outbox.Outcome{}, "Detail")

func wantOutcomes(tb testing.TB, got, want []outbox.Outcome) {
	tb.Helper()
	if d := cmp.Diff(want, got, noDetail); d != "" {
		details := make([]string, len(got))
		for i := range got {
			details[i] = got[i].Detail
		}
		tb.Errorf("outcomes (-want +got):\n%s\ndetails: %q", d, details)
	}
}

// elasticsearch is the server of the tests, which may stand still for a while.
func elasticsearch(tb testing.TB) elastic.Config {
	tb.Helper()
	return elastic.Config{URLs: []string{testenv.ElasticURL(tb)}, RequestTimeout: time.Minute}
}

// sink records what a Search writes and answers as told.
type sink struct {
	Reader // not called
	mu     sync.Mutex
	writes [][]elastic.Action
	answer func([]elastic.Action) ([]outbox.Outcome, error)
	live   map[string]bool // documents that are there, for Live
}

func (s *sink) Write(_ context.Context, actions []elastic.Action) ([]outbox.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := make([]elastic.Action, len(actions))
	for i, a := range actions {
		a.Body = append([]byte(nil), a.Body...)
		kept[i] = a
	}
	s.writes = append(s.writes, kept)
	if s.answer != nil {
		return s.answer(actions)
	}
	out := make([]outbox.Outcome, len(actions))
	for i := range out {
		out[i] = outbox.OK()
	}
	return out, nil
}

func (s *sink) Ready(context.Context) error       { return nil }
func (s *sink) EnsureIndex(context.Context) error { return nil }
func (s *sink) Close()                            {}

func (s *sink) Live(_ context.Context, docs []elastic.Doc) ([]bool, error) {
	live := make([]bool, len(docs))
	for i, d := range docs {
		live[i] = s.live[d.ID]
	}
	return live, nil
}

// search returns a Search on the bench's database.
func (b *bench) search(documents Documents) *Index {
	b.tb.Helper()
	s, err := NewSearch(b.pool, documents, zaptest.NewLogger(b.tb), prometheus.NewRegistry())
	if err != nil {
		b.tb.Fatal(err)
	}
	return s
}

// written returns the only action about k.
func (s *sink) written(tb testing.TB, k outbox.Key) elastic.Action {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []elastic.Action
	for _, w := range s.writes {
		for _, a := range w {
			if a.ID == k.String() {
				found = append(found, a)
			}
		}
	}
	if len(found) != 1 {
		tb.Fatalf("actions about %s: got %d, want 1", k, len(found))
	}
	return found[0]
}
