package projections

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// indexed is a bench whose Search writes into a real index and whose log is kept.
type indexed struct {
	*bench
	t      *testing.T
	search *Index
	index  string
	logs   *observer.ObservedLogs
}

func setupIndexed(t *testing.T) *indexed {
	t.Helper()
	i := &indexed{bench: setup(t), t: t, index: testenv.Index(t)}
	core, logs := observer.New(zap.WarnLevel)
	i.logs = logs
	cfg := elasticsearch(t)
	cfg.Index = i.index
	sink, err := elastic.New(cfg, zap.NewNop(), prometheus.NewRegistry(), SearchIndexToElastic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	if i.search, err = NewSearch(i.pool, sink, zap.New(core), prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	if err := i.search.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return i
}

// enqueue writes the event as an application does, without its row.
func (i *indexed) enqueue(e outbox.Event) outbox.Event {
	i.t.Helper()
	i.exec("insert into search_outbox_events (id, entity_type, entity_id, op, event_version) values ($1, $2, $3, $4, $5)",
		&e.ID, e.Key.Type, &e.Key.ID, string(e.Op), e.Version)
	return e
}

// upsert gives the entity a row of version and writes the event of it.
func (i *indexed) upsert(k outbox.Key, version int64) outbox.Event {
	i.t.Helper()
	i.exec(`insert into search_index (entity_type, entity_id, text, event_version) values ($1, $2, 't', $3)
		on conflict (entity_type, entity_id) do update set event_version = excluded.event_version`, k.Type, &k.ID, version)
	return i.enqueue(event(outbox.Upsert, k, version))
}

// remove deletes the entity's row and writes the event of it.
func (i *indexed) remove(k outbox.Key, version int64) outbox.Event {
	i.t.Helper()
	i.exec("delete from search_index where entity_id = $1", &k.ID)
	return i.enqueue(event(outbox.Delete, k, version))
}

// project wants the no-ops of events, in order.
func (i *indexed) project(events []outbox.Event, want ...outbox.Noop) {
	i.t.Helper()
	got, err := i.search.Project(leading(i.t, 1), events)
	i.search.ahead.pause(0) // on a slow machine a look takes long
	if err != nil {
		i.t.Fatal(err)
	}
	for n, o := range got {
		if o.Verdict != outbox.Done || o.Noop != want[n] {
			i.t.Errorf("event %d (%s of version %d): got %s %q (%s), want done %q", n, events[n].Op, events[n].Version, o.Verdict, o.Noop, o.Detail, want[n])
		}
	}
}

// A document that was written from a row that has gone since is no alarm while the event of
// the delete is open, and one when there is none.
func TestVersionAheadWaitsForTheDelete(t *testing.T) {
	t.Parallel()
	i := setupIndexed(t)
	k := key()
	early := i.upsert(k, 5)
	i.project([]outbox.Event{i.upsert(k, 7)}, "")
	i.remove(k, 8)
	i.project([]outbox.Event{early}, outbox.NoopAlreadyApplied)
	i.wantCounts(0, 0)
	i.exec("update search_outbox_events set status = 'done' where event_version > 5")
	i.project([]outbox.Event{early}, outbox.NoopVersionAhead)
	i.wantCounts(1, 0)
}

func (i *indexed) wantCounts(ahead, skipped float64) {
	i.t.Helper()
	if got := testutil.ToFloat64(i.search.ahead.total); got != ahead {
		i.t.Errorf("weft_version_ahead_total: got %v, want %v", got, ahead)
	}
	if got := testutil.ToFloat64(i.search.ahead.skipped); got != skipped {
		i.t.Errorf("weft_version_conflicts_unexamined_total: got %v, want %v", got, skipped)
	}
}

const (
	written = outbox.NoopNone
	applied = outbox.NoopAlreadyApplied
	tooNew  = outbox.NoopVersionAhead
)

func TestRestoredDatabaseRaisesTheAlarm(t *testing.T) {
	t.Parallel()
	i := setupIndexed(t)
	edited, removed, came, quiet := key(), key(), key(), key()
	for _, k := range []outbox.Key{edited, removed, came, quiet} {
		i.project([]outbox.Event{i.upsert(k, 10)}, written)
	}
	i.exec("create table saved_index as select * from search_index")
	i.exec("create table saved_events as select * from search_outbox_events")
	i.project([]outbox.Event{i.upsert(edited, 30), i.upsert(removed, 30), i.remove(came, 30)}, written, written, written)

	i.exec("truncate search_index, search_outbox_events")
	i.exec("insert into search_index select * from saved_index")
	i.exec("insert into search_outbox_events select * from saved_events")
	// Life goes on with versions that the destination has passed: an edit, a delete, an
	// edit of what the destination has deleted; and one of an entity that had not gone on.
	edit := i.upsert(edited, 20)
	i.project([]outbox.Event{edit, i.remove(removed, 20), i.upsert(came, 20), i.upsert(quiet, 20)}, tooNew, tooNew, tooNew, written)

	i.wantCounts(3, 0)
	lines := i.logs.FilterField(zap.String("event", "version.ahead_of_source")).All()
	if len(lines) != 3 || lines[0].Level != zap.ErrorLevel {
		t.Fatalf("log: got %v, want three errors", lines)
	}
	fields := lines[0].ContextMap()
	for name, want := range map[string]any{
		"event_id": edit.ID.String(), "entity_type": edited.Type, "entity_id": edited.ID.String(),
		"op": "upsert", "event_version": int64(20), "source_version": int64(20), "document_version": int64(30),
	} {
		if fields[name] != want {
			t.Errorf("log field %s: got %v, want %v", name, fields[name], want)
		}
	}
	i.project([]outbox.Event{i.upsert(edited, 31), i.remove(removed, 31), i.upsert(came, 31)}, written, written, written)
	i.wantCounts(3, 0)
}

func TestOrdinaryConflictsRaiseNoAlarm(t *testing.T) {
	t.Parallel()
	i := setupIndexed(t)
	gone, pruned, replayed, unversioned := key(), key(), key(), key()
	for _, k := range []outbox.Key{gone, pruned, replayed} {
		i.project([]outbox.Event{i.upsert(k, 10)}, written)
		i.project([]outbox.Event{i.remove(k, 30)}, written)
	}
	i.exec("delete from search_outbox_events where entity_id = $1", &pruned.ID)
	i.exec("delete from search_outbox_events where entity_id = $1 and op = 'delete'", &replayed.ID)
	// An application that leaves the version of the row to the events.
	i.project([]outbox.Event{i.upsert(unversioned, 30)}, written)
	i.exec("update search_index set event_version = 0 where entity_id = $1", &unversioned.ID)

	i.project([]outbox.Event{
		i.enqueue(event(outbox.Upsert, gone, 20)), event(outbox.Upsert, pruned, 20),
		i.enqueue(event(outbox.Delete, replayed, 20)), i.enqueue(event(outbox.Upsert, unversioned, 20)),
	}, applied, applied, applied, applied)
	i.wantCounts(0, 1) // without a version of the row nothing can be compared
	if n := i.logs.Len(); n != 0 {
		t.Errorf("log: got %v, want nothing", i.logs.All())
	}
}

func TestAlarmNamesAFewAndCountsTheRest(t *testing.T) {
	t.Parallel()
	i := setupIndexed(t)
	var high, low []outbox.Event
	var highs, lows []outbox.Noop
	for range 8 {
		k := key()
		high, highs = append(high, i.upsert(k, 30)), append(highs, written)
		low, lows = append(low, event(outbox.Upsert, k, 20)), append(lows, tooNew)
	}
	i.project(high, highs...)
	i.exec("delete from search_outbox_events")
	i.exec("update search_index set event_version = 10")
	i.project(low, lows...)
	i.wantCounts(8, 0)
	lines := i.logs.FilterField(zap.String("event", "version.ahead_of_source")).All()
	if len(lines) != 6 || lines[5].ContextMap()["entities"] != int64(3) {
		t.Errorf("log: got %v, want five entities and that there are three more", lines)
	}

	// A look that took long is followed by a pause, in which nothing is known.
	i.search.ahead.pause(time.Hour)
	i.project(low[:1], applied)
	i.wantCounts(8, 1)
	i.search.ahead.pause(0)
	i.project(low[:1], tooNew)

	i.exec("alter table search_index rename column event_version to hidden")
	i.search.ahead.examine(leading(t, 1), []conflict{
		{event: &low[0], action: &elastic.Action{Held: 30}, out: &outbox.Outcome{}}, {event: &low[1], action: &elastic.Action{Held: 30}, out: &outbox.Outcome{}},
	})
	i.wantCounts(9, 3)
	last := i.logs.All()[i.logs.Len()-1]
	if cause, _ := last.ContextMap()["error"].(string); last.ContextMap()["event"] != "version.unexamined" || !strings.Contains(cause, "source versions: ") {
		t.Errorf("log: got %v, want why nothing could be compared", last)
	}
}

// The application gives out version 5, then 6, and commits 6 first.
func TestVersionsCommittedInAnotherOrderRaiseTheAlarm(t *testing.T) {
	t.Parallel()
	i := setupIndexed(t)
	edited, removed := key(), key()
	i.project([]outbox.Event{i.upsert(edited, 6), i.upsert(removed, 6)}, written, written)
	late := []outbox.Event{i.upsert(edited, 5), i.remove(removed, 5)}
	i.exec("update search_outbox_events set status = 'done' where event_version = 6") // what it knew of version 6 is over
	i.project(late, tooNew, tooNew)
	i.wantCounts(2, 0)
	lines := i.logs.FilterField(zap.String("event", "version.ahead_of_source")).All()
	if len(lines) != 2 || lines[0].ContextMap()["source_version"] != int64(5) || lines[0].ContextMap()["document_version"] != int64(6) ||
		lines[1].ContextMap()["source_version"] != int64(0) {
		t.Errorf("log: got %v, want row 5 and document 6, then no row", lines)
	}
	i.project([]outbox.Event{i.upsert(edited, 7), i.remove(removed, 7)}, written, written)
	i.wantCounts(2, 0)
}

func TestRowThatHasCaughtUpWithItsDocumentRaisesNoAlarm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := key()
	put := func(version int64) {
		b.exec(`insert into search_index (entity_type, entity_id, text, event_version) values ($1, $2, 't', $3)
			on conflict (entity_type, entity_id) do update set event_version = excluded.event_version`, k.Type, &k.ID, version)
	}
	put(5)
	s := b.search(&sink{answer: func(actions []elastic.Action) ([]outbox.Outcome, error) {
		put(6) // and another leader's last request has brought it here
		actions[0].Held = 6
		return []outbox.Outcome{outbox.NoOp(outbox.NoopAlreadyApplied)}, nil
	}})
	got, err := s.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, k, 5)})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.NoOp(applied)})
	if n := testutil.ToFloat64(s.ahead.total); n != 0 {
		t.Errorf("weft_version_ahead_total: got %v, want 0", n)
	}
}

func TestAlarmIsAuditedOnceAnHourOfATerm(t *testing.T) {
	t.Parallel()
	i := setupIndexed(t)
	var low []outbox.Event
	for range 7 {
		k := key()
		i.project([]outbox.Event{i.upsert(k, 30)}, written)
		low = append(low, i.upsert(k, 20))
	}
	want := func(entries, count int64) {
		t.Helper()
		if got := one[int64](i.bench, "select count(*) from weft_audit where action = $1", ActionVersionAhead); got != entries {
			t.Errorf("entries: got %d, want %d", got, entries)
		}
		if got := one[int64](i.bench, "select count from weft_audit order by id desc limit 1"); got != count {
			t.Errorf("count of the newest: got %d, want %d", got, count)
		}
	}
	i.project(low[:6], tooNew, tooNew, tooNew, tooNew, tooNew, tooNew)
	want(1, 6)
	i.project(low[6:], tooNew)
	want(1, 7)
	entries, err := outbox.ReadAudit(t.Context(), i.pool, outbox.AuditFilter{Action: ActionVersionAhead, Limit: 1}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var d AheadDetail
	e := entries[0]
	if err := json.Unmarshal(e.Detail, &d); err != nil || len(d.Entities) != aheadNamed || d.Entities[0] != low[0].Key.String() || !d.LastAt.After(e.At) {
		t.Errorf("detail: got %s, %v, want the first five entities, and a last time after %v", e.Detail, err, e.At)
	}
	if e.Actor != "a" || e.Projection != SearchIndexToElastic || *e.ByEpoch != 1 || e.Why == "" {
		t.Errorf("entry: got %+v, want instance, projection and epoch", e)
	}

	i.search.ahead.begun = time.Now().Add(-2 * aheadEntry)
	i.project(low[6:], tooNew)
	want(2, 1)
	i.exec("delete from weft_audit")
	i.project(low[6:], tooNew)
	want(1, 1)
	i.exec("update weft_leader set epoch = 2, instance = 'b'")
	i.project(low[6:], tooNew)
	want(1, 1) // a leader of the past writes nothing
	i.exec("update weft_leader set epoch = 3, instance = 'a'")
	if _, err := i.search.Project(leading(t, 3), low[6:]); err != nil {
		t.Fatal(err)
	}
	i.search.ahead.pause(0)
	want(2, 1)

	i.exec("alter table weft_audit rename to hidden")
	if _, err := i.search.Project(leading(t, 3), low[6:]); err != nil {
		t.Fatal(err)
	}
	if n := i.logs.FilterField(zap.String("event", "version.unrecorded")).Len(); n != 1 {
		t.Errorf("log: got %d lines about what is missing from the audit, want 1", n)
	}
}

func TestConflictWithoutAVersionIsNotExamined(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.search(&sink{answer: func([]elastic.Action) ([]outbox.Outcome, error) {
		return []outbox.Outcome{outbox.NoOp(outbox.NoopAlreadyApplied)}, nil
	}})
	got, err := s.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, key(), 1)})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.NoOp(applied)})
	if n := testutil.ToFloat64(s.ahead.skipped); n != 1 {
		t.Errorf("weft_version_conflicts_unexamined_total: got %v, want 1", n)
	}
}
