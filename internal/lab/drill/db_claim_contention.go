package drill

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/outbox"
)

// contention says when each obstacle began and ended, by this machine's clock.
type contention struct {
	RowsFrom, RowsTo   time.Time // another session held the locks of rows
	LeaseFrom, LeaseTo time.Time // another session held a lock on the table of leases
	HeldFrom, HeldTo   time.Time // Elasticsearch kept a bulk request
	RivalFrom, RivalTo time.Time // the leader was not ready, because another worker claimed rows
	Taken              int       // rows that the other worker claimed under the leader's lease
	Beside             int       // other events that were done while rows were locked
	Flying             int       // events that were in flight while the other worker claimed rows
}

const (
	// dueIn is when the rows become due that another session locks first.
	dueIn = 3 * time.Second
	// rowsFor is how long they stay locked after that: three pauses of the leader's, each
	// twice as long as the one before, begin in it.
	rowsFor = 4 * time.Second
	// firstPause is the leader's first one: OUTBOX_BASE_BACKOFF_SECONDS.
	firstPause = 500 * time.Millisecond
	// leaseFor is how long nobody can write a lease.
	leaseFor = 3 * time.Second
	heldFor  = 800 * time.Millisecond

	rival      = "worker-2" // which ends when the leader has seen it
	rivalLease = "3 seconds"
)

// dbClaimContention has four parts. Another session locks the source table: the leader gives the
// lock a time, and retries the events with reason db_contention. Another session locks rows: the leader projects the
// events, cannot settle them, and delays their entities. Another session locks the table of
// leases: the lease takes long. Elasticsearch is slow: the processing takes long, and another
// worker claims the rows; the leader leases nothing until that worker has stopped.
func dbClaimContention() Scenario {
	return Scenario{
		Name: "db_claim_contention", runbooks: []string{"lag-growing", "stuck-processing"},
		About:     "another session locks the source table, rows that are due, and then the table of leases; then, while Elasticsearch is slow, another worker claims rows that are in flight",
		Shows:     "retries with reason db_contention, looks that find nothing, entities held back with pauses that double, settles that are skipped and counted, a leader that leases nothing beside another worker, and where the time goes: lease or processing",
		Params:    []Param{{"events", "5", "events of each part"}},
		Slow:      true,
		instances: one("OUTBOX_RECLAIM_INTERVAL_SECONDS=0.2", "OUTBOX_BASE_BACKOFF_SECONDS=0.5"),
		run: func(r *run) {
			n := r.count("events", 1, 1000)
			var c contention
			r.lockedSource(n)
			r.lockedRows(n, &c)
			r.lockedLeases(n, &c)
			r.rivalClaims(n, &c)
			r.probe("contention", c)
		},
		verify: func(j *judge) {
			c := verdict.Probed[contention](j.Judge, "contention")
			j.sourceWasLocked()
			j.rowsWereLocked(&c)
			j.leasesWereLocked(&c)
			j.rivalClaimed(&c)
			j.GrewBy(0, "outbox_failed_total")
			j.ended("", "done")
			j.storesEqual()
		},
	}
}

// lockedSource lets another session lock the source table, as a migration does that waits
// behind a long query, until the leader has given up waiting once.
func (r *run) lockedSource(n int) {
	events := r.enqueueLater(2*time.Second, upserts(n, "source locked")...)
	if r.lockTable("the source table", "search_index in access exclusive mode") {
		r.awaitMetric(float64(n), "outbox_retry_scheduled_total", "reason=db_contention")
		r.heal()
	}
	r.become(events, "done")
}

func (j *judge) sourceWasLocked() {
	locked := j.Events("source locked")
	j.Least("outbox_retry_scheduled_total{reason=db_contention} grew by", verdict.MetricsDir,
		j.Delta("outbox_retry_scheduled_total", "reason=db_contention"), float64(len(locked)))
	for _, e := range locked {
		j.Logged(1, "event=projection.event", "event_id="+e.ID.String(), "result=retry", "reason=db_contention")
	}
	j.Spans(spanBatch, "result=retry", "reason=db_contention")
	j.Grew("weft_looks_total", "found=none")
}

// lockedRows lets another session hold rows from before they are due.
func (r *run) lockedRows(n int, c *contention) {
	events := r.enqueueLater(dueIn, upserts(n, "locked")...)
	if r.stranger("row locks of another session on events that become due", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `select from `+searchOutbox+` where id = any ($1) and status = 'pending' for update`, idsOf(events))
		return affected(tag, err, n)
	}) {
		c.RowsFrom = time.Now()
		r.Pause(dueIn)
		c.Beside = len(r.settled(upserts(n, "beside the locked ones")...))
		r.Pause(time.Until(c.RowsFrom.Add(dueIn + rowsFor)))
		r.awaitMetric(float64(3*n), "outbox_owner_mismatch_skips_total") // later, on a machine that stood still
		c.RowsTo = time.Now()
		r.heal()
	}
	r.become(events, "done")
}

// affected returns an error unless a statement has met n rows.
func affected(tag pgconn.CommandTag, err error, n int) error {
	return rig.Want(err, tag.RowsAffected() == int64(n), "%d of %d rows were pending", tag.RowsAffected(), n)
}

// enqueueLater writes events that become due after a delay.
func (r *run) enqueueLater(delay time.Duration, changes ...change) []verdict.Event {
	return r.enqueueAnd(func(ctx context.Context, tx pgx.Tx, events []verdict.Event) error {
		_, err := tx.Exec(ctx, `update `+searchOutbox+` set next_retry_at = now() + $2 * interval '1 second' where id = any ($1)`,
			idsOf(events), delay.Seconds())
		return err
	}, changes...)
}

// lockTable lets another session lock a table, until the faults are undone.
func (r *run) lockTable(what, table string) bool {
	return r.stranger("a lock of another session on "+what, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "lock table "+table)
		return err
	})
}

func (r *run) lockLeases() bool {
	return r.lockTable("the table of leases", "weft_lease in share mode")
}

// stranger lets another session hold what lock takes, until the faults are undone.
func (r *run) stranger(what string, lock func(context.Context, pgx.Tx) error) bool {
	var tx pgx.Tx
	return r.inject(what, func(ctx context.Context) (err error) {
		if tx, err = r.Pool.Begin(ctx); err != nil {
			return err
		}
		return lock(ctx, tx)
	}, func(ctx context.Context) error {
		if tx == nil {
			return nil
		}
		return tx.Rollback(ctx)
	})
}

func (j *judge) rowsWereLocked(c *contention) {
	locked := j.Events("locked")
	for _, e := range locked {
		j.pausesDoubled(e)
	}
	j.Check("the locks lasted", verdict.ProbeFile("contention"), c.RowsTo.Sub(c.RowsFrom).Round(time.Millisecond).String(), "at least "+(dueIn+rowsFor).String(), c.RowsTo.Sub(c.RowsFrom) >= dueIn+rowsFor)
	j.atLeast("events of other entities that were done meanwhile", "contention", c.Beside, max(1, len(locked)))
	j.Least("outbox_owner_mismatch_skips_total grew by", verdict.MetricsDir, j.Delta("outbox_owner_mismatch_skips_total"), float64(3*len(locked)))
	j.Spans(spanBatch, "mismatch_count="+strconv.Itoa(len(locked)))
	early := 0
	for _, e := range locked {
		early += count(j.SpansOf(spanEvent, eventID+e.ID.String(), "result=ok"), func(s collector.Span) bool { return s.End.Before(c.RowsTo) })
	}
	j.Number("locked events that counted as done before their locks were gone", verdict.SpansFile, float64(early), 0)
}

// pausesDoubled asserts pauses of at least 0.5 s, 1 s, 2 s between the attempts to settle an
// event: a loop without them would leave hundreds of lines.
func (j *judge) pausesDoubled(e verdict.Event) {
	_, entity, _ := strings.Cut(e.Entity, ":")
	var at []time.Time
	for _, l := range j.Find("event=outbox.settle_left", "level=error", "entity_id="+entity) {
		if !l.At.IsZero() && strings.Contains(l.Get("error"), "holds the lock") {
			at = append(at, l.At)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	pauses := make([]string, 0, 3)
	grow := len(at) >= 3 && len(at) <= 6
	for i := 1; i < len(at); i++ {
		pause := at[i].Sub(at[i-1])
		pauses = append(pauses, pause.Round(10*time.Millisecond).String())
		grow = grow && pause >= firstPause<<(i-1)*9/10 // two clocks measure it
	}
	j.Check("pauses between the attempts to settle "+e.ID.String()+" while its row was locked", verdict.LogDir, strings.Join(pauses, ", "),
		"two or more, from "+firstPause.String()+" doubling, of 5 at most", grow)
}

// lockedLeases lets another session lock the table of leases, as a VACUUM FULL of it would.
func (r *run) lockedLeases(n int, c *contention) {
	locked := r.lockLeases()
	c.LeaseFrom = time.Now()
	events := r.enqueue(upserts(n, "leased late")...)
	if locked {
		r.await("a lease that waits", func(ctx context.Context) error {
			return r.Holds(ctx, `select exists (select from pg_locks where not granted and relation = 'weft_lease'::regclass)`)
		})
		r.Pause(leaseFor)
		c.LeaseTo = time.Now()
		r.heal()
	}
	r.become(events, "done")
}

func (j *judge) leasesWereLocked(c *contention) {
	early := 0
	for _, e := range j.Events("leased late") {
		early += count(j.SpansOf(spanEvent, eventID+e.ID.String()), func(s collector.Span) bool { return s.Start.Before(c.LeaseTo) })
	}
	claims := longest(within(j.SpansOf(spanClaim), c.LeaseFrom, c.LeaseTo))
	j.Check("while no lease could be written: longest claim", verdict.SpansFile, claims.Round(time.Millisecond).String(), "at least "+(leaseFor/2).String(), claims >= leaseFor/2)
	j.Number("… events whose processing began before it was: the time went into the lease", verdict.SpansFile, float64(early), 0)
}

// rivalClaims lets another worker claim rows that are in flight, while Elasticsearch is slow.
func (r *run) rivalClaims(n int, c *contention) {
	m := r.Member("a")
	if r.without {
		c.HeldFrom = time.Now()
		r.settled(upserts(n, "taken over")...)
		return
	}
	m.Tap.Hold()
	defer m.Tap.Release()
	c.HeldFrom = time.Now()
	events := r.enqueue(upserts(n, "taken over")...)
	r.become(events, "processing")
	flying := time.Now()
	r.awaitMetric(float64(n), "outbox_inflight_events")
	r.inject("another worker claims rows that are in flight", func(ctx context.Context) error {
		tag, err := r.Pool.Exec(ctx, `
update `+searchOutbox+`
set status = 'processing', owner = $2, epoch = null, lease_until = clock_timestamp() + interval '1 hour',
    processing_started_at = clock_timestamp(), updated_at = clock_timestamp()
where id = any ($1) and status = 'pending'`, idsOf(events), rival)
		c.Taken = int(tag.RowsAffected())
		return affected(tag, err, n)
	}, nil)
	r.Pause(time.Until(flying.Add(heldFor)))
	c.HeldTo = time.Now()
	m.Tap.Release()
	r.awaitNone("end of the batch in flight", `select count(*) from weft_lease where table_name = $1`, searchOutbox)
	r.awaitReadiness(m, http.StatusServiceUnavailable, "ready_rival")
	rig.Try(r.Pool.Exec(r.Ctx, `update `+searchOutbox+` set lease_until = clock_timestamp() + interval '`+rivalLease+`' where owner = $1`, rival)).Must(r)
	c.RivalFrom = time.Now()
	beside := r.enqueue(upserts(n, "beside another worker")...)
	r.Pause(time.Second)
	for _, f := range r.flights() {
		c.Flying += len(f.Events)
	}
	c.RivalTo = time.Now()
	r.become(append(events, beside...), "done")
	r.awaitReadiness(m, http.StatusOK, "ready_alone")
}

func (j *judge) rivalClaimed(c *contention) {
	taken := j.Events("taken over")
	n, changed := len(taken), 0
	claims, batches := longest(within(j.SpansOf(spanClaim), c.HeldFrom, c.HeldTo)), longest(within(j.SpansOf(spanBatch), c.HeldFrom, c.HeldTo))
	j.Check("while Elasticsearch was slow: longest claim, longest batch: the time went into the processing", verdict.SpansFile,
		fmt.Sprintf("%v, %v", claims.Round(time.Millisecond), batches.Round(time.Millisecond)),
		fmt.Sprintf("a batch of at least %v, and no claim", heldFor), batches >= heldFor && claims < heldFor)
	j.Least("most events in flight at once", verdict.SeriesFile, j.Most("outbox_inflight_events"), float64(n))
	for _, e := range taken {
		changed += count(j.Find("event=outbox.settle_left", "event_id="+e.ID.String()), func(l verdict.Line) bool {
			return strings.Contains(l.Get("error"), "was changed")
		})
	}
	j.Number("events that were claimed under the leader's lease, and left to the other worker", verdict.LogDir, float64(changed), float64(n))
	j.Logged(1, "event=outbox.foreign", "level=error")
	j.Logged(1, "event=outbox.foreign", "level=info")
	j.ready("while another worker claimed rows, readiness", "ready_rival", http.StatusServiceUnavailable)
	why := j.why("ready_rival", "postgres")
	j.Check("… it says why", verdict.ProbeFile("ready_rival"), why, "another worker", strings.Contains(why, "another worker"))
	j.counted("events in flight meanwhile", "contention", c.Flying, 0)
	j.Number("claims meanwhile", verdict.SpansFile, float64(len(within(j.SpansOf(spanClaim), c.RivalFrom, c.RivalTo))), 0)
	j.ready("afterwards, readiness", "ready_alone", http.StatusOK)
	j.GrewBy(float64(n), "weft_reclaimed_events_total", "cause=lease_expired")
	j.reclaimAuditedBy("a", rival, outbox.CauseLeaseExpired, n)
}

// within returns the spans that began in a time.
func within(spans []collector.Span, from, to time.Time) []collector.Span {
	return slices.DeleteFunc(slices.Clone(spans), func(s collector.Span) bool { return s.Start.Before(from) || !s.Start.Before(to) })
}

func longest(spans []collector.Span) (d time.Duration) {
	for _, s := range spans {
		d = max(d, s.End.Sub(s.Start))
	}
	return d
}
