package outbox_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

func (b *bench) reclaimLease(epoch int64, most int) []outbox.Reclaimed {
	b.t.Helper()
	got, err := b.store.ReclaimLeases(b.t.Context(), outbox.ReclaimRequest{Epoch: epoch, Limit: 2000, MaxReclaims: most})
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

// TestReclaimLease: the events of an older term's lease are due at once, with an attempt
// counted; what was settled or changed since stays as it is.
func TestReclaimLease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := range int64(5) {
		b.enqueue(v)
	}
	l := b.list()
	x := b.lease(1, groups(l.Ready[:4]...)...)
	if got := b.reclaimLease(1, 5); len(got) != 0 {
		t.Errorf("reclaimed %+v of the term's own lease", got)
	}
	b.exec("update search_outbox_events set status = 'failed', updated_at = clock_timestamp() where event_version = 1")
	b.exec("update search_outbox_events set op = 'delete', updated_at = clock_timestamp() where event_version = 2")
	release := b.hold("event_version = 3")
	b.setTerm(2, "a")
	got := b.reclaimLease(2, 5)
	release()
	want := []outbox.Reclaimed{{Owner: "a", Epoch: 1, Cause: outbox.CauseOlderEpoch, Rows: 1}}
	if !slices.Equal(got, want) {
		t.Errorf("reclaimed %+v, want %+v", got, want)
	}
	if r := b.row(x.Events[0][0].ID); r.Status != "pending" || r.Attempts != 1 || r.Reclaims != 1 || r.Retry == nil || r.Retry.After(b.now()) {
		t.Errorf("reclaimed row is %+v, want it due, with an attempt and a reclaim", r)
	}
	if got := b.count("event_version in (2, 3, 4) and status = 'pending' and next_retry_at is null and attempts = 0"); got != 3 {
		t.Errorf("%d rows are as they were, want the changed, the locked and the ready one", got)
	}
	if got := b.number("select count from weft_audit where action = 'reclaim' and why = 'older_epoch' and from_owner = 'a' and from_epoch = 1 and by_epoch = 2"); got != 1 {
		t.Errorf("the audit names %d rows, want 1", got)
	}
	if got := b.reclaimLease(2, 5); len(got) != 0 || b.number("select count(*) from weft_lease") != 0 {
		t.Errorf("reclaimed %+v, want no lease left", got)
	}
}

// TestLeaseWithoutEventsOfTheTableIsRemoved: one of a table whose ids were of another type, before
// it was made anew under its name.
func TestLeaseWithoutEventsOfTheTableIsRemoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.leaseAll()
	b.exec("update weft_lease set uuids = null, numbers = '{1}'")
	b.setTerm(2, "a")
	if got := b.reclaimLease(2, 5); len(got) != 1 || got[0].Rows != 0 || b.number("select count(*) from weft_lease") != 0 {
		t.Errorf("reclaimed %+v, want a lease without events, and that it is gone", got)
	}
}

// TestReclaimCountsEventsOfAClockThatIsAhead: else an event that ends its workers would do so
// for as long as its producer's clock was ahead.
func TestReclaimCountsEventsOfAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.exec("update search_outbox_events set updated_at = now() + interval '1 h'")
	x := b.leaseAll()
	b.setTerm(2, "a")
	if got := b.reclaimLease(2, 5); len(got) != 1 || got[0].Rows != 1 {
		t.Errorf("reclaimed %+v, want the event", got)
	}
	if r := b.row(x.Events[0][0].ID); r.Attempts != 1 || r.Reclaims != 1 || r.Retry == nil {
		t.Errorf("reclaimed row is %+v, want it due, with an attempt and a reclaim", r)
	}
}

// TestReclaimCountsEventsOfNoTime: an adopted table may allow null for the last change.
func TestReclaimCountsEventsOfNoTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.exec("alter table search_outbox_events alter column updated_at drop not null")
	b.exec("update search_outbox_events set updated_at = null")
	b.leaseAll()
	b.setTerm(2, "a")
	if got := b.reclaimLease(2, 5); len(got) != 1 || got[0].Rows != 1 {
		t.Errorf("reclaimed %+v, want the row", got)
	}
}

// TestReclaimLeaseOfAnotherInstance: an asynchronous failover may give an epoch out twice.
func TestReclaimLeaseOfAnotherInstance(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.leaseAll()
	b.setTerm(1, "b")
	b.store = b.newStore(b.pool, "b", outbox.Keep)
	if got := b.reclaimLease(1, 5); len(got) != 1 || got[0].Owner != "a" || got[0].Rows != 1 {
		t.Errorf("reclaimed %+v, want the lease of a", got)
	}
}

// TestReclaimFindsAnEventThatEndsItsWorkers, and leaves its neighbours alone.
func TestReclaimFindsAnEventThatEndsItsWorkers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.enqueue(2)
	b.exec("update search_outbox_events set reclaims = 4 where event_version = 1")
	b.leaseAll()
	b.setTerm(2, "a")
	got := b.reclaimLease(2, 5)
	if len(got) != 2 || got[0].Failed == got[1].Failed || got[0].Rows != 1 || got[1].Rows != 1 {
		t.Errorf("reclaimed %+v, want one that ends in failed and one that does not", got)
	}
	if got := b.count("event_version = 1 and status = 'failed' and reclaims = 5 and error_reason = 'unknown_exception' and error like 'reclaimed 5 times in a row%'"); got != 1 {
		t.Error("the event that was reclaimed five times is not in failed, or does not say why")
	}
	if got := b.number("select count(*) from weft_audit where why = 'older_epoch, ended in failed'"); got != 1 {
		t.Errorf("%d entries of the audit say so, want 1", got)
	}
}

// TestReclaimRows takes back what an older build and other workers have claimed in rows.
func TestReclaimRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	claim := func(version int, set string) {
		b.enqueue(int64(version))
		b.exec("update search_outbox_events set status = 'processing', processing_started_at = now() - interval '1 min' where event_version = $1", version)
		b.exec("update search_outbox_events set "+set+" where event_version = $1", version)
	}
	claim(1, "owner = 'b', epoch = 1, lease_until = now() + interval '1 h'") // an older build's
	claim(2, "owner = 'w', lease_until = now() + interval '1 h'")
	claim(3, "owner = 'w', lease_until = now() - interval '1 s'")
	claim(4, "processing_started_at = now() - interval '2 h'")
	claim(5, "owner = null")
	claim(6, "owner = 'w', lease_until = now() - interval '1 s'")
	release := b.hold("event_version = 6")
	defer release()
	var got []outbox.Reclaimed
	for {
		part, err := b.store.ReclaimRows(t.Context(), outbox.ReclaimRequest{Epoch: 1, Limit: 2, MaxProcessing: time.Hour, MaxReclaims: 5})
		if err != nil {
			t.Fatal(err)
		}
		if len(part) == 0 {
			break
		}
		got = append(got, part...)
	}
	rows := map[outbox.Reclaimed]bool{}
	for _, r := range got {
		rows[r] = true
	}
	for _, want := range []outbox.Reclaimed{
		{Owner: "b", Epoch: 1, Cause: outbox.CauseOlderEpoch, Rows: 1},
		{Owner: "w", Cause: outbox.CauseLeaseExpired, Rows: 1},
		{Cause: outbox.CauseMaxProcessing, Rows: 1},
	} {
		if !rows[want] || len(got) != 3 {
			t.Errorf("reclaimed %+v, want %+v among three", got, want)
		}
	}
	if got := b.count("status = 'processing' and event_version in (2, 5, 6)"); got != 3 {
		t.Errorf("%d rows are left to their workers, want 3", got)
	}
	if got := b.count("status = 'pending' and event_version in (1, 3, 4) and next_retry_at <= now() and attempts = 1 and owner is null"); got != 3 {
		t.Errorf("%d rows are due, want 3", got)
	}
}

// A leader of an older term that asks what became of its settle keeps no lease from being reclaimed.
func TestReclaimPassesNoLeaseThatAnOlderLeaderAsksFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	x := b.leaseAll()
	b.setTerm(2, "b")
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, _, err := b.newStore(tx, "a", outbox.Keep).Resolve(t.Context(), 1, x.id, x.all(outbox.Done)); !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("resolved under an older epoch: %v", err)
	}
	got, err := b.newStore(b.pool, "b", outbox.Keep).ReclaimLeases(t.Context(), outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxReclaims: 10})
	if err != nil || len(got) != 1 || got[0].Rows != 1 {
		t.Errorf("reclaimed %+v, %v, want the lease", got, err)
	}
}

// One call takes back several leases, the oldest first, and passes over one that somebody works on.
func TestReclaimOfSeveralLeases(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := range int64(outbox.LeasesAtOnce + 2) {
		b.enqueue(v)
	}
	var leases []uuid.UUID
	for _, row := range b.list().Ready {
		leases = append(leases, b.lease(1, groups(row)...).id)
	}
	b.setTerm(2, "a")
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "select from weft_lease where batch = $1 for update", leases[1]); err != nil {
		t.Fatal(err)
	}
	one := outbox.Reclaimed{Owner: "a", Epoch: 1, Cause: outbox.CauseOlderEpoch, Rows: 1}
	for _, want := range []int{outbox.LeasesAtOnce, 1, 0} {
		if got := b.reclaimLease(2, 5); !slices.Equal(got, slices.Repeat([]outbox.Reclaimed{one}, want)) {
			t.Errorf("reclaimed %+v, want an event of each of %d leases", got, want)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.reclaimLease(2, 5); !slices.Equal(got, []outbox.Reclaimed{one}) {
		t.Errorf("reclaimed %+v of the one that was locked", got)
	}
}

// A lease with more events than one statement may take back is taken back in parts.
func TestReclaimLeaseInParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for v := range int64(5) {
		b.enqueue(v)
	}
	b.leaseAll()
	b.setTerm(2, "a")
	for _, want := range [][]int{{1, 1, 1, 1}, {1}, nil} {
		got, err := b.store.ReclaimLeases(t.Context(), outbox.ReclaimRequest{Epoch: 2, Limit: 1, MaxReclaims: 10})
		if err != nil {
			t.Fatal(err)
		}
		var rows []int
		for _, r := range got {
			if r.Owner != "a" || r.Epoch != 1 {
				t.Errorf("reclaimed %+v, want events of the older term", r)
			}
			rows = append(rows, r.Rows)
		}
		if !slices.Equal(rows, want) {
			t.Errorf("reclaimed %v events, want %v", rows, want)
		}
	}
	if n := b.count("reclaims = 1 and attempts = 1 and next_retry_at <= now()"); n != 5 {
		t.Errorf("%d events are due with one reclaim, want all 5", n)
	}
	if leases, audited := b.number("select count(*) from weft_lease"), b.number("select sum(count) from weft_audit where action = 'reclaim'"); leases != 0 || audited != 5 {
		t.Errorf("%d leases are left and %d events audited, want none and 5", leases, audited)
	}
}

// TestAttemptsStopAtTheMostOfTheirColumn: a row that somebody gave the highest number neither keeps a term from
// beginning, nor its entity from being settled.
func TestAttemptsStopAtTheMostOfTheirColumn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.exec("update search_outbox_events set attempts = 2147483647")
	b.leaseAll()
	b.setTerm(2, "a")
	if got := b.reclaimLease(2, 5); len(got) != 1 || got[0].Rows != 1 {
		t.Errorf("reclaimed %+v, want the row", got)
	}
	b.setTerm(1, "a")
	x := b.leaseAll()
	if b.settle(x, x.all(outbox.Failed)...); b.count("status = 'failed' and attempts = 2147483647") != 1 {
		t.Error("the row has not failed")
	}
}
