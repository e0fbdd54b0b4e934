package failover

import (
	"context"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

// split is a pair of PostgreSQL servers that both take writes: the replica was promoted
// while the old primary lived on. One instance of weft works on each.
type split struct {
	t       *testing.T
	servers *stack.Stack
	fleet   *rig.Fleet
	es      *reconcile.Client
	index   string
	old     *traffic.Application // the application that still writes to the old primary
	young   *traffic.Application // the one that writes to the new
}

func newSplit(t *testing.T) *split {
	t.Helper()
	s := &split{t: t, index: testenv.Index(t)}
	var err error
	s.servers, err = stack.Start(t.Context(), stack.Options{
		Progress: io.Discard, ElasticURL: testenv.ElasticURL(t), Replication: stack.Asynchronous,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.servers.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if s.es, err = reconcile.NewClient(testenv.ElasticURL(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.es.Close)
	s.old, s.young = s.writer(stack.Postgres), s.writer(stack.Replica)
	if s.fleet, err = rig.NewFleet(t.Context(), "", t.TempDir()); err != nil {
		t.Fatal(err)
	}
	s.fleet.Env = rig.Environment(os.Environ(), false,
		"DATABASE_URL="+s.servers.PairURL(), "ELASTIC_URL="+testenv.ElasticURL(t), "ELASTIC_INDEX="+s.index,
		"WEFT_GROUP="+group, "WEFT_PROJECTIONS=search_index_to_elastic")
	t.Cleanup(func() {
		if err := s.fleet.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	if err := s.fleet.Run(t.Context(), "migrate", "up"); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *split) writer(server stack.Server) *traffic.Application {
	s.t.Helper()
	pool, err := rig.OpenPool(s.t.Context(), s.servers.URL(server), writers)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return &traffic.Application{Pool: pool, Timeout: bound}
}

// start starts an instance; env comes on top of the fleet's.
func (s *split) start(name string, env ...string) *rig.Instance {
	s.t.Helper()
	i, err := s.fleet.Start(s.t.Context(), name, env...)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := i.Ready(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return i
}

// settled writes the changes and waits until they are done on the writer's server.
func (s *split) settled(w *traffic.Application, changes ...traffic.Change) {
	s.t.Helper()
	if _, err := w.Write(s.t.Context(), changes...); err != nil {
		s.t.Fatal(err)
	}
	testenv.Eventually(s.t, func() bool { return one[bool](s.t, w.Pool, drainedSQL) }, "the changes are done")
}

// edit writes a text that no edit before it has written.
func edit(k outbox.Key) traffic.Change { return traffic.Upsert(k, "edit of "+time.Now().String()) }

const drainedSQL = `select not exists (select from search_outbox_events where status in ('pending', 'processing'))`

func one[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if err := pool.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// document returns the version and the text of an entity's document.
func (s *split) document(k outbox.Key) (version int64, text string) {
	s.t.Helper()
	var doc struct {
		Version int64 `json:"_version"`
		Source  struct {
			Text string `json:"text"`
		} `json:"_source"`
	}
	if err := s.es.Do(s.t.Context(), http.MethodGet, "/"+s.index+"/_doc/"+k.String(), nil, &doc); err != nil {
		s.t.Fatal(err)
	}
	return doc.Version, doc.Source.Text
}

// What holds when the old primary is not fenced: each server has one claimer, and no
// document goes back. What does not: which of the two servers a document comes from.
func TestOldPrimaryLivesOn(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	a := s.start("a")
	shared, quiet := traffic.Entity(1), traffic.Entity(2)
	s.settled(s.old, edit(shared), edit(quiet))
	testenv.Eventually(t, func() bool {
		return one[int](t, s.young.Pool, `select count(*) from search_outbox_events where status = 'done'`) == 2
	}, "the replica has it")
	if err := s.servers.Do(t.Context(), stack.Promote, stack.Replica); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*traffic.Application{s.old, s.young} {
		if err := history.Install(t.Context(), w.Pool, rig.Outbox); err != nil {
			t.Fatal(err)
		}
	}
	b := s.start("b", "DATABASE_URL="+s.servers.URL(stack.Replica))

	// The old primary's application is ahead of the new one's by an hour.
	hour := time.Now().Add(time.Hour).UnixMicro()
	s.old.Clock.SkipTo(hour)
	s.settled(s.old, edit(shared))
	before, text := s.document(shared)
	s.settled(s.young, edit(shared), edit(quiet))
	if after, now := s.document(shared); after != before || now != text {
		t.Errorf("document that the old primary has written: got version %d %q, want still %d %q", after, now, before, text)
	}
	want := one[int64](t, s.young.Pool, `select event_version from search_index where entity_id = $1`, &quiet.ID)
	if got, _ := s.document(quiet); got != want {
		t.Errorf("document that only the new primary has changed: got version %d, want %d", got, want)
	}
	named, err := alarms(b.Log)
	if err != nil || len(slices.Compact(named)) != 1 || named[0] != shared {
		t.Errorf("alarm on the new primary: got %v (%v), want %s", named, err, shared)
	}
	for name, w := range map[string]*traffic.Application{"old": s.old, "new": s.young} {
		log, err := history.Read(t.Context(), w.Pool, rig.Outbox, group)
		if err != nil {
			t.Fatal(err)
		}
		if found := history.TwoActive(log); len(found) > 0 {
			t.Errorf("%s primary: got %v, want one claimer", name, found)
		}
	}

	// When the old primary goes, its leader comes over as a standby, and a newer change
	// puts the document right.
	if err := s.servers.Do(t.Context(), stack.StopServer, stack.Postgres); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		content, err := os.ReadFile(a.Log)
		standby := strings.LastIndex(string(content), `"leader.standby"`)
		return err == nil && standby > strings.LastIndex(string(content), `"leader.acquired"`)
	}, "the old primary's leader stands by")
	s.young.Clock.SkipTo(hour + time.Minute.Microseconds())
	s.settled(s.young, edit(shared))
	if after, now := s.document(shared); after <= before || now == text {
		t.Errorf("document after a newer change: got version %d %q, want a later one than %d", after, now, before)
	}
}
