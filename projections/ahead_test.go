package projections

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// indexed is a bench whose Search writes into a real index and whose log is kept.
type indexed struct {
	*bench
	t      *testing.T
	search *Search
	index  string
	logs   *observer.ObservedLogs
}

func setupIndexed(t *testing.T) *indexed {
	t.Helper()
	i := &indexed{bench: setup(t), t: t, index: labtest.Index(t)}
	core, logs := observer.New(zap.WarnLevel)
	i.logs = logs
	sink, err := elastic.New(elastic.Config{URLs: []string{labtest.ElasticURL(t)}, Index: i.index}, zap.NewNop(), prometheus.NewRegistry(), SearchIndexToElastic)
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
		[16]byte(e.ID), e.Key.Type, [16]byte(e.Key.ID), string(e.Op), e.Version)
	return e
}

// upsert gives the entity a row of version and writes the event of it.
func (i *indexed) upsert(k outbox.Key, version int64) outbox.Event {
	i.t.Helper()
	i.exec(`insert into search_index (entity_type, entity_id, text, event_version) values ($1, $2, 't', $3)
		on conflict (entity_type, entity_id) do update set event_version = excluded.event_version`, k.Type, [16]byte(k.ID), version)
	return i.enqueue(event(outbox.Upsert, k, version))
}

// remove deletes the entity's row and writes the event of it.
func (i *indexed) remove(k outbox.Key, version int64) outbox.Event {
	i.t.Helper()
	i.exec("delete from search_index where entity_id = $1", [16]byte(k.ID))
	return i.enqueue(event(outbox.Delete, k, version))
}

// project wants the no-ops of events, in order.
func (i *indexed) project(events []outbox.Event, want ...outbox.Noop) {
	i.t.Helper()
	got, err := i.search.Project(leading(i.t, 1), events)
	if err != nil {
		i.t.Fatal(err)
	}
	for n, o := range got {
		if o.Verdict != outbox.Done || o.Noop != want[n] {
			i.t.Errorf("event %d (%s of version %d): got %s %q, want done %q", n, events[n].Op, events[n].Version, o.Verdict, o.Noop, want[n])
		}
	}
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
	i.exec("delete from search_outbox_events where entity_id = $1", [16]byte(pruned.ID))
	i.exec("delete from search_outbox_events where entity_id = $1 and op = 'delete'", [16]byte(replayed.ID))
	// An application that leaves the version of the row to the events.
	i.project([]outbox.Event{i.upsert(unversioned, 30)}, written)
	i.exec("update search_index set event_version = 0 where entity_id = $1", [16]byte(unversioned.ID))

	i.project([]outbox.Event{
		i.enqueue(event(outbox.Upsert, gone, 20)), event(outbox.Upsert, pruned, 20),
		i.enqueue(event(outbox.Delete, replayed, 20)), i.enqueue(event(outbox.Upsert, unversioned, 20)),
	}, applied, applied, applied, applied)
	i.wantCounts(0, 0)
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

	i.exec("alter table search_outbox_events rename to hidden")
	i.project(low[:2], applied, applied)
	i.wantCounts(9, 3)
	last := i.logs.All()[i.logs.Len()-1]
	if cause, _ := last.ContextMap()["error"].(string); last.ContextMap()["event"] != "version.unexamined" || !strings.Contains(cause, "known versions: ") {
		t.Errorf("log: got %v, want why nothing could be compared", last)
	}
}

func TestConflictWithoutAVersionIsNotExamined(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.search(&sink{answer: func([]elastic.Action) ([]outbox.Outcome, error) {
		return []outbox.Outcome{outbox.NoOp(outbox.NoopAlreadyApplied)}, nil
	}})
	got, err := s.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, outbox.Key{Type: "block", ID: uuid.New()}, 1)})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.NoOp(applied)})
	if n := testutil.ToFloat64(s.ahead.skipped); n != 1 {
		t.Errorf("weft_version_conflicts_unexamined_total: got %v, want 1", n)
	}
}
