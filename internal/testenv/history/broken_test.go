package history_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A sound pair, a takeover and a bulk request of the old leader that arrives when the
// new one has written newer states: nothing is found.
func TestCheckPassesASoundPair(t *testing.T) {
	t.Parallel()
	for _, finished := range []outbox.Finished{outbox.Keep, outbox.Archive, outbox.Discard} {
		t.Run(string(finished), func(t *testing.T) {
			t.Parallel()
			soundPair(t, finished)
		})
	}
}

func soundPair(t *testing.T, finished outbox.Finished) {
	t.Helper()
	r := setup(t)
	r.finished = finished
	updated, deleted, recreated := newKey(), newKey(), newKey()
	a := r.member("a", 1)
	stopA := a.run()
	for _, k := range []outbox.Key{updated, deleted, recreated} {
		r.write(k, 1)
	}
	r.settled()
	a.tap.Hold()
	for _, k := range []outbox.Key{updated, deleted, recreated} {
		r.write(k, 2)
	}
	testenv.Eventually(t, func() bool { return a.tap.Held() > 0 && r.count(inFlight) == 3 }, "a's bulk request is held, and all is leased")

	b := r.member("b", 2)
	reclaim(t, b, 3)
	stopB := b.run()
	r.write(updated, 3)
	r.remove(deleted, 4)
	r.remove(recreated, 5)
	r.settled()
	r.write(recreated, 6)
	r.settled()
	a.tap.Release()
	testenv.Eventually(t, func() bool { return a.tap.Held() == 0 }, "a's bulk request goes on")
	if err := stopA(); !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("end of a: got %v, want %v", err, outbox.ErrFenced)
	}
	if err := stopB(); err != nil {
		t.Errorf("end of b: %v", err)
	}
	v := r.check()
	if bad := v.Breaches(); len(bad) > 0 {
		t.Errorf("got %v, want nothing", bad)
	}
	if len(v.Kept) > 0 {
		t.Errorf("kept in the table: got %v, want nothing", v.Kept)
	}
	refused := 0
	for _, i := range r.rec.Applied() {
		if i.Instance == "a" && i.Status == http.StatusConflict {
			refused++
		}
	}
	if refused == 0 {
		t.Error("the late bulk request of a was not refused: the test shows nothing")
	}
}

// reclaim takes over what earlier terms hold.
func reclaim(t *testing.T, m *member, want int) {
	t.Helper()
	request := outbox.ReclaimRequest{Epoch: m.epoch, Limit: 100, MaxProcessing: time.Hour, MaxReclaims: 5}
	rows := 0
	for {
		taken, err := m.store.(*outbox.Store).ReclaimLeases(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if len(taken) == 0 {
			break
		}
		for _, r := range taken {
			rows += r.Rows
		}
	}
	if rows != want {
		t.Fatalf("reclaimed %d rows, want %d", rows, want)
	}
}

func TestCheckCatchesBrokenPipelines(t *testing.T) {
	t.Parallel()

	// An instance whose leases and settles ask for another fence goes on after it was followed.
	t.Run("UnfencedLease", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		r.exec(r.pool, `insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('another', 1, 'a', now(), now())`)
		a.store = a.open("another", outbox.Keep)
		r.member("b", 2)
		a.carry(key)
		expect(t, r.check(), key,
			`one claimer: version 1 (event `+r.ledger[0].Event.String()+`): lease by "a" under epoch 1 after epoch 2 was committed`,
			`one claimer: settle of what "a" leased under epoch 1 after epoch 2 was committed`)
	})

	// A settle that names the batch and not its holder ends somebody else's.
	t.Run("SettleOfAnothersLease", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		b, a := r.member("b", 1), r.member("a", 2)
		a.tap.Hold()
		stop := a.run()
		r.write(key, 1)
		testenv.Eventually(t, func() bool { return a.tap.Held() > 0 }, "a's bulk request is held")
		r.exec(b.pool, `with ended as (delete from weft_lease) update search_outbox_events set status = 'done', processed_at = now()`)
		a.tap.Release()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			`one claimer: settle of what "a" leased by a session of "b" under epoch 2`,
			`no event lost: done before Elasticsearch had confirmed a version of its document`)
	})

	t.Run("SettleWithoutItsLease", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		a.store = &settler{Store: a.store, before: func(ids any) {
			r.exec(a.pool, `update search_outbox_events set status = 'done', processed_at = now() where id = any ($1::uuid[])`, ids)
		}}
		a.carry(key)
		expect(t, r.check(), key, `a lease for every verdict: version 1 (event `+r.ledger[0].Event.String()+`): became done without a lease`)
	})

	t.Run("SendWithoutALease", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		a.store = &hasty{Store: a.store}
		a.carry(key)
		expect(t, r.check(), key, "a lease before every send: sent without a lease on an event of its entity: index version 1 by a")
	})

	t.Run("SendBeforeTheLeaseIsCommitted", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		a.store = a.openOn(&tardy{Pool: a.pool}, group, outbox.Keep)
		a.carry(key)
		expect(t, r.check(), key, "a lease before every send: sent without a lease on an event of its entity: index version 1 by a")
	})

	t.Run("RowDoneTwice", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		a.store = &settler{Store: a.store, after: func(ids any) {
			r.exec(a.pool, `update search_outbox_events set status = 'done', processed_at = now() where id = any ($1::uuid[])`, ids)
		}}
		a.carry(key)
		expect(t, r.check(), key, "done once: done once more, after transaction ")
	})

	// An archive whose move is half a one.
	t.Run("LostArchiveMove", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		r.finished = outbox.Archive
		a := r.member("a", 1)
		a.store = a.open(group, outbox.Discard)
		a.carry(key)
		expect(t, r.check(), key, `no event lost: version 1 (event `+r.ledger[0].Event.String()+`): removed from the table, and not moved to its history, when it was pending`)
	})

	t.Run("ArchivedEventIsGone", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		r.finished = outbox.Archive
		r.member("a", 1).carry(key)
		if n := r.exec(r.pool, `delete from search_outbox_history`); n != 1 {
			t.Fatalf("events in the history: got %d, want 1", n)
		}
		expect(t, r.check(), key, `no event lost: version 1 (event `+r.ledger[0].Event.String()+`): archived, and not in the history`)
	})

	// A list that goes on where the last one ended misses what was committed before that
	// place meanwhile.
	t.Run("ListContinuedByALaterSnapshot", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		store := &continuing{Store: a.store}
		a.store = store
		r.write(key, 5)
		stop := a.run()
		r.settled()
		r.late(key, 3)
		r.write(key, 7)
		testenv.Eventually(t, func() bool { return r.count(unsettled) == 1 }, "the latest event is done")
		store.begin()
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			"order per entity: version 7 (event "+r.ledger[2].Event.String()+"): done while earlier events were unsettled: 1, the oldest version 3 (event "+r.ledger[1].Event.String()+", pending)")
	})

	t.Run("EventDropped", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		r.member("a", 1).carry(key)
		r.write(key, 2)
		r.exec(r.pool, `update search_outbox_events set status = 'done' where status = 'pending'`)
		event := "version 2 (event " + r.ledger[1].Event.String() + "): "
		expect(t, r.check(), key,
			"a lease for every verdict: "+event+"became done without a lease",
			"no event lost: "+event+"done when Elasticsearch had confirmed no newer version of its document than 1",
			"convergence: "+event+"stale")
	})

	t.Run("DocumentNeverWritten", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key, other := newKey(), newKey()
		a := r.member("a", 1)
		a.proj = &lazy{a.proj, 2}
		stop := a.run()
		r.write(other, 1)
		r.settled()
		r.write(key, 2)
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		event := "version 2 (event " + r.ledger[1].Event.String() + "): "
		expect(t, r.check(), key,
			"no event lost: "+event+"done before Elasticsearch had confirmed a version of its document",
			"convergence: "+event+"missing "+key.String()+" (last written as version 2")
	})

	t.Run("OlderStateOverANewerOne", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		a.proj = &careless{a.proj, a.tap.URL() + "/" + r.index, 5}
		stop := a.run()
		r.write(key, 10)
		r.settled()
		r.late(key, 5)
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			`versions never go back: version 0: index applied after index of version 10 by "a"`,
			"convergence: stale "+key.String())
	})

	t.Run("DeletedDocumentComesBack", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		a.proj = &careless{a.proj, a.tap.URL() + "/" + r.index, 5}
		stop := a.run()
		r.write(key, 8)
		r.settled()
		r.remove(key, 10)
		r.settled()
		r.late(key, 5)
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			`deleted documents stay deleted: version 0: index applied after delete of version 10 by "a"`,
			"convergence: extra "+key.String()+" (last deleted after version 8")
	})

	t.Run("LaterEventFirst", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		store := &hiding{Store: a.store, version: 1}
		a.store = store
		r.write(key, 1)
		r.write(key, 2)
		stop := a.run()
		testenv.Eventually(t, func() bool { return r.count(unsettled) == 1 }, "the later event is done")
		store.released.Store(true)
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			"order per entity: version 2 (event "+r.ledger[1].Event.String()+"): done while earlier events were unsettled: 1, the oldest version 1 (event "+r.ledger[0].Event.String()+", pending)")
	})
}
