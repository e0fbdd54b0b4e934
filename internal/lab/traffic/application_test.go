package traffic

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

func newApplication(t *testing.T) *Application {
	t.Helper()
	pool := testenv.Pool(t, testenv.Database(t))
	if err := history.Install(t.Context(), pool, rig.Outbox); err != nil {
		t.Fatal(err)
	}
	return &Application{Pool: pool}
}

func readLog(t *testing.T, a *Application) *history.Log {
	t.Helper()
	log, err := history.Read(t.Context(), a.Pool, rig.Outbox, "none")
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// texts returns the text of each row.
func texts(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `select entity_type || ':' || entity_id, text from search_index`)
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

func TestWriteChangesRowsAndEventsTogether(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	up := func(n int, text string, c Condition) Change {
		change := Upsert(Entity(n), text)
		change.If = c
		return change
	}
	gone := func(n int, c Condition) Change { return Change{Key: Entity(n), Op: outbox.Delete, If: c} }
	for _, step := range []struct {
		name    string
		changes []Change
		want    []outbox.Op
	}{
		{"create", []Change{up(2, "c", IfAbsent), up(0, "a", IfAbsent), up(1, "b", IfAbsent)}, []outbox.Op{outbox.Upsert, outbox.Upsert, outbox.Upsert}},
		{"create again", []Change{up(0, "x", IfAbsent)}, nil},
		{"update", []Change{up(0, "new", IfPresent)}, []outbox.Op{outbox.Upsert}},
		{"remove", []Change{gone(1, IfPresent), gone(2, IfPresent)}, []outbox.Op{outbox.Delete, outbox.Delete}},
		{"remove again", []Change{gone(1, IfPresent)}, nil},
		{"update of one that is gone", []Change{up(1, "x", IfPresent)}, nil},
		{"write one that is gone", []Change{up(1, "b", Always)}, []outbox.Op{outbox.Upsert}},
		{"delete without a row", []Change{gone(3, Always)}, []outbox.Op{outbox.Delete}},
		{"delete where there is no row", []Change{gone(3, IfAbsent), gone(0, IfAbsent)}, []outbox.Op{outbox.Delete}},
		{"twice in one transaction", []Change{gone(1, Always), up(1, "again", Always), up(1, "twice", Always)}, []outbox.Op{outbox.Delete, outbox.Upsert, outbox.Upsert}},
		{"there and gone in one transaction", []Change{up(4, "x", Always), gone(4, IfPresent)}, []outbox.Op{outbox.Upsert, outbox.Delete}},
	} {
		events, err := a.Write(t.Context(), step.changes...)
		var got []outbox.Op
		for _, e := range events {
			got = append(got, e.Op)
		}
		if diff := cmp.Diff(step.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v; events (-want +got):\n%s", step.name, err, diff)
		}
	}
	want := map[string]string{Entity(0).String(): "new", Entity(1).String(): "twice"}
	if diff := cmp.Diff(want, texts(t, a.Pool)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	var behind int
	err := a.Pool.QueryRow(t.Context(), `
select count(*) from search_index s
where event_version <> (select max(event_version) from search_outbox_events o
                        where o.entity_type = s.entity_type and o.entity_id = s.entity_id)`).Scan(&behind)
	if err != nil || behind != 0 {
		t.Errorf("rows that have not the version of their last event: got %d, %v; want 0", behind, err)
	}
	log, ledger := readLog(t, a), a.Acknowledged()
	if len(log.Changes) != 14 || len(ledger) != 14 || a.Produced() != 14 {
		t.Errorf("got %d events, %d in the ledger, %d produced; want 14", len(log.Changes), len(ledger), a.Produced())
	}
	for _, f := range append(history.Lost(log, ledger), history.DeadLetters(log)...) {
		if f.What == "committed by the producer and never recorded" {
			t.Errorf("ledger names an event that is not there: %v", f)
		}
	}
}

// A snippet is cut after characters, not after bytes.
func TestSnippetIsTheFirst200Characters(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	for n, c := range []struct{ text, want string }{
		{"short", "short"},
		{strings.Repeat("é", 200), strings.Repeat("é", 200)},
		{strings.Repeat("é", 201), strings.Repeat("é", 200)},
	} {
		for _, write := range []func() ([]outbox.NewEvent, error){
			func() ([]outbox.NewEvent, error) { return a.Write(t.Context(), Upsert(Entity(n), c.text)) },
			func() ([]outbox.NewEvent, error) { return a.WriteLate(t.Context(), Entity(n), Row{Text: c.text}, 0) },
		} {
			if events, err := write(); err != nil || len(events) != 1 {
				t.Fatalf("write: got %v, %v; want one event", events, err)
			}
			var got string
			key := Entity(n)
			if err := a.Pool.QueryRow(t.Context(), "select snippet from search_index where entity_id = $1", &key.ID).Scan(&got); err != nil || got != c.want {
				t.Errorf("snippet of %d characters: got %q, %v; want %q", len([]rune(c.text)), got, err, c.want)
			}
		}
	}
}

// A repeated delivery brings a version that the row has had before.
func TestWriteOfAGivenVersionLeavesANewerRow(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	first, err := a.Write(t.Context(), Upsert(Entity(0), "new"))
	if err != nil {
		t.Fatal(err)
	}
	repeat := Upsert(Entity(0), "old")
	repeat.Version = first[0].Version
	again, err := a.Write(t.Context(), repeat)
	if err != nil || len(again) != 1 || again[0].Version != first[0].Version {
		t.Errorf("repeated: got %v, %v; want an event of version %d", again, err, first[0].Version)
	}
	if got := texts(t, a.Pool)[Entity(0).String()]; got != "new" {
		t.Errorf("text: got %q, want the newer one", got)
	}
}

func TestRenewWritesWhatIsThereNow(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	key := Entity(7)
	read := func() (op string, version int64) {
		t.Helper()
		err := a.Pool.QueryRow(t.Context(), "select op, event_version from search_outbox_events order by event_version desc limit 1").Scan(&op, &version)
		if err != nil {
			t.Fatal(err)
		}
		return op, version
	}
	if err := a.Renew(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if op, _ := read(); op != "delete" {
		t.Errorf("event of an entity without a row: got %s, want delete", op)
	}
	if _, err := a.Write(t.Context(), Upsert(key, "text")); err != nil {
		t.Fatal(err)
	}
	if err := a.Renew(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	op, version := read()
	var row int64
	if err := a.Pool.QueryRow(t.Context(), "select event_version from search_index").Scan(&row); err != nil {
		t.Fatal(err)
	}
	if op != "upsert" || row != version || texts(t, a.Pool)[key.String()] != "written again" {
		t.Errorf("event of an entity with a row: got %s %d, row %d, want upsert and the row's version", op, version, row)
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	now := time.UnixMicro(1000)
	c := Clock{now: func() time.Time { return now }}
	got := []int64{c.Next(), c.Next()}
	now = time.UnixMicro(5000)
	got = append(got, c.Next())
	now = time.UnixMicro(10) // the clock is set back
	got = append(got, c.Next())
	c.SkipTo(9000)
	c.SkipTo(8995)
	got = append(got, c.Next())
	if diff := cmp.Diff([]int64{1000, 1001, 5000, 5001, 9001}, got); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

func TestEntitiesDiffer(t *testing.T) {
	t.Parallel()
	keys, third := map[outbox.Key]bool{}, 0
	for _, k := range Entities(603) {
		keys[k] = true
		if EveryThird(k) {
			third++
		}
	}
	if len(keys) != 603 || third < 150 || third > 250 {
		t.Errorf("entities: got %d different ones, %d of them the third; want 603 and some 200", len(keys), third)
	}
}

// stream runs s until it has produced enough events.
func stream(t *testing.T, s *Stream, enough int) *history.Log {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	testenv.Eventually(t, func() bool { return s.App.Produced() > enough }, "enough events")
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	log := readLog(t, s.App)
	if got := s.App.Produced(); len(log.Changes) != got {
		t.Errorf("got %d events in the table, %d produced", len(log.Changes), got)
	}
	return log
}

// Writers that meet at few entities must commit the events of each in the order of their
// versions, re-creations included.
func TestStreamCommitsInVersionOrder(t *testing.T) {
	t.Parallel()
	s := &Stream{App: newApplication(t), Writers: 4, Rate: 1000, Seed: 1, Entities: Entities(6)}
	last, ops := map[outbox.Key]history.Change{}, map[outbox.Op]int{}
	for _, c := range stream(t, s, 400).Changes {
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
	if ops[outbox.Delete] == 0 || ops[outbox.Upsert] == 0 {
		t.Errorf("operations: got %v, want both", ops)
	}
	rows := texts(t, s.App.Pool)
	for key, c := range last {
		if _, there := rows[key.String()]; there != (c.Op == outbox.Upsert) {
			t.Errorf("%s: row there is %v after %s", key, there, c.Op)
		}
	}
}

// A late stream must be a hard one and a lawful one: versions of some entities are committed
// out of order, those of the locked ones never, and no row goes back.
func TestLateStreamIsLawful(t *testing.T) {
	t.Parallel()
	s := &Stream{App: newApplication(t), Writers: 8, Rate: 1500, Seed: 5, Entities: Entities(600), Hot: 60, Late: EveryThird}
	log := stream(t, s, 1500)
	newest := map[outbox.Key]history.Change{}
	late, deletes, together := 0, 0, map[uint64]int{}
	for _, c := range log.Changes {
		together[c.Tx]++
		if c.Op == outbox.Delete {
			deletes++
		}
		if c.Version < newest[c.Key].Version {
			late++
			if !EveryThird(c.Key) {
				t.Errorf("%s is only changed under its lock, and version %d was committed after %d", c.Key, c.Version, newest[c.Key].Version)
			}
			continue
		}
		newest[c.Key] = c
	}
	if late == 0 || deletes == 0 || len(together) == len(log.Changes) {
		t.Errorf("the stream is tame: %d late versions, %d deletes, %d transactions of %d events", late, deletes, len(together), len(log.Changes))
	}
	for key, c := range newest {
		var version int64
		err := s.App.Pool.QueryRow(t.Context(), "select coalesce((select event_version from search_index where entity_type = $1 and entity_id = $2), 0)",
			key.Type, &key.ID).Scan(&version)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int64{true: 0, false: c.Version}[c.Op == outbox.Delete]; version != want {
			t.Errorf("row of %s, whose newest event is %s %d: got version %d, want %d", key, c.Op, c.Version, version, want)
		}
	}
}

// A stream goes on without its database, and takes nothing for committed.
func TestStreamSurvivesWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	pool, err := rig.OpenPool(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable", 4)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := &Stream{App: &Application{Pool: pool}, Writers: 4, Rate: 1000, Entities: Entities(10)}
	if _, err := s.App.Write(t.Context(), Upsert(Entity(0), "x"), Delete(Entity(1))); err == nil {
		t.Error("write without a server: got no error")
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	testenv.Eventually(t, func() bool { return s.App.Refused() > 5 }, "more refusals")
	stop()
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want none", err)
	}
	if got := s.App.Acknowledged(); len(got) != 0 {
		t.Errorf("ledger: got %d events, want none", len(got))
	}
	if got := s.App.Answers(time.Time{}); len(got) != 0 {
		t.Errorf("answers: got %v, want none", got)
	}
}

func TestLoopIsOpen(t *testing.T) {
	t.Parallel()
	var dues []time.Duration
	began := time.Now()
	err := Loop{Ops: 20, Rate: 100, Concurrency: 1}.Run(t.Context(), func(_ context.Context, n int, due time.Time) error {
		if n == 2 {
			<-time.After(80 * time.Millisecond)
		}
		dues = append(dues, due.Sub(began))
		return nil
	})
	if err != nil || len(dues) != 20 || !slices.IsSorted(dues) || (dues[19]-dues[0]).Round(time.Millisecond) != 190*time.Millisecond {
		t.Errorf("got %v, due after %v; want 20 operations, 10 ms apart in spite of a stall", err, dues)
	}
	calls := 0
	err = Loop{Ops: 20, Rate: 1000, Concurrency: 1, Skip: 5 * time.Millisecond}.Run(t.Context(), func(context.Context, int, time.Time) error {
		calls++
		<-time.After(time.Second / 10)
		return nil
	})
	if err != nil || calls > 5 {
		t.Errorf("skipping: got %d operations, %v; want those that are not late only", calls, err)
	}
}
