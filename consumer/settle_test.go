package consumer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestPipelineRowLockedByAStranger(t *testing.T) {
	t.Parallel()
	r := setup(t)
	locked, free := newKey(), newKey()
	r.enqueue(locked, 1, 2)
	r.enqueue(free, 3)
	release := r.hold(1)
	r.start()
	labtest.Eventually(t, 10*time.Second, func() bool { return len(r.proj.versions(free)) == 1 }, "the free entity")
	labtest.Eventually(t, 10*time.Second, func() bool {
		var n int
		err := r.pool.QueryRow(context.Background(), "select count(*) from search_outbox_events where event_version = 2 and next_retry_at is not null").Scan(&n)
		return err == nil && n == 1
	}, "version 2 to wait behind the locked version 1")
	if got := r.proj.versions(locked); len(got) != 0 {
		t.Errorf("projected %v past a locked row", got)
	}
	release()
	r.await(map[string]int{"done": 3})
}

// Whoever holds an entity's older event while it is settled keeps the newer one from
// being done before it, and keeps nobody else waiting.
func TestPipelineARowLockedDuringASettle(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	r.notePassed()
	locked := newKey()
	r.enqueue(locked, 1)
	for i := range 6 {
		r.enqueue(newKey(), int64(10+i))
	}
	r.enqueue(locked, 2)
	for i := range 6 {
		r.enqueue(newKey(), int64(20+i))
	}
	r.start()
	<-r.proj.entering
	release := r.hold(1)
	close(r.proj.leave)
	r.await(map[string]int{"done": 12, "processing": 2})
	release()
	r.await(map[string]int{"done": 14})
	if n := r.count("passed"); n != 0 {
		t.Errorf("%d unsettled events were passed", n)
	}
}

// givesBack calls back when it has settled an event of a version as given back.
type givesBack struct {
	dear
	version int64
	back    func()
}

func (g *givesBack) Settle(ctx context.Context, epoch int64, in []outbox.Settlement) (outbox.Settled, error) {
	s, err := g.dear.Settle(ctx, epoch, in)
	if err == nil && slices.ContainsFunc(in, func(st outbox.Settlement) bool {
		return st.Verdict == outbox.GivenBack && st.Event.Version == g.version
	}) {
		g.back()
	}
	return s, err
}

// behindOlder has version 2 of an entity in flight, with 1 to settle with it without a
// claim, and 3 claimed behind it.
func (r *rig) behindOlder(store Store) outbox.Key {
	r.t.Helper()
	r.pipe.store = store
	r.proj.entering, r.proj.leave = make(chan struct{}, 1000), make(chan struct{})
	key := newKey()
	r.enqueue(newKey(), 0) // taken from the head
	r.enqueue(key, 1, 2)
	r.start()
	<-r.proj.entering
	<-r.proj.entering
	r.enqueue(key, 3)
	labtest.Eventually(r.t, 10*time.Second, func() bool {
		return r.count("search_outbox_events where status = 'processing' and event_version in (2, 3)") == 2 &&
			r.count("search_outbox_events where status = 'pending' and event_version = 1") == 1
	}, "versions 2 and 3 to be claimed without 1")
	return key
}

// An event that a settle has given back is not passed by what was claimed behind it.
func TestPipelineWhatIsBehindAnEventGivenBack(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.BatchSize = 1 })
	r.notePassed()
	store := &givesBack{dear: dear{Store: r.store}, version: 2}
	r.behindOlder(store)
	store.back = r.hold(1) // until 2 is given back
	close(r.proj.leave)
	r.await(map[string]int{"done": 4})
	if n := r.count("passed"); n != 0 {
		t.Errorf("%d unsettled events were passed", n)
	}
}

// A claimed row that somebody else has locked when an outage comes stops its entity,
// nobody else and no heartbeat.
func TestPipelineARowLockedInAnOutage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.proj.entering, r.proj.leave = make(chan struct{}, 1000), make(chan struct{})
	down := true
	r.proj.fault = func([]outbox.Event) error {
		if down {
			return &outbox.Fault{Reason: outbox.ReasonESConnect, Shared: true, Err: errors.New("away")}
		}
		return nil
	}
	r.proj.ready = func() error { down = false; return nil }
	locked, free := newKey(), newKey()
	r.enqueue(locked, 1)
	r.start()
	<-r.proj.entering
	r.enqueue(locked, 2)
	labtest.Eventually(t, 10*time.Second, func() bool {
		return r.count("search_outbox_events where status = 'processing' and event_version = 2") == 1
	}, "version 2 to be claimed behind 1")
	defer r.hold(2)()
	r.enqueue(locked, 3)
	r.enqueue(free, 4)
	close(r.proj.leave)
	labtest.Eventually(t, 8*time.Second, func() bool { return len(r.proj.versions(free)) == 1 }, "the free entity")
	labtest.Eventually(t, 8*time.Second, func() bool {
		return r.count("search_outbox_events where status = 'pending' and next_retry_at is not null and event_version = 3") == 1
	}, "version 3 to wait behind the locked version 2")
	if got := r.proj.versions(locked); slices.Contains(got, 3) {
		t.Errorf("projected %v past a locked row", got)
	}
}

// An event that the database refuses to settle is not passed until its lease is over.
func TestPipelineARefusedRowIsNotPassed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := newKey()
	r.exec(`create function refuse() returns trigger language plpgsql as $$
		begin if new.status = 'done' and new.event_version = 1 then raise exception 'not this one' using errcode = '23514'; end if; return new; end $$`)
	r.exec("create trigger refuse before update on search_outbox_events for each row execute function refuse()")
	r.enqueue(key, 1)
	r.enqueue(newKey(), 2)
	r.start()
	r.await(map[string]int{"done": 1, "processing": 1})
	labtest.Eventually(t, 10*time.Second, func() bool { return r.metric("mismatch") == 1 }, "the refusal")
	r.enqueue(key, 3)
	labtest.Eventually(t, 10*time.Second, func() bool {
		return r.count("search_outbox_events where event_version = 3 and next_retry_at > now() + interval '5 s'") == 1
	}, "version 3 to wait behind the refused version 1")
	if got := r.proj.versions(key); slices.Contains(got, 3) {
		t.Errorf("projected %v past an event that is not settled", got)
	}
}

// A row that the database refuses to settle holds up neither the others nor the end.
func TestPipelineARefusedRowStandsAlone(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 20 {
		r.enqueue(newKey(), int64(i))
	}
	r.exec(`create function refuse() returns trigger language plpgsql as $$
		begin if new.status = 'done' and new.event_version = 7 then raise exception 'not this one' using errcode = '23514'; end if; return new; end $$`)
	r.exec("create trigger refuse before update on search_outbox_events for each row execute function refuse()")
	stop := r.start()
	r.await(map[string]int{"done": 19, "processing": 1})
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if got := r.metric("processed", "upsert"); got != 19 {
		t.Errorf("%v processed, want those that were settled", got)
	}
}

// notePassed lets the database note in the table passed each event that is not settled
// when a later one of its entity is done.
func (r *rig) notePassed() {
	r.t.Helper()
	r.exec("create table passed (version bigint)")
	r.exec(`create function note() returns trigger language plpgsql as $$
		begin
			insert into passed select o.event_version from search_outbox_events o
				where o.entity_id = new.entity_id and o.event_version < new.event_version and o.status not in ('done', 'failed');
			return null;
		end $$`)
	r.exec(`create constraint trigger note after update on search_outbox_events deferrable initially deferred
		for each row when (new.status = 'done') execute function note()`)
}

// hold locks the row of a version until release is called or the test ends.
func (r *rig) hold(version int64) (release func()) {
	r.t.Helper()
	tx, err := r.pool.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	var once sync.Once
	release = func() { once.Do(func() { _ = tx.Rollback(context.Background()) }) }
	r.t.Cleanup(release)
	if _, err := tx.Exec(r.t.Context(), "select from search_outbox_events where event_version = $1 for update", version); err != nil {
		r.t.Fatal(err)
	}
	return release
}

func (r *rig) count(from string) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), "select count(*) from "+from).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestHalvesAreCutBetweenEntities(t *testing.T) {
	t.Parallel()
	a, b, c := newKey(), newKey(), newKey()
	for _, tc := range []struct {
		of   []outbox.Key
		want int
	}{
		{nil, 0}, {[]outbox.Key{a}, 0}, {[]outbox.Key{a, a, a}, 0}, {[]outbox.Key{a, b}, 1},
		{[]outbox.Key{a, b, b, b}, 1}, {[]outbox.Key{a, a, a, b}, 3}, {[]outbox.Key{a, b, b, b, b, c}, 1}, {[]outbox.Key{a, b, c, c}, 2},
	} {
		in := make([]outbox.Settlement, len(tc.of))
		for i := range tc.of {
			in[i].Event = &outbox.Event{Key: tc.of[i]}
		}
		if got := halve(in); got != tc.want {
			t.Errorf("%d of %d, want %d", got, len(in), tc.want)
		}
	}
}
