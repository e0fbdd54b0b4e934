package consumer

import (
	"context"
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
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "select from search_outbox_events where event_version = 1 for update"); err != nil {
		t.Fatal(err)
	}
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
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.await(map[string]int{"done": 3})
}

// Whoever holds an entity's older event while it is settled keeps the newer one from
// being done before it, and keeps nobody else waiting.
func TestPipelineARowLockedDuringASettle(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	r.exec("create table passed (version bigint)")
	r.exec(`create function note() returns trigger language plpgsql as $$
		begin
			insert into passed select o.event_version from search_outbox_events o
				where o.entity_id = new.entity_id and o.event_version < new.event_version and o.status not in ('done', 'failed');
			return null;
		end $$`)
	r.exec(`create constraint trigger note after update on search_outbox_events deferrable initially deferred
		for each row when (new.status = 'done') execute function note()`)
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
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "select from search_outbox_events where event_version = 1 for update"); err != nil {
		t.Fatal(err)
	}
	close(r.proj.leave)
	r.await(map[string]int{"done": 12, "processing": 2})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.await(map[string]int{"done": 14})
	var passed int
	if err := r.pool.QueryRow(t.Context(), "select count(*) from passed").Scan(&passed); err != nil || passed != 0 {
		t.Errorf("%d unsettled events were passed (%v)", passed, err)
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
