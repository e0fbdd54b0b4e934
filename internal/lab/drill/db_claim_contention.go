package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/outbox"
)

// contention is when what was in the way, by this machine's clock.
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

	rival      = "worker-2"
	rivalLease = "3 seconds"
)

// dbClaimContention has three parts. Another session holds the locks of rows: the leader
// carries the events, cannot settle them, and holds their entities back. Another session
// locks the table of leases: time is lost in the lease. Elasticsearch is slow: time is lost
// in the processing; meanwhile another worker claims the rows, and the leader leases nothing
// while it does.
func dbClaimContention() Scenario {
	return Scenario{
		Name:  "db_claim_contention",
		About: "another session locks rows that are due, and then the table of leases; then, while Elasticsearch is slow, another worker claims rows that are in flight",
		Shows: "entities held back with pauses that double, settles that are skipped and counted, a leader that leases nothing beside another worker, and where the time goes: lease or processing",
		Params: []Param{
			{"events", "5", "events of each part"},
		},
		Slow:      true,
		instances: one("OUTBOX_RECLAIM_INTERVAL_SECONDS=0.2", "OUTBOX_BASE_BACKOFF_SECONDS=0.5"),
		run: func(ctx context.Context, r *run) error {
			n, err := r.count("events", 1, 1000)
			if err != nil {
				return err
			}
			var c contention
			for _, part := range []func(context.Context, int, *contention) error{r.lockedRows, r.lockedLeases, r.rivalClaims} {
				if err := part(ctx, n, &c); err != nil {
					return err
				}
			}
			return r.probe("contention", c)
		},
		verify: func(j *judge) {
			var c contention
			if err := j.Probe("contention", &c); err != nil {
				j.Check("the contention was probed", verdict.ProbeFile("contention"), err.Error(), "times", false)
			}
			j.rowsWereLocked(&c)
			j.leasesWereLocked(&c)
			j.rivalClaimed(&c)
			j.GrewBy(0, "outbox_failed_total")
			j.ended("", "done")
			j.storesEqual()
		},
	}
}

// lockedRows lets another session hold rows from before they are due.
func (r *run) lockedRows(ctx context.Context, n int, c *contention) error {
	later := func(ctx context.Context, tx pgx.Tx, events []verdict.Event) error {
		_, err := tx.Exec(ctx, `update `+searchOutbox+` set next_retry_at = now() + $2 * interval '1 second' where id = any ($1)`,
			idsOf(events), dueIn.Seconds())
		return err
	}
	events, err := r.enqueueAnd(ctx, later, upserts(n, "locked")...)
	if err != nil {
		return err
	}
	done, err := r.stranger(ctx, "row locks of another session on events that become due", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `select from `+searchOutbox+` where id = any ($1) and status = 'pending' for update`, idsOf(events))
		if err == nil && tag.RowsAffected() != int64(n) {
			err = fmt.Errorf("%d of %d rows were still pending", tag.RowsAffected(), n)
		}
		return err
	})
	if err != nil {
		return err
	}
	if done {
		c.RowsFrom = time.Now()
		if err := await.Sleep(ctx, dueIn); err != nil {
			return err
		}
		beside, err := r.settled(ctx, upserts(n, "beside the locked ones")...)
		if err != nil {
			return err
		}
		c.Beside = len(beside)
		if err := await.Sleep(ctx, time.Until(c.RowsFrom.Add(dueIn+rowsFor))); err != nil {
			return err
		}
		c.RowsTo = time.Now()
		if err := r.heal(ctx); err != nil {
			return err
		}
	}
	return r.become(ctx, events, "done")
}

// stranger lets another session hold what lock takes, until [run.heal].
func (r *run) stranger(ctx context.Context, what string, lock func(context.Context, pgx.Tx) error) (bool, error) {
	if r.without {
		return r.inject(ctx, what, nil, nil)
	}
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("begin as another session: %w", err)
	}
	release := func(ctx context.Context) error {
		if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			return err
		}
		return nil
	}
	done, err := r.inject(ctx, what, func(ctx context.Context) error { return lock(ctx, tx) }, release)
	if err != nil {
		err = errors.Join(err, release(context.WithoutCancel(ctx)))
	}
	return done, err
}

func (j *judge) rowsWereLocked(c *contention) {
	locked := j.Events("locked")
	// The pauses are 0.5 s, 1 s, 2 s at least: a loop without them would leave hundreds of lines.
	for _, e := range locked {
		_, entity, _ := strings.Cut(e.Entity, ":")
		var at []time.Time
		for _, l := range j.Find("event=outbox.settle_left", "level=error", "entity_id="+entity) {
			if t, err := time.Parse(time.RFC3339Nano, l.Get("ts")); err == nil && strings.Contains(l.Get("error"), "holds the lock") {
				at = append(at, t)
			}
		}
		slices.SortFunc(at, time.Time.Compare)
		pauses := make([]string, 0, 3)
		grow := len(at) >= 3
		for i := 1; i < len(at); i++ {
			pause := at[i].Sub(at[i-1])
			pauses = append(pauses, pause.Round(10*time.Millisecond).String())
			grow = grow && pause >= firstPause<<(i-1)*9/10 // two clocks measure it
		}
		j.Check("pauses between the attempts to settle "+e.ID.String()+" while its row was locked", verdict.LogDir, strings.Join(pauses, ", "),
			"two or more, from "+firstPause.String()+" doubling, of 5 at most", grow && len(at) <= 6)
	}
	j.Check("the locks lasted", verdict.ProbeFile("contention"), c.RowsTo.Sub(c.RowsFrom).Round(time.Millisecond).String(), "at least "+(dueIn+rowsFor).String(), c.RowsTo.Sub(c.RowsFrom) >= dueIn+rowsFor)
	j.Least("events of other entities that were done meanwhile", verdict.ProbeFile("contention"), float64(c.Beside), float64(max(1, len(locked))))
	j.Least("outbox_owner_mismatch_skips_total grew by", verdict.MetricsDir, j.Delta("outbox_owner_mismatch_skips_total"), float64(3*len(locked)))
	j.Spans(spanBatch, "mismatch_count="+strconv.Itoa(len(locked)))
	early := 0
	for _, e := range locked {
		for _, s := range j.SpansOf(spanEvent, "wordloom.outbox_event_id="+e.ID.String(), "result=ok") {
			if s.End.Before(c.RowsTo) {
				early++
			}
		}
	}
	j.Number("locked events that counted as done before their locks were gone", verdict.SpansFile, float64(early), 0)
}

// lockedLeases lets another session lock the table of leases, as a VACUUM FULL of it would.
func (r *run) lockedLeases(ctx context.Context, n int, c *contention) error {
	done, err := r.stranger(ctx, "a lock of another session on the table of leases", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `lock table weft_lease in share mode`)
		return err
	})
	if err != nil {
		return err
	}
	c.LeaseFrom = time.Now()
	events, err := r.enqueue(ctx, upserts(n, "leased late")...)
	if err != nil {
		return err
	}
	if done {
		if err := await.Sleep(ctx, leaseFor); err != nil {
			return err
		}
		c.LeaseTo = time.Now()
		if err := r.heal(ctx); err != nil {
			return err
		}
	}
	return r.become(ctx, events, "done")
}

func (j *judge) leasesWereLocked(c *contention) {
	early := 0
	for _, e := range j.Events("leased late") {
		for _, s := range j.SpansOf(spanEvent, "wordloom.outbox_event_id="+e.ID.String()) {
			if s.Start.Before(c.LeaseTo) {
				early++
			}
		}
	}
	claims := longest(within(j.SpansOf(spanClaim), c.LeaseFrom, c.LeaseTo))
	j.Check("while no lease could be written: longest claim", verdict.SpansFile, claims.Round(time.Millisecond).String(), "at least "+(leaseFor/2).String(), claims >= leaseFor/2)
	j.Number("… events whose processing began before it was: the time went into the lease", verdict.SpansFile, float64(early), 0)
}

// rivalClaims lets another worker claim rows that are in flight, while Elasticsearch is slow.
func (r *run) rivalClaims(ctx context.Context, n int, c *contention) error {
	m := r.member("a")
	if !r.without {
		m.Tap.Hold()
		defer m.Tap.Release()
	}
	c.HeldFrom = time.Now()
	events, err := r.enqueue(ctx, upserts(n, "taken over")...)
	if err != nil {
		return err
	}
	if r.without {
		return r.become(ctx, events, "done")
	}
	if err := r.become(ctx, events, "processing"); err != nil {
		return err
	}
	if err := r.await(ctx, "sight of the events in flight", func(context.Context) error {
		if got := r.now("outbox_inflight_events"); got < float64(n) {
			return fmt.Errorf("%v are", got)
		}
		return nil
	}); err != nil {
		return err
	}
	_, err = r.inject(ctx, "another worker claims rows that are in flight", func(ctx context.Context) error {
		tag, err := r.pool.Exec(ctx, `
update `+searchOutbox+`
set status = 'processing', owner = $2, epoch = null, lease_until = clock_timestamp() + interval '`+rivalLease+`',
    processing_started_at = clock_timestamp(), updated_at = clock_timestamp()
where id = any ($1) and status = 'pending'`, idsOf(events), rival)
		c.Taken = int(tag.RowsAffected())
		if err == nil && c.Taken != n {
			err = fmt.Errorf("%d of %d rows were pending", c.Taken, n)
		}
		return err
	}, nil)
	if err != nil {
		return err
	}
	if err := await.Sleep(ctx, time.Until(c.HeldFrom.Add(heldFor+100*time.Millisecond))); err != nil {
		return err
	}
	c.HeldTo = time.Now()
	m.Tap.Release()
	if err := r.await(ctx, "end of the batch in flight", func(ctx context.Context) error {
		flights, err := r.flights(ctx)
		if err == nil && len(flights) > 0 {
			err = fmt.Errorf("%d batches in flight", len(flights))
		}
		return err
	}); err != nil {
		return err
	}
	if err := r.saysReady(ctx, m, http.StatusServiceUnavailable, "ready_rival"); err != nil {
		return err
	}
	c.RivalFrom = time.Now()
	beside, err := r.enqueue(ctx, upserts(n, "beside another worker")...)
	if err != nil {
		return err
	}
	if err := await.Sleep(ctx, time.Second); err != nil {
		return err
	}
	flights, err := r.flights(ctx)
	if err != nil {
		return fmt.Errorf("probe leases: %w", err)
	}
	for _, f := range flights {
		c.Flying += len(f.Events)
	}
	c.RivalTo = time.Now()
	if err := r.become(ctx, append(events, beside...), "done"); err != nil {
		return err
	}
	return r.saysReady(ctx, m, http.StatusOK, "ready_alone")
}

func (j *judge) rivalClaimed(c *contention) {
	n := len(j.Events("taken over"))
	claims, batches := longest(within(j.SpansOf(spanClaim), c.HeldFrom, c.HeldTo)), longest(within(j.SpansOf(spanBatch), c.HeldFrom, c.HeldTo))
	j.Check("while Elasticsearch was slow: longest claim, longest batch: the time went into the processing", verdict.SpansFile,
		fmt.Sprintf("%v, %v", claims.Round(time.Millisecond), batches.Round(time.Millisecond)),
		fmt.Sprintf("a batch of at least %v, and no claim", heldFor), batches >= heldFor && claims < heldFor)
	j.Least("most events in flight at once", verdict.SeriesFile, j.Most("outbox_inflight_events"), float64(n))
	changed := 0
	for _, e := range j.Events("taken over") {
		for _, l := range j.Find("event=outbox.settle_left", "event_id="+e.ID.String()) {
			if strings.Contains(l.Get("error"), "was changed") {
				changed++
			}
		}
	}
	j.Number("events that were claimed under the leader's lease, and left to the other worker", verdict.LogDir, float64(changed), float64(n))
	j.Logged(1, "event=outbox.foreign", "level=error")
	j.Logged(1, "event=outbox.foreign", "level=info")
	j.ready("while another worker claimed rows, readiness", "ready_rival", http.StatusServiceUnavailable)
	var seen readiness
	_ = j.Probe("ready_rival", &seen)
	var body struct {
		Dependencies map[string]struct{ Error string }
	}
	_ = json.Unmarshal(seen.Body, &body)
	why := body.Dependencies["postgres"].Error
	j.Check("… it says why", verdict.ProbeFile("ready_rival"), why, "another worker", strings.Contains(why, "another worker"))
	j.Number("events in flight meanwhile", verdict.ProbeFile("contention"), float64(c.Flying), 0)
	j.Number("claims meanwhile", verdict.SpansFile, float64(len(within(j.SpansOf(spanClaim), c.RivalFrom, c.RivalTo))), 0)
	j.ready("afterwards, readiness", "ready_alone", http.StatusOK)
	j.GrewBy(float64(n), "weft_reclaimed_events_total", "cause=lease_expired")
	j.reclaimAuditedBy("a", rival, outbox.CauseLeaseExpired, n)
}

// upserts are changes of n new entities.
func upserts(n int, role string) []change {
	out := make([]change, n)
	for i := range out {
		out[i] = change{key: newKey(), op: outbox.Upsert, role: role}
	}
	return out
}

// within returns the spans that began in a time.
func within(spans []collector.Span, from, to time.Time) (out []collector.Span) {
	for _, s := range spans {
		if !s.Start.Before(from) && s.Start.Before(to) {
			out = append(out, s)
		}
	}
	return out
}

func longest(spans []collector.Span) (d time.Duration) {
	for _, s := range spans {
		d = max(d, s.End.Sub(s.Start))
	}
	return d
}
