package outbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

const rebuilt = "search_index_to_elastic"

func (b *bench) rebuild() outbox.Rebuild {
	b.t.Helper()
	r, err := outbox.ReadRebuild(b.t.Context(), b.pool, rebuilt, time.Minute)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// lead gives the store's instance a term, which joins the rebuild if this build leads it.
func (b *bench) lead(epoch int64, joins bool) {
	b.t.Helper()
	b.setTerm(epoch, "a")
	b.exec("insert into weft_term (group_name, epoch, instance, acquired_at) values ('g', $1, 'a', now())", epoch)
	if !joins {
		return
	}
	if _, err := b.store.JoinRebuild(b.t.Context(), epoch); err != nil {
		b.t.Fatal(err)
	}
}

// A load that was asked for is filling from the start, before any term has joined it.
func TestLoadMissesNoTermBeforeItsFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.lead(2, true)
	if ok, err := outbox.RequestRebuild(t.Context(), b.pool, rebuilt, false, "alice", "test", time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	b.exec("update weft_rebuild set phase = 'filling', load = true")
	b.lead(3, true)
	if got := b.rebuild(); got.Phase != outbox.RebuildFilling || got.Note != "" {
		t.Errorf("after its first term: %+v, want it filling and nothing to note", got)
	}
	b.lead(4, false)
	b.lead(5, true)
	if got := b.rebuild(); got.Note == "" {
		t.Errorf("after a term that did not join: %+v, want it begun again", got)
	}
}

// A term that has not joined, as of an older build, has written to the old index alone: the fill
// begins again. Terms that have joined, and terms before the rebuild, change nothing.
func TestRebuildBeginsAgainAfterATermThatDidNotJoin(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.lead(2, true)
	if ok, err := outbox.RequestRebuild(t.Context(), b.pool, rebuilt, false, "alice", "test", time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if ok, err := outbox.RequestRebuild(t.Context(), b.pool, rebuilt, false, "alice", "test", time.Minute); err != nil || ok {
		t.Fatalf("a second request: %v, %v", ok, err)
	}
	b.lead(3, false)
	b.lead(4, true) // the rebuild has not begun: it does not matter who led
	row := b.rebuild()
	row.Phase, row.NewIndex, row.EntityType, row.EntityID, row.Filled = outbox.RebuildFilling, "i-v2", "block", "7", 1000
	if err := b.store.RecordRebuild(t.Context(), 4, row, false); err != nil {
		t.Fatal(err)
	}
	b.lead(5, true)
	b.lead(6, true)
	if got := b.rebuild(); got.EntityID != "7" || got.Filled != 1000 || got.Phase != outbox.RebuildFilling {
		t.Errorf("after terms that joined: %+v", got)
	}
	row.Phase = outbox.RebuildSwapping
	if err := b.store.RecordRebuild(t.Context(), 6, row, false); err != nil {
		t.Fatal(err)
	}
	b.lead(7, false)
	b.lead(8, true)
	if got := b.rebuild(); got.EntityID != "" || got.Filled != 0 || got.Phase != outbox.RebuildFilling || got.NewIndex != "i-v2" || got.Note == "" {
		t.Errorf("after a term that did not join: %+v", got)
	}
	b.lead(9, true)
	row.EntityID = "8"
	if err := b.store.RecordRebuild(t.Context(), 8, row, false); !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("record of an old term: %v, want ErrFenced", err)
	}
	if err := b.store.RecordRebuild(t.Context(), 9, row, false); err != nil || b.rebuild().EntityID != "8" {
		t.Errorf("record of the term: %v, %+v", err, b.rebuild())
	}
}

// Each request is taken in the phases that know it.
func TestRebuildRequestsByPhase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tt := range []struct {
		phase outbox.RebuildPhase
		old   string
		takes []outbox.RebuildAsk
	}{
		{outbox.RebuildRequested, "", []outbox.RebuildAsk{outbox.RebuildPause, outbox.RebuildResume, outbox.RebuildAbort}},
		{outbox.RebuildFilling, "i-v1", []outbox.RebuildAsk{outbox.RebuildPause, outbox.RebuildResume, outbox.RebuildAbort}},
		{outbox.RebuildSwapping, "i-v1", []outbox.RebuildAsk{outbox.RebuildPause, outbox.RebuildResume, outbox.RebuildAbort}},
		{outbox.RebuildDone, "i-v1", []outbox.RebuildAsk{outbox.RebuildDropOld}},
		{outbox.RebuildDone, "", nil},
		{outbox.RebuildAborted, "", nil},
	} {
		b.exec("delete from weft_rebuild")
		if ok, err := outbox.RequestRebuild(t.Context(), b.pool, rebuilt, false, "alice", "test", time.Minute); err != nil || !ok {
			t.Fatal(ok, err)
		}
		for _, ask := range []outbox.RebuildAsk{outbox.RebuildPause, outbox.RebuildResume, outbox.RebuildAbort, outbox.RebuildDropOld} {
			row := outbox.Rebuild{Phase: tt.phase, OldIndex: tt.old, Began: b.rebuild().Began}
			if err := b.store.RecordRebuild(t.Context(), 1, row, true); err != nil {
				t.Fatal(err)
			}
			ok, err := outbox.AskRebuild(t.Context(), b.pool, rebuilt, ask, "alice", "test", time.Minute)
			if want := slices.Contains(tt.takes, ask); err != nil || ok != want {
				t.Errorf("%s while %s: %v, %v, want %v", ask, tt.phase, ok, err, want)
			}
		}
		again, err := outbox.RequestRebuild(t.Context(), b.pool, rebuilt, false, "alice", "test", time.Minute)
		if want := tt.phase.Ended() && tt.old == ""; err != nil || again != want {
			t.Errorf("a request while %s with old index %q: %v, %v, want %v", tt.phase, tt.old, again, err, want)
		}
	}
}

// While a leader drops the old index of a rebuild, which may take long, somebody asks for a load.
// It is not recorded as done.
func TestRecordOfARebuildChangesNoLaterOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.lead(2, true)
	if ok, err := outbox.RequestRebuild(t.Context(), b.pool, rebuilt, false, "alice", "test", time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	row := b.rebuild()
	row.Phase, row.OldIndex = outbox.RebuildDone, "i-v1"
	if err := b.store.RecordRebuild(t.Context(), 2, row, true); err != nil {
		t.Fatal(err)
	}
	b.exec("update weft_rebuild set phase = 'filling', load = true, asked = '', began_at = clock_timestamp()") // as a request for a load does
	row.OldIndex = ""
	if err := b.store.RecordRebuild(t.Context(), 2, row, true); !errors.Is(err, outbox.ErrOtherRebuild) {
		t.Errorf("recorded: %v, want that it is another one", err)
	}
	if got := b.rebuild(); !got.Load || got.Phase != outbox.RebuildFilling || got.OldIndex != "i-v1" {
		t.Errorf("the load is %+v, want it filling", got)
	}
}

// An entity that is to be written at a newer version than was just written stays.
func TestRedoKeepsNewerVersions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	redo := b.store.Redo(1)
	entity := func(version int64, op outbox.Op, key outbox.Key) (e outbox.RedoEntity) {
		e.Key, e.Version, e.Op, e.Detail = key, version, op, "refused"
		return e
	}
	one, two := b.enqueue(1), b.enqueue(1)
	first := []outbox.RedoEntity{entity(5, outbox.Upsert, one), entity(6, outbox.Delete, two)}
	if err := redo.Add(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := redo.Add(t.Context(), []outbox.RedoEntity{entity(9, outbox.Delete, one)}); err != nil {
		t.Fatal(err)
	}
	if err := redo.Add(t.Context(), []outbox.RedoEntity{entity(3, outbox.Upsert, two)}); err != nil {
		t.Fatal(err)
	}
	if err := redo.Done(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	left, err := redo.Take(t.Context(), outbox.RedoEntity{}, 10)
	if err != nil || len(left) != 1 || left[0].Key != one || left[0].Version != 9 || left[0].Op != outbox.Delete || left[0].Detail != "refused" {
		t.Errorf("got %+v, %v, want the newer delete of the first", left, err)
	}
	if rest, err := redo.Take(t.Context(), left[0], 10); err != nil || len(rest) != 0 {
		t.Errorf("after the last: %+v, %v", rest, err)
	}
	if err := redo.Clear(t.Context()); err != nil || b.rebuild().Redo != 0 {
		t.Error(err)
	}
}

// Keys that no command takes are written again as all others: an empty one, and a very long one.
func TestRedoOfOddKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("create table other_events (like search_outbox_events including all)")
	b.exec("alter table other_events alter entity_id type text using null")
	store, err := outbox.OpenStore(t.Context(), b.pool, outbox.StoreConfig{Table: "other_events", Projection: "p", Group: "g", Owner: "a", Lease: leaseTime})
	if err != nil {
		t.Fatal(err)
	}
	mender, err := outbox.OpenMender(t.Context(), b.pool, "other_events", "p", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var in []outbox.RedoEntity
	for _, text := range []string{"", strings.Repeat("x", 5000)} {
		key, err := mender.Entity("thing", text)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, outbox.RedoEntity{Event: outbox.Event{Row: outbox.Row{Key: key, Version: 1}, Op: outbox.Upsert}})
	}
	redo := store.Redo(1)
	if err := redo.Add(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if left, err := redo.Take(t.Context(), outbox.RedoEntity{}, 10); err != nil || len(left) != 2 || left[0].Key != in[0].Key || left[1].Key != in[1].Key {
		t.Errorf("got %d entities, %v, want both", len(left), err)
	}
	if err := redo.Done(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if left, err := redo.Take(t.Context(), outbox.RedoEntity{}, 10); err != nil || len(left) != 0 {
		t.Errorf("got %d entities, %v, want none", len(left), err)
	}
}

// As many entities as a source has rows are counted up to a limit, and forgotten in statements of some thousands: one for all of them
// ran into its timeout, and no rebuild could begin again.
func TestRedoOfManyEntities(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`create function bounded() returns trigger language plpgsql as $$ begin
		if (select count(*) from gone) > 5000 then raise exception 'a statement forgets % entities', (select count(*) from gone); end if;
		return null;
	end $$`)
	b.exec("create trigger bounded after delete on weft_redo referencing old table as gone for each statement execute function bounded()")
	b.exec("insert into weft_redo (projection, entity_type, entity_id, op, version) select p, 'block', gen_random_uuid(), 'upsert', 1 from unnest(array[$1, 'other']) p, generate_series(1, 10100)", rebuilt)
	if ok, err := outbox.RequestRebuild(t.Context(), b.pool, rebuilt, false, "alice", "test", time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if got := b.rebuild().Redo; got != outbox.MostRedo {
		t.Errorf("counted %d, want %d", got, outbox.MostRedo)
	}
	if err := b.store.Redo(1).Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	var own, others int
	if err := b.pool.QueryRow(t.Context(), "select count(*) filter (where projection = $1), count(*) filter (where projection = 'other') from weft_redo", rebuilt).Scan(&own, &others); err != nil || own != 0 || others != 10100 {
		t.Errorf("got %d left, and %d of another projection, %v", own, others, err)
	}
}

// A leader that was frozen and thaws under a newer epoch neither keeps nor forgets anything.
func TestRedoIsFenced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.store.Redo(1)
	var kept outbox.RedoEntity
	kept.Key, kept.Version, kept.Op, kept.Detail = b.enqueue(1), 5, outbox.Upsert, "refused"
	in := []outbox.RedoEntity{kept}
	if err := old.Add(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	b.setTerm(2, "b")
	newer := kept
	newer.Version, newer.Detail = 6, "of an old term"
	for what, err := range map[string]error{
		"add": old.Add(t.Context(), []outbox.RedoEntity{newer}), "done": old.Done(t.Context(), in), "clear": old.Clear(t.Context()),
	} {
		if !errors.Is(err, outbox.ErrFenced) {
			t.Errorf("%s under an old term: %v, want ErrFenced", what, err)
		}
	}
	left, err := old.Take(t.Context(), outbox.RedoEntity{}, 10)
	if err != nil || len(left) != 1 || left[0].Version != 5 || left[0].Detail != "refused" {
		t.Errorf("got %+v, %v, want the entity as it was kept", left, err)
	}
	b.store = b.newStore(b.pool, "b", outbox.Keep)
	if err := b.store.Redo(2).Clear(t.Context()); err != nil || b.rebuild().Redo != 0 {
		t.Errorf("clear under the term: %v, %d left", err, b.rebuild().Redo)
	}
}

// What is read of a rebuild is read on the schema of the build before, too.
func TestRebuildIsReadOnTheSchemaBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if ok, err := outbox.RequestRebuild(t.Context(), b.pool, rebuilt, false, "alice", "test", time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	b.exec("update weft_rebuild set phase = 'failed', failure = 'refused'")
	if got := b.rebuild(); got.Failure != outbox.RebuildRefused {
		t.Errorf("got %+v, want the kind of its failure", got)
	}
	b.exec("alter table weft_rebuild drop column failure")
	if got := b.rebuild(); got.Phase != outbox.RebuildFailed || got.Failure != "" {
		t.Errorf("without the column: got %+v, want it without a kind", got)
	}
}
