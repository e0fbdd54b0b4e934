package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestNewStoreNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := outbox.NewStore(nil, outbox.StoreConfig{Table: "x; drop table y", Owner: strings.Repeat("é", 121)})
	for _, want := range []string{`table "x; drop table y"`, "group is empty", "want 1 to 120 characters", "lease 0s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

func TestClaim(t *testing.T) {
	t.Parallel()
	t.Run("TakesTheLowestVersionsFirst", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(30)
		b.enqueue(10)
		b.enqueue(20)
		c := b.claim(1, 2)
		if got := []int64{c.Ready[0].Version, c.Ready[1].Version}; got[0] != 10 || got[1] != 20 {
			t.Errorf("claimed versions %v, want [10 20]", got)
		}
		r := b.row(c.Ready[0].ID)
		if r.Status != "processing" || *r.Owner != "a" || *r.Epoch != 1 || time.Until(*r.Lease) < 20*time.Second {
			t.Errorf("claimed row %+v, want processing by a under epoch 1 with a lease of 30 s", r)
		}
		if got := b.count("status = 'pending'"); got != 1 {
			t.Errorf("%d rows left pending, want 1", got)
		}
	})
	t.Run("AListIsClaimedInItsOrder", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for v := int64(5); v > 0; v-- {
			b.enqueue(v)
		}
		listed, _, err := b.store.List(t.Context(), 4)
		if err != nil || len(listed) != 4 || listed[0].Version != 1 || listed[3].Version != 4 {
			t.Fatalf("listed %+v, %v, want versions 1 to 4", listed, err)
		}
		var ids []uuid.UUID
		for _, e := range listed {
			ids = append(ids, e.ID)
		}
		b.exec("update search_outbox_events set status = 'done' where event_version = 2")
		c, err := b.store.Claim(t.Context(), outbox.ClaimRequest{Epoch: 1, Limit: 10, Listed: ids[1:]})
		if err != nil || len(c.Ready) != 2 || c.Ready[0].Version+c.Ready[1].Version != 3+4 {
			t.Errorf("claimed %+v, %v, want versions 3 and 4: 1 and 5 are not in the request, 2 is done by now", c, err)
		}
	})
	t.Run("DueRetriesAndNotEarlier", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		due, later := b.enqueue(1), b.enqueue(2)
		b.exec("update search_outbox_events set next_retry_at = now() - interval '1 s' where entity_id = $1", [16]byte(due.ID))
		b.exec("update search_outbox_events set next_retry_at = now() + interval '1 h' where entity_id = $1", [16]byte(later.ID))
		c := b.claim(1, 10)
		if len(c.Due) != 1 || c.Due[0].Key != due || len(c.Ready) != 0 {
			t.Errorf("claimed due %v ready %v, want the due one alone", c.Due, c.Ready)
		}
	})
	t.Run("RowsOfAStrangerAreReportedNotWaitedFor", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		key := b.enqueue(1, 2)
		b.hold("event_version = 1")
		c := b.claim(1, 10)
		if len(c.Ready) != 1 || c.Ready[0].Version != 2 {
			t.Errorf("claimed %v, want version 2", c.Ready)
		}
		if len(c.Blocked) != 1 || c.Blocked[0].Key != key || c.Blocked[0].Version != 1 {
			t.Errorf("blocked %v, want version 1 of %v", c.Blocked, key)
		}
	})
	t.Run("IdlePollWritesNothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var before, after string
		const xmax = "select xmax::text from weft_leader where group_name = 'g'"
		if err := b.pool.QueryRow(t.Context(), xmax).Scan(&before); err != nil {
			t.Fatal(err)
		}
		if c := b.claim(1, 10); c.Events() != 0 {
			t.Errorf("claimed %d events of an empty table", c.Events())
		}
		if err := b.pool.QueryRow(t.Context(), xmax).Scan(&after); err != nil {
			t.Fatal(err)
		}
		if before != after {
			t.Errorf("the leader's row was locked by an idle claim: xmax %s, then %s", before, after)
		}
	})
	t.Run("PeekSeesReadyAndDue", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		peek := func() bool {
			t.Helper()
			found, err := b.store.Peek(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		if peek() {
			t.Error("peek found something in an empty table")
		}
		b.enqueue(1)
		if !peek() {
			t.Error("peek did not find a ready row")
		}
		b.exec("update search_outbox_events set next_retry_at = now() + interval '1 h'")
		if peek() {
			t.Error("peek found a row that is not due")
		}
		b.exec("update search_outbox_events set next_retry_at = now()")
		if !peek() {
			t.Error("peek did not find a due row")
		}
	})
}

func TestSettle(t *testing.T) {
	t.Parallel()
	t.Run("EveryVerdict", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for v := int64(1); v <= 6; v++ {
			b.enqueue(v)
		}
		ev := b.claim(1, 10).Ready
		at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
		s := b.settle(
			outbox.Settlement{Event: &ev[0], Verdict: outbox.Done},
			outbox.Settlement{Event: &ev[1], Verdict: outbox.Superseded},
			outbox.Settlement{Event: &ev[2], Verdict: outbox.Retry, Reason: outbox.ReasonES429, Detail: "busy\x00", Delay: time.Minute},
			outbox.Settlement{Event: &ev[3], Verdict: outbox.Failed, Reason: outbox.ReasonES4xx, Detail: "bad \xff"},
			outbox.Settlement{Event: &ev[4], Verdict: outbox.Waiting, NotBefore: at},
			outbox.Settlement{Event: &ev[5], Verdict: outbox.GivenBack},
		)
		if s.Rows != 6 || s.Mismatch != 0 || len(s.Waits) != 2 {
			t.Fatalf("settled %+v, want 6 rows, 2 of them waiting", s)
		}
		for i := range ev[:2] {
			if r := b.row(ev[i].ID); r.Status != "done" || r.Done == nil || r.Owner != nil || r.Lease != nil || *r.Epoch != 1 {
				t.Errorf("row %d is %+v, want done, free, with its epoch", i, r)
			}
		}
		if r := b.row(ev[2].ID); r.Status != "pending" || r.Attempts != 1 || *r.Reason != "es_429" || *r.Error != "busy" || time.Until(*r.Retry) < 50*time.Second {
			t.Errorf("retried row is %+v, want pending in a minute with attempt 1 and a clean text", r)
		}
		if r := b.row(ev[3].ID); r.Status != "failed" || r.Attempts != 1 || *r.Reason != "es_4xx" || *r.Error != "bad \uFFFD" || r.Done != nil {
			t.Errorf("failed row is %+v, want failed with attempt 1 and valid text", r)
		}
		if r := b.row(ev[4].ID); r.Status != "pending" || r.Attempts != 0 || !r.Retry.Equal(at) {
			t.Errorf("waiting row is %+v, want pending until %v without an attempt", r, at)
		}
		if r := b.row(ev[5].ID); r.Status != "pending" || r.Attempts != 0 || r.Retry != nil || r.Owner != nil {
			t.Errorf("row given back is %+v, want ready", r)
		}
	})
	t.Run("ARowThatIsNoLongerHeldIsLeftAlone", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(1)
		b.enqueue(2)
		b.enqueue(3)
		ev := b.claim(1, 10).Ready
		b.exec("update search_outbox_events set owner = 'other' where event_version = 1")
		b.exec("update search_outbox_events set processing_started_at = clock_timestamp() where event_version = 2")
		s := b.settle(
			outbox.Settlement{Event: &ev[0], Verdict: outbox.Done},
			outbox.Settlement{Event: &ev[1], Verdict: outbox.Failed, Reason: outbox.ReasonES4xx},
			outbox.Settlement{Event: &ev[2], Verdict: outbox.Done},
		)
		if s.Rows != 1 || s.Mismatch != 2 {
			t.Errorf("settled %+v, want one row and two mismatches", s)
		}
		for i := range ev[:2] {
			if r := b.row(ev[i].ID); r.Status != "processing" {
				t.Errorf("row %d is %+v, want untouched", i, r)
			}
		}
	})
	t.Run("AnEventWithoutVerdictIsRefused", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(1)
		ev := b.claim(1, 1).Ready
		if _, err := b.store.Settle(t.Context(), 1, []outbox.Settlement{{Event: &ev[0]}}); err == nil || !strings.Contains(err.Error(), "no verdict") {
			t.Errorf("error %v, want one that says there is no verdict", err)
		}
	})
}

// The older of two live claimers changes no row: not by claiming, settling,
// renewing, reclaiming, waking or giving back.
func TestOlderEpochIsFenced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.enqueue(2)
	old := b.claim(1, 1).Ready
	b.setEpoch(2)
	newer := b.newStore("b")

	fenced := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, outbox.ErrFenced) {
			t.Errorf("%s under the old epoch: error %v, want ErrFenced", what, err)
		}
	}
	_, err := b.store.Claim(t.Context(), outbox.ClaimRequest{Epoch: 1, Limit: 10})
	fenced("claim", err)
	_, err = b.store.Settle(t.Context(), 1, []outbox.Settlement{{Event: &old[0], Verdict: outbox.Done}})
	fenced("settle done", err)
	_, err = b.store.Settle(t.Context(), 1, []outbox.Settlement{{Event: &old[0], Verdict: outbox.Retry, Reason: outbox.ReasonES5xx}})
	fenced("settle retry", err)
	_, err = b.store.Renew(t.Context(), 1, old)
	fenced("renew", err)
	_, err = b.store.Reclaim(t.Context(), outbox.ReclaimRequest{Epoch: 1, Limit: 10, MaxProcessing: time.Nanosecond, MaxReclaims: 5})
	fenced("reclaim", err)
	_, err = b.store.Wake(t.Context(), 1, outbox.Reasons())
	fenced("wake", err)
	_, err = b.store.GiveBackUnknown(t.Context(), 1, nil)
	fenced("give back", err)
	fenced("record progress", b.store.RecordProgress(t.Context(), 1, time.Now()))

	if r := b.row(old[0].ID); r.Status != "processing" || *r.Owner != "a" || *r.Epoch != 1 {
		t.Errorf("row of the old claim is %+v, want untouched", r)
	}
	if got := b.count("status = 'pending'"); got != 1 {
		t.Errorf("%d rows pending, want 1", got)
	}
	// The newer claimer takes both, and the old settle still changes nothing.
	got, err := newer.Reclaim(t.Context(), outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 5})
	if err != nil || len(got) != 1 || got[0] != (outbox.Reclaimed{Owner: "a", Epoch: 1, Cause: outbox.CauseOlderEpoch, Rows: 1}) {
		t.Fatalf("reclaimed %+v, %v, want the row of a under epoch 1", got, err)
	}
	c, err := newer.Claim(t.Context(), outbox.ClaimRequest{Epoch: 2, Limit: 10})
	if err != nil || len(c.Ready) != 2 {
		t.Fatalf("claimed %+v, %v, want both rows", c, err)
	}
	_, err = b.store.Settle(t.Context(), 1, []outbox.Settlement{{Event: &old[0], Verdict: outbox.Failed, Reason: outbox.ReasonES4xx}})
	fenced("late settle", err)
	if got := b.count("status = 'processing' and owner = 'b' and epoch = 2"); got != 2 {
		t.Errorf("%d rows held by b, want 2", got)
	}
}

// A statement under the old epoch that is already under way when the new leader
// bumps the epoch is waited for; the bump never overtakes it.
func TestBumpWaitsForAnOpenClaim(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "select from weft_leader where group_name = 'g' and epoch = 1 for key share"); err != nil {
		t.Fatal(err)
	}
	b.exec("update weft_leader set renewed_at = clock_timestamp() where group_name = 'g'") // a heartbeat does not wait
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "set lock_timeout = '100ms'"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "update weft_leader set epoch = 2 where group_name = 'g'"); err == nil || !strings.Contains(err.Error(), "55P03") {
		t.Errorf("bump beside an open claim: error %v, want lock timeout", err)
	}
	if _, err := conn.Exec(t.Context(), "reset lock_timeout"); err != nil {
		t.Fatal(err)
	}
}

func TestReclaim(t *testing.T) {
	t.Parallel()
	request := outbox.ReclaimRequest{Epoch: 2, Limit: 100, MaxProcessing: time.Minute, MaxReclaims: 3}
	t.Run("LeasesOfTheLivingAreKept", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.setEpoch(2)
		for v := int64(1); v <= 5; v++ {
			b.enqueue(v)
		}
		const hold = `update search_outbox_events set status = 'processing', owner = $2, lease_until = now() + $3::interval,
			processing_started_at = now() - $4::interval, epoch = $5 where event_version = $1`
		b.exec(hold, 1, "python", "20 s", "5 s", nil)    // another worker, alive
		b.exec(hold, 2, "python", "-1 s", "31 s", nil)   // dead
		b.exec(hold, 3, "python", nil, "2 min", nil)     // no lease, too long
		b.exec(hold, 4, "me", "20 s", "2 min", int64(2)) // ours, long but leased
		b.exec(hold, 5, "me", "-1 s", "31 s", int64(2))  // ours, lost
		got, err := b.store.Reclaim(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		rows := map[string]int{}
		for _, g := range got {
			rows[g.Owner+" "+string(g.Cause)] += g.Rows
		}
		want := map[string]int{"python lease_expired": 1, "python max_processing": 1, "me lease_expired": 1}
		for k, n := range want {
			if rows[k] != n || len(rows) != len(want) {
				t.Errorf("reclaimed %v, want %v", rows, want)
				break
			}
		}
		if got := b.count("status = 'pending' and attempts = 1 and reclaims = 1 and owner is null and lease_until is null"); got != 3 {
			t.Errorf("%d rows are ready with one more attempt, want 3", got)
		}
		var audited int
		if err := b.pool.QueryRow(t.Context(), `select sum(count) from weft_audit
			where action = 'reclaim' and actor = 'a' and by_epoch = 2 and projection = 'search_index_to_elastic'`).Scan(&audited); err != nil || audited != 3 {
			t.Errorf("audit holds %d rows, %v, want 3", audited, err)
		}
	})
	t.Run("AnEventThatEndsItsWorkersIsFound", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(1)
		var id uuid.UUID
		for epoch := int64(1); epoch <= 3; epoch++ {
			b.setEpoch(epoch)
			c := b.claim(epoch, 1)
			if len(c.Ready) != 1 || c.Ready[0].Reclaims != int(epoch-1) {
				t.Fatalf("epoch %d claimed %+v, want one event reclaimed %d times", epoch, c.Ready, epoch-1)
			}
			id = c.Ready[0].ID
			b.setEpoch(epoch + 1)
			r := request
			r.Epoch = epoch + 1
			if _, err := b.store.Reclaim(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		r := b.row(id)
		if r.Status != "failed" || *r.Reason != "unknown_exception" || !strings.Contains(*r.Error, "reclaimed 3 times in a row") {
			t.Errorf("row is %+v, want failed with the reason", r)
		}
	})
}

func TestGiveBackUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.enqueue(2)
	ev := b.claim(1, 10).Ready
	n, err := b.store.GiveBackUnknown(t.Context(), 1, ev[:1])
	if err != nil || n != 1 {
		t.Fatalf("gave back %d, %v, want 1", n, err)
	}
	if r := b.row(ev[0].ID); r.Status != "processing" {
		t.Errorf("known row is %+v, want still held", r)
	}
	if r := b.row(ev[1].ID); r.Status != "pending" || r.Attempts != 0 {
		t.Errorf("unknown row is %+v, want ready without an attempt", r)
	}
	// A row that has been claimed again since is not the claim that is known.
	b.exec("update search_outbox_events set processing_started_at = clock_timestamp() where id = $1", [16]byte(ev[0].ID))
	if n, err := b.store.GiveBackUnknown(t.Context(), 1, ev[:1]); err != nil || n != 1 {
		t.Errorf("gave back %d, %v, want the newer claim of the known row", n, err)
	}
}

func TestWakeAndWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := int64(1); v <= 3; v++ {
		b.enqueue(v)
	}
	ev := b.claim(1, 10).Ready
	b.settle(
		outbox.Settlement{Event: &ev[0], Verdict: outbox.Retry, Reason: outbox.ReasonESConnect, Delay: time.Hour},
		outbox.Settlement{Event: &ev[1], Verdict: outbox.Retry, Reason: outbox.ReasonUnknown, Delay: time.Hour},
		outbox.Settlement{Event: &ev[2], Verdict: outbox.Waiting, Delay: time.Hour},
	)
	waits := 0
	if err := b.store.Waits(t.Context(), nil, func(outbox.Wait) { waits++ }); err != nil || waits != 3 {
		t.Errorf("%d waits, %v, want 3", waits, err)
	}
	b.enqueue(4)
	b.exec("update search_outbox_events set next_retry_at = 'infinity' where event_version = 4") // parked by hand
	n, err := b.store.Wake(t.Context(), 1, []outbox.Reason{outbox.ReasonESConnect})
	if err != nil || n != 2 {
		t.Errorf("woke %d, %v, want the one that met the outage and the one behind another", n, err)
	}
	if c := b.claim(1, 10); len(c.Due) != 2 {
		t.Errorf("%d due after waking, want 2", len(c.Due))
	}
}

// A waiting row that somebody holds keeps nobody asleep but itself.
func TestWakePassesOverWhatOthersHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := int64(1); v <= 3; v++ {
		b.enqueue(v)
	}
	ev := b.claim(1, 10).Ready
	for i := range ev {
		b.settle(outbox.Settlement{Event: &ev[i], Verdict: outbox.Retry, Reason: outbox.ReasonESConnect, Delay: time.Hour})
	}
	release := b.hold("event_version = 2")
	if n, err := b.store.Wake(t.Context(), 1, []outbox.Reason{outbox.ReasonESConnect}); err != nil || n != 2 {
		t.Errorf("woke %d, %v, want the two that nobody holds", n, err)
	}
	release()
	if n, err := b.store.Wake(t.Context(), 1, []outbox.Reason{outbox.ReasonESConnect}); err != nil || n != 1 {
		t.Errorf("woke %d, %v, want the one that was held", n, err)
	}
}

// A row that somebody changes while a claim waits for it stays pending: it is claimed or
// named, so that nothing of its entity passes it.
func TestClaimKnowsWhatIsChangedMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
	for round := range int64(10) { // a claim that waits for too long looks again anyway
		b.store = b.newStore("a")
		b.enqueue(10*round+1, 10*round+2)
		tx, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "update search_outbox_events set tracestate = 'x=1' where event_version = $1", 10*round+1); err != nil {
			t.Fatal(err)
		}
		answer := make(chan *outbox.Claimed, 1)
		go func() {
			c, err := b.store.Claim(t.Context(), outbox.ClaimRequest{Epoch: 1, Limit: 10})
			if err != nil {
				t.Error(err)
				c = &outbox.Claimed{}
			}
			answer <- c
		}()
		for n := 0; n == 0 && len(answer) == 0; {
			if err := b.pool.QueryRow(t.Context(), waiting).Scan(&n); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := <-answer
		known := len(c.Ready) + len(c.Blocked)
		if left := b.count("status = 'pending'"); known != 2 || left != len(c.Blocked) {
			t.Fatalf("round %d: %d events claimed, %d rows named as locked, %d pending, want each of 2 in one of the first", round, len(c.Ready), len(c.Blocked), left)
		}
		b.exec("update search_outbox_events set status = 'done'")
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := int64(1); v <= 5; v++ {
		b.enqueue(v)
	}
	ev := b.claim(1, 4).Ready
	s := b.settle(
		outbox.Settlement{Event: &ev[0], Verdict: outbox.Done},
		outbox.Settlement{Event: &ev[1], Verdict: outbox.Failed, Reason: outbox.ReasonES4xx},
		outbox.Settlement{Event: &ev[2], Verdict: outbox.Retry, Reason: outbox.ReasonES5xx, Delay: time.Hour},
	)
	b.exec("update search_outbox_events set created_at = now() - interval '1 h' where event_version = 5")
	if err := b.store.RecordProgress(t.Context(), 1, s.At); err != nil {
		t.Fatal(err)
	}
	st, err := outbox.ReadStats(t.Context(), b.pool, table, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if st.Pending != 1 || st.Retrying != 1 || st.Processing != 1 || st.Failed != 1 || st.Stuck != 0 || st.Lag() != 3 {
		t.Errorf("stats %+v, want one of each", st)
	}
	if st.Oldest < time.Hour || st.Oldest > 2*time.Hour {
		t.Errorf("oldest %v, want an hour", st.Oldest)
	}
	if st.LastSettle == nil || !st.LastSettle.Equal(s.At) || st.NextRetry == nil {
		t.Errorf("last settle %v, next retry %v, want %v and some time", st.LastSettle, st.NextRetry, s.At)
	}
	if st.Now.Before(s.At) || st.Capped {
		t.Errorf("now %v before the settle at %v, or capped %v", st.Now, s.At, st.Capped)
	}
	glance, err := b.store.Glance(t.Context(), time.Minute, 2)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(st, glance, cmpopts.IgnoreFields(outbox.Stats{}, "Oldest", "Now", "DeadTuples", "DoneEstimate")); diff != "" {
		t.Errorf("a glance sees something else than a count (-count +glance):\n%s", diff)
	}
	if glance, err = b.store.Glance(t.Context(), time.Minute, 1); err != nil || !glance.Capped {
		t.Errorf("got %+v, %v, want a glance that says that it has met its limit", glance, err)
	}
	b.exec("update search_outbox_events set lease_until = now() - interval '1 s' where status = 'processing'")
	if glance, err = b.store.Glance(t.Context(), time.Minute, 2); err != nil || glance.Stuck != 1 {
		t.Errorf("got %+v, %v, want one stuck", glance, err)
	}
}

func TestEnqueueNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := uuid.New()
	err := outbox.Enqueue(t.Context(), b.pool, table,
		outbox.NewEvent{Key: outbox.Key{Type: "block", ID: uuid.New()}, Op: outbox.Upsert, Version: 1},
		outbox.NewEvent{ID: id, Key: outbox.Key{Type: strings.Repeat("x", 51), ID: id}, Op: "merge", Version: -1},
		outbox.NewEvent{Key: outbox.Key{Type: "a\x00b"}, Op: outbox.Delete},
	)
	for _, want := range []string{"event 1", `op "merge"`, "51 characters", "version -1", "equals the entity id", "event 2", "null byte", "entity id is zero"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
	if got := b.count("true"); got != 0 {
		t.Errorf("%d rows written beside a refused one, want 0", got)
	}
}

// An operator may park an event for ever, and a producer may write any time.
func TestInfiniteTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	parked, odd := b.enqueue(1), b.enqueue(2)
	b.exec("update search_outbox_events set next_retry_at = 'infinity' where entity_id = $1", [16]byte(parked.ID))
	b.exec("update search_outbox_events set created_at = '-infinity' where entity_id = $1", [16]byte(odd.ID))
	var waits []outbox.Wait
	if err := b.store.Waits(t.Context(), nil, func(w outbox.Wait) { waits = append(waits, w) }); err != nil || len(waits) != 1 || time.Until(waits[0].At) < time.Hour {
		t.Errorf("waits %v, %v, want the parked one far away", waits, err)
	}
	c := b.claim(1, 10)
	if len(c.Ready) != 1 || c.Ready[0].Key != odd || len(c.Due) != 0 {
		t.Errorf("claimed %+v, want the odd one alone", c)
	}
	if _, err := b.store.Stats(t.Context(), time.Minute); err != nil {
		t.Errorf("stats: %v", err)
	}
}

// What another worker still holds must not be passed either.
func TestWaitsNameWhatOthersHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.enqueue(2)
	ours := b.claim(1, 1).Ready
	b.exec("update search_outbox_events set status = 'processing', owner = 'python', lease_until = now() + interval '20 s' where event_version = 2")
	var versions []int64
	if err := b.store.Waits(t.Context(), ours, func(w outbox.Wait) { versions = append(versions, w.Version) }); err != nil || len(versions) != 1 || versions[0] != 2 {
		t.Errorf("waits %v, %v, want the other worker's alone", versions, err)
	}
	versions = nil // ours is not at work any more, and could not be settled
	if err := b.store.Waits(t.Context(), nil, func(w outbox.Wait) { versions = append(versions, w.Version) }); err != nil || len(versions) != 2 {
		t.Errorf("waits %v, %v, want what is left in processing, too", versions, err)
	}
}

// A claim that is still being executed when its answer is lost is waited for.
func TestGiveBackUnknownWaitsForOpenClaims(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for _, sql := range []string{
		"select from weft_leader where group_name = 'g' and epoch = 1 for key share",
		"update search_outbox_events set status = 'processing', owner = 'a', epoch = 1, processing_started_at = now(), lease_until = now() + interval '30 s'",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	type answer struct {
		n   int
		err error
	}
	done := make(chan answer, 1)
	go func() {
		n, err := b.store.GiveBackUnknown(t.Context(), 1, nil)
		done <- answer{n, err}
	}()
	labtest.Eventually(t, 10*time.Second, func() bool {
		var waiting bool
		err := b.pool.QueryRow(t.Context(), "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')").Scan(&waiting)
		return err == nil && waiting
	}, "the give back to wait")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.err != nil || got.n != 1 {
		t.Errorf("gave back %d, %v, want the row of the late claim", got.n, got.err)
	}
}

// A row that somebody else has locked keeps neither the others nor the leader's
// heartbeat waiting, and is named to those that must not pass it.
func TestGiveBackUnknownPassesOverWhatOthersHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.enqueue(2)
	ev := b.claim(1, 10).Ready
	release := b.hold("id = $1", [16]byte(ev[0].ID))
	n, err := b.store.GiveBackUnknown(t.Context(), 1, nil)
	if err != nil || n != 1 {
		t.Errorf("gave back %d, %v, want the row that nobody holds", n, err)
	}
	if r := b.row(ev[1].ID); r.Status != "pending" {
		t.Errorf("free row is %+v, want ready", r)
	}
	release()
	if n, err := b.store.GiveBackUnknown(t.Context(), 1, nil); err != nil || n != 1 {
		t.Errorf("gave back %d, %v, want the row that was held", n, err)
	}
}
