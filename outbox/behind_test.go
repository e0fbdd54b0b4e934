package outbox_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// TestPutOff: rows behind one that waits leave the lists, and come back by themselves when
// nothing earlier is open.
func TestPutOff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := b.enqueue(1, 2, 3, 4)
	other := b.enqueue(5)
	b.exec("update search_outbox_events set next_retry_at = 'infinity' where event_version = 1")
	put := func(limit, want int) {
		t.Helper()
		n, err := b.store.PutOff(t.Context(), 1, key, outbox.Position{Version: 1}, limit)
		if err != nil || n != want {
			t.Errorf("put off %d, %v, want %d", n, err, want)
		}
	}
	put(2, 2)
	if got := versions(b.list().Ready); !slices.Equal(got, []int64{4, 5}) {
		t.Errorf("listed %v, want 4 and the other entity's 5", got)
	}
	put(9, 1)
	put(9, 0)
	l := b.list()
	if len(l.Ready) != 1 || l.Ready[0].Key != other || len(l.Due) != 0 {
		t.Errorf("listed %v and %v, want the other entity alone", l.Ready, l.Due)
	}
	own := func() []outbox.Row {
		t.Helper()
		l, err := b.store.List(t.Context(), outbox.ListRequest{Ready: 9, Entity: &key})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Concat(l.Due, l.Ready)
	}
	rows := own()
	if got := versions(rows); !slices.Equal(got, []int64{2, 3, 4}) {
		t.Fatalf("the entity's own rows %v, want 2 to 4", got)
	}
	x := b.lease(1, groups(rows...)...)
	if o := x.Obstacles[0]; x.Count() != 0 || o == nil || o.Version != 1 || o.Wait != 24*time.Hour {
		t.Errorf("leased %d with version 1 parked, obstacle %+v", x.Count(), o)
	}
	named := func(wantFree, wantWaiting []outbox.Key) {
		t.Helper()
		free, waiting, _, err := b.store.PutOffEntities(t.Context(), 9, outbox.ID{})
		if err != nil || !slices.Equal(free, wantFree) || !slices.Equal(waiting, wantWaiting) {
			t.Errorf("entities put off: free %v, waiting %v, %v, want %v and %v", free, waiting, err, wantFree, wantWaiting)
		}
	}
	named(nil, []outbox.Key{key})
	b.exec("update search_outbox_events set next_retry_at = now() where event_version = 1")
	named([]outbox.Key{key}, nil)
	b.exec("update search_outbox_events set status = 'processing' where event_version = 1")
	named(nil, []outbox.Key{key})
	b.exec("update search_outbox_events set status = 'failed' where event_version = 1")
	named([]outbox.Key{key}, nil)
	b.store = b.strictStore(b.pool)
	named(nil, []outbox.Key{key})
	b.exec("update search_outbox_events set discarded_at = now() where event_version = 1")
	named([]outbox.Key{key}, nil)
	b.exec("update search_outbox_events set status = 'done' where event_version = 1")
	x = b.lease(1, groups(own()...)...)
	if x.Count() != 3 {
		t.Errorf("leased %d, want all three once version 1 is done, whatever their retry time", x.Count())
	}
	b.settle(x, x.all(outbox.Done)...)
	if got := b.count("behind is not null or status <> 'done'"); got != 1 {
		t.Errorf("%d rows are put off or open, want the other entity's", got)
	}
}

// TestPutOffEventsOfOneVersion: those with a higher id than the one in the way have to wait, too, and
// leave the lists with the later ones; those with a lower id stay. Without an id nothing of that version does.
func TestPutOffEventsOfOneVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}
	ids := make([]outbox.ID, 5)
	for i := range ids {
		ids[i] = outbox.UUID(uuid.UUID{15: byte(i + 1)})
		if err := outbox.Enqueue(t.Context(), b.pool, table, outbox.NewEvent{ID: ids[i], Key: key, Op: outbox.Upsert, Version: 7}); err != nil {
			t.Fatal(err)
		}
	}
	b.enqueueFor(key, 6, 8)
	put := func(behind outbox.Position, limit, want int) {
		t.Helper()
		if n, err := b.store.PutOff(t.Context(), 1, key, behind, limit); err != nil || n != want {
			t.Errorf("put off %d, %v, want %d", n, err, want)
		}
	}
	put(outbox.Position{Version: 7}, 1, 1)
	put(outbox.Position{Version: 7, ID: ids[1]}, 2, 2)
	put(outbox.Position{Version: 7, ID: ids[1]}, 9, 1)
	put(outbox.Position{Version: 7, ID: ids[1]}, 9, 0)
	l := b.list()
	left := []outbox.ID{}
	for _, r := range l.Ready[1:] {
		left = append(left, r.ID)
	}
	if l.Ready[0].Version != 6 || !slices.Equal(left, ids[:2]) || b.count("behind = 7") != 4 {
		t.Errorf("listed %v, want version 6 and the lower ids of version 7", l.Ready)
	}
}

func TestPutOffPassesOverWhatOthersHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := b.enqueue(1, 2, 3)
	defer b.hold("event_version = 2")()
	if n, err := b.store.PutOff(t.Context(), 1, key, outbox.Position{Version: 1}, 9); err != nil || n != 1 {
		t.Errorf("put off %d, %v, want the one that is free", n, err)
	}
}

func TestPutOffEntitiesInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want := map[outbox.Key]bool{}
	for range 5 {
		key := b.enqueue(1, 2, 3)
		want[key] = true
		if n, err := b.store.PutOff(t.Context(), 1, key, outbox.Position{Version: 1}, 9); err != nil || n != 2 {
			t.Fatalf("put off %d, %v", n, err)
		}
	}
	var after outbox.ID
	for more := true; more; more = !after.IsZero() {
		page, _, next, err := b.store.PutOffEntities(t.Context(), 2, after)
		if err != nil || len(page) > 2 {
			t.Fatalf("page %v, %v", page, err)
		}
		for _, k := range page {
			if !want[k] {
				t.Errorf("%s is named twice, or is not put off", k)
			}
			delete(want, k)
		}
		after = next
	}
	if len(want) > 0 {
		t.Errorf("%v are not named", want)
	}
}

// TestPutOffEntitiesOfOneID: entities of two types may have one id. No page splits them.
func TestPutOffEntitiesOfOneID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []outbox.Key
	for n := range 3 {
		id := outbox.UUID(uuid.UUID{0: byte(n + 1)})
		for _, kind := range []string{"block", "book"} {
			key := outbox.Key{Type: kind, ID: id}
			b.enqueueFor(key, 1, 2, 3)
			want = append(want, key)
			if n, err := b.store.PutOff(t.Context(), 1, key, outbox.Position{Version: 1}, 9); err != nil || n != 2 {
				t.Fatalf("put off %d, %v", n, err)
			}
		}
	}
	var after outbox.ID
	for n := range 3 {
		page, _, next, err := b.store.PutOffEntities(t.Context(), 1, after)
		slices.SortFunc(page, func(a, b outbox.Key) int { return strings.Compare(a.Type, b.Type) })
		if err != nil || !slices.Equal(page, want[2*n:2*n+2]) {
			t.Fatalf("page %d names %v, %v, want %v", n, page, err, want[2*n:2*n+2])
		}
		after = next
	}
	if page, waiting, _, err := b.store.PutOffEntities(t.Context(), 0, outbox.ID{}); err != nil || len(page)+len(waiting) > 0 {
		t.Errorf("asked for none: got %v and %v, %v", page, waiting, err)
	}
	if page, _, next, err := b.store.PutOffEntities(t.Context(), 9, after); err != nil || len(page) > 0 || !next.IsZero() {
		t.Errorf("named %v, %v, want none beyond the last id", page, err)
	}
}

// TestPutOffEntitiesBehindManyRowsOfOneID: an entity of another type has more rows put off than
// one statement reads, some of one version.
func TestPutOffEntitiesBehindManyRowsOfOneID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := outbox.UUID(uuid.New())
	b.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, next_retry_at, behind)
		select gen_random_uuid(), case n when 11000 then 'page' when 11001 then 'tag' else 'block' end, $1, 'upsert', least(n, 9000), now() + interval '1 hour',
			case n when 11001 then null else 0 end from generate_series(1, 11001) n`, &id)
	b.enqueueFor(outbox.Key{Type: "label", ID: id}, 1)
	got, _, _, err := b.store.PutOffEntities(t.Context(), 9, outbox.ID{})
	if want := []outbox.Key{{Type: "block", ID: id}, {Type: "page", ID: id}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("named %v, %v, want %v", got, err, want)
	}
}

// There is no version after the highest one, from which the next statement could go on.
func TestPutOffEntitiesAtTheHighestVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := outbox.UUID(uuid.New())
	b.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, next_retry_at, behind)
		select gen_random_uuid(), 'block', $1, 'upsert', $2, now() + interval '1 hour', 0 from generate_series(1, 10000) n`, &id, int64(math.MaxInt64))
	got, _, _, err := b.store.PutOffEntities(t.Context(), 9, outbox.ID{})
	if want := []outbox.Key{{Type: "block", ID: id}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("named %v, %v, want %v", got, err, want)
	}
}

// TestReadyRowWithALeftoverMarkIsCountedOnce: another worker has given it back, and knows nothing of put-offs.
func TestReadyRowWithALeftoverMarkIsCountedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.exec("update search_outbox_events set behind = 0")
	st, err := b.store.Stats(t.Context(), time.Minute, 0)
	if err != nil || st.Pending != 1 || st.PutOff != 0 || st.Lag() != 1 {
		t.Errorf("got %+v, %v, want one event, which is pending", st, err)
	}
	if story, _ := b.find(b.list().Ready[0].ID); story == nil || story.Place != outbox.PlaceReady {
		t.Errorf("got the story %+v, want that the event is ready", story)
	}
}

// TestWake: what an outage has put off is due at once; what waits for another reason, is
// parked, or is somebody else's keeps its time.
func TestWake(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := range int64(6) {
		b.enqueue(v)
	}
	b.exec("update search_outbox_events set next_retry_at = now() + interval '1 h', error_reason = 'es_connect'")
	b.exec("update search_outbox_events set error_reason = 'es_429' where event_version = 1")
	b.exec("update search_outbox_events set next_retry_at = 'infinity' where event_version = 2")
	b.exec("update search_outbox_events set behind = 0 where event_version = 3")
	defer b.hold("event_version = 4")()
	n, err := b.store.Wake(t.Context(), 1, []outbox.Reason{outbox.ReasonESConnect, outbox.ReasonESTimeout}, 10)
	if err != nil || n != 2 {
		t.Errorf("woke %d, %v, want 2", n, err)
	}
	if got := versions(b.list().Due); !slices.Equal(got, []int64{0, 5}) {
		t.Errorf("due are %v, want 0 and 5", got)
	}
}

// TestWakeLooksAtFewRows, however many wait for another reason, which the index does not tell.
func TestWakeLooksAtFewRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("alter table " + table + " set (autovacuum_enabled = false)")
	b.exec(`insert into ` + table + ` (id, entity_type, entity_id, op, event_version, status, next_retry_at, created_at, updated_at, attempts)
		select gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', i, 'pending', now() + interval '1 h', now(), now(), 0 from generate_series(1, 3000) i`)
	b.enqueue(0)
	b.exec("update " + table + " set next_retry_at = now() + interval '1 min', error_reason = 'es_429' where event_version = 0")
	b.exec("analyze " + table)
	cost := &explained{Pool: leaderPool(t, b.pool.Config().ConnString()), t: t}
	n, err := b.newStore(cost, "a", outbox.Keep).Wake(t.Context(), 1, []outbox.Reason{outbox.ReasonES429}, 10)
	if err != nil || n != 1 || cost.rows > 200 {
		t.Errorf("woke %d, %v, in a step of %d rows, want 1 and at most 200 rows", n, err, cost.rows)
	}
}

// TestOwnListBeginsWithTheLowestOfOneVersion: else no event of them could be leased, as an earlier one is open.
func TestOwnListBeginsWithTheLowestOfOneVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := b.enqueue(slices.Repeat([]int64{7}, 100)...)
	b.exec("update " + table + " set next_retry_at = now() + interval '1 h', behind = 6, reclaims = 3")
	l, err := b.newStore(leaderPool(t, b.pool.Config().ConnString()), "a", outbox.Keep).List(t.Context(), outbox.ListRequest{Ready: 10, Entity: &key})
	if err != nil || len(l.Due) != 10 || len(l.Suspects) != 10 {
		t.Fatalf("listed %d rows, %d of them suspects, %v, want 10", len(l.Due), len(l.Suspects), err)
	}
	if x := b.lease(1, groups(l.Due...)...); x.Count() != 10 {
		t.Errorf("leased %d events, obstacle %+v, want the 10 lowest", x.Count(), x.Obstacles[0])
	}
}

// TestOwnListReadsWhatItShows, however many events the entity has, with statistics and without.
func TestOwnListReadsWhatItShows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("alter table " + table + " set (autovacuum_enabled = false)")
	key := b.enqueue(0)
	b.exec(`insert into `+table+` (id, entity_type, entity_id, op, event_version, status, created_at, updated_at, attempts)
		select gen_random_uuid(), 'block', $1, 'upsert', i, 'pending', now(), now(), 0 from generate_series(1, 20000) i`, &key.ID)
	cost := &explained{Pool: leaderPool(t, b.pool.Config().ConnString()), t: t}
	store := b.newStore(cost, "a", outbox.Keep)
	for range 2 {
		cost.rows = 0
		l, err := store.List(t.Context(), outbox.ListRequest{Ready: 100, Entity: &key})
		if err != nil || len(l.Ready) != 100 || cost.rows > 200 {
			t.Errorf("listed %d rows, %v, in a step of %d, want 100 and a step of at most 200", len(l.Ready), err, cost.rows)
		}
		b.exec("analyze " + table)
	}
}

// TestForeignClaim: another worker's claim says that it runs.
func TestForeignClaim(t *testing.T) {
	t.Parallel()
	b := setup(t)
	look := func() (string, time.Duration) {
		t.Helper()
		owner, ago, err := b.store.ForeignClaim(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return owner, ago
	}
	b.enqueue(1)
	b.leaseAll()
	if owner, _ := look(); owner != "" {
		t.Error("the store's own lease counts as another worker's claim")
	}
	b.exec("update search_outbox_events set status = 'processing', processing_started_at = now() - interval '10 s', lease_until = now() + interval '20 s'")
	if owner, ago := look(); owner != "unknown" || ago < 10*time.Second || ago > 50*time.Second {
		t.Errorf("claimed by %q %v ago, want by unknown 10 s ago", owner, ago)
	}
	b.exec("update search_outbox_events set owner = 'py'")
	if owner, _ := look(); owner != "py" {
		t.Errorf("claimed by %q, want by py", owner)
	}
	b.exec("update search_outbox_events set processing_started_at = now() - interval '2 min'")
	if owner, _ := look(); owner != "" {
		t.Error("a claim from before counts")
	}
	b.exec("update search_outbox_events set processing_started_at = now() + interval '1 hour'")
	if owner, _ := look(); owner != "" {
		t.Error("a claim counts that was made before the clock was set back by an hour")
	}
}

// TestInfiniteTimes: an application may have written them.
func TestInfiniteTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.enqueue(2)
	b.exec("update search_outbox_events set created_at = '-infinity', next_retry_at = '-infinity' where event_version = 1")
	b.exec("update search_outbox_events set created_at = 'infinity' where event_version = 2")
	x := b.leaseAll()
	if x.Count() != 2 {
		t.Fatalf("leased %d, want both", x.Count())
	}
	b.exec("update search_outbox_events set updated_at = updated_at") // by the careful way as well
	if s := b.settle(x, x.all(outbox.Done)...); len(s.Left) != 0 || b.count("status = 'done'") != 2 {
		t.Errorf("settled %+v, want both", s)
	}
	if _, err := b.store.Stats(t.Context(), time.Minute, 0); err != nil {
		t.Error(err)
	}
}
