package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newSource(t *testing.T) *source {
	t.Helper()
	pool := testenv.Pool(t, testenv.Database(t))
	if err := history.Install(t.Context(), pool, outboxTable); err != nil {
		t.Fatal(err)
	}
	return &source{pool: pool}
}

func someDocuments(n int) []Document {
	var docs []Document
	for i := range n {
		docs = append(docs, newDocument("func", "net/wire", fmt.Sprintf("net/wire.F%d", i), "F does nothing."))
	}
	return docs
}

func texts(t *testing.T, s *source) map[string]string {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), `select entity_type || ':' || entity_id, text from search_index`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var id, text string
		if err := rows.Scan(&id, &text); err != nil {
			t.Fatal(err)
		}
		out[id] = text
	}
	return out
}

func readLog(t *testing.T, s *source) *history.Log {
	t.Helper()
	log, err := history.Read(t.Context(), s.pool, outboxTable, "none")
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestSource(t *testing.T) {
	t.Parallel()

	t.Run("RowsAndEventsTogether", func(t *testing.T) {
		t.Parallel()
		s := newSource(t)
		docs := someDocuments(loadBatch + 3)
		if err := s.load(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
		changed := slices.Clone(docs[:2])
		changed[0].Text = "new"
		steps := []struct {
			name string
			do   func(context.Context, []Document) (int, error)
			docs []Document
			want int
		}{
			{"update", s.update, changed[:1], 1},
			{"remove", s.remove, docs[1:3], 2},
			{"remove again", s.remove, docs[1:3], 0},
			{"update of one that is gone", s.update, changed, 1},
			{"create", s.create, docs[:2], 1},
			{"create again", s.create, docs[:2], 0},
		}
		for _, step := range steps {
			if got, err := step.do(t.Context(), step.docs); err != nil || got != step.want {
				t.Errorf("%s: got %d events, %v; want %d", step.name, got, err, step.want)
			}
		}
		got := texts(t, s)
		if len(got) != len(docs)-1 {
			t.Errorf("got %d rows, want %d", len(got), len(docs)-1)
		}
		for i, want := range []string{"new", docs[1].Text, ""} {
			if text := got[docs[i].Key.String()]; text != want {
				t.Errorf("text of document %d: got %q, want %q", i, text, want)
			}
		}
		var behind int
		err := s.pool.QueryRow(t.Context(), `
select count(*) from search_index s
where event_version <> (select max(event_version) from search_outbox_events o
                        where o.entity_type = s.entity_type and o.entity_id = s.entity_id)`).Scan(&behind)
		if err != nil || behind != 0 {
			t.Errorf("rows that have not the version of their last event: got %d, %v; want 0", behind, err)
		}
		log, ledger := readLog(t, s), s.ledger()
		if len(log.Changes) != len(docs)+5 || len(ledger) != len(docs)+5 || s.produced() != len(docs)+5 {
			t.Errorf("got %d events, %d in the ledger, %d produced; want %d", len(log.Changes), len(ledger), s.produced(), len(docs)+5)
		}
		for _, f := range append(history.Lost(log, ledger), history.DeadLetters(log)...) {
			if f.What == "committed by the producer and never recorded" {
				t.Errorf("ledger names an event that is not there: %v", f)
			}
		}
	})

	t.Run("SecondLoadIsRefused", func(t *testing.T) {
		t.Parallel()
		s := newSource(t)
		docs := someDocuments(3)
		if err := s.load(t.Context(), docs[:2]); err != nil {
			t.Fatal(err)
		}
		if err := s.load(t.Context(), docs); err == nil {
			t.Error("second load: got no error")
		}
	})

	t.Run("CountsAndLeft", func(t *testing.T) {
		t.Parallel()
		s := newSource(t)
		if err := s.load(t.Context(), someDocuments(5)); err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{
			`update search_outbox_events set status = 'done' where id in (select id from search_outbox_events limit 1)`,
			`update search_outbox_events set status = 'processing', owner = 'a' where id in (select id from search_outbox_events where status = 'pending' limit 1)`,
			`update search_outbox_events set status = 'failed', error_reason = 'es_4xx' where id in (select id from search_outbox_events where status = 'pending' limit 1)`,
		} {
			if _, err := s.pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.counts(t.Context())
		if want := (counts{Total: 5, Done: 1, Failed: 1}); err != nil || got != want || got.lag() != 3 {
			t.Errorf("counts: got %+v, %v; want %+v and a lag of 3", got, err, want)
		}
		left, err := s.left(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"2 pending", "1 processing by a", "1 failed for es_4xx"} {
			if !slices.Contains(strings.Split(left, ", "), want) {
				t.Errorf("left: got %q, want %q in it", left, want)
			}
		}
	})
}

func TestVersions(t *testing.T) {
	t.Parallel()
	now := time.UnixMicro(1000)
	v := versions{now: func() time.Time { return now }}
	got := []int64{v.next(), v.next()}
	now = time.UnixMicro(5000)
	got = append(got, v.next())
	now = time.UnixMicro(10) // the clock is set back
	got = append(got, v.next())
	if diff := cmp.Diff([]int64{1000, 1001, 5000, 5001}, got); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// Writers that meet at few documents must commit the events of each in the order of
// their versions, re-creations included.
func TestStreamCommitsInVersionOrder(t *testing.T) {
	t.Parallel()
	s := newSource(t)
	docs := someDocuments(6)
	if err := s.load(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	const enough = 400
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	st := &stream{source: s, docs: docs, seed: 1}
	ended := make(chan error, 1)
	go func() { ended <- st.run(ctx) }()
	testenv.Eventually(t, 60*time.Second, func() bool { return s.produced() >= enough }, "400 events")
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	log := readLog(t, s)
	if !log.Exact {
		t.Log("the server does not track commit timestamps: the order of statements is judged")
	}
	last, ops := map[outbox.Key]history.Change{}, map[outbox.Op]int{}
	for _, c := range log.Changes {
		before, seen := last[c.Key]
		if seen && before.Version >= c.Version {
			t.Errorf("%s: version %d committed after version %d", c.Key, c.Version, before.Version)
		}
		if seen && before.Op == outbox.Delete && c.Op == outbox.Delete {
			t.Errorf("%s: two deletes in a row", c.Key)
		}
		last[c.Key] = c
		ops[c.Op]++
	}
	if got := len(log.Changes); got != s.produced() {
		t.Errorf("got %d events in the table, %d produced", got, s.produced())
	}
	if ops[outbox.Delete] == 0 || ops[outbox.Upsert] == 0 {
		t.Errorf("operations: got %v, want both", ops)
	}
	rows := texts(t, s)
	for key, c := range last {
		if _, there := rows[key.String()]; there != (c.Op == outbox.Upsert) {
			t.Errorf("%s: row there is %v after %s", key, there, c.Op)
		}
	}
}
