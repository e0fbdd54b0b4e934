package drill

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/lab/collector"
	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
	"github.com/samuelhu324-dev/weft/outbox"
)

// contention is when what was in the way, by this machine's clock.
type contention struct {
	LockedFrom, LockedTo time.Time // row locks of a stranger
	HeldFrom, HeldTo     time.Time // Elasticsearch kept a bulk request
	Taken                int       // rows that another claimer took meanwhile
}

const (
	// dueIn is when the rows become due that the stranger locks first.
	dueIn = 3 * time.Second
	// lockedFor is how long they stay locked after that.
	lockedFor = 1500 * time.Millisecond
	heldFor   = 800 * time.Millisecond

	rival      = "worker-2"
	rivalLease = "3 seconds"
)

// dbClaimContention has two parts. First a stranger holds row locks on events that are due:
// time is lost in the claim. Then Elasticsearch is slow, and a claimer that does not look at
// the status takes the rows away: time is lost in the processing, and the settle finds
// another owner.
func dbClaimContention() Scenario {
	return Scenario{
		Name:  "db_claim_contention",
		About: "a stranger holds the locks of due rows; then, while Elasticsearch is slow, another claimer takes claimed rows over",
		Shows: "settles that another owner's rows are skipped in and counted, claims that say what blocks them, and where the time goes: claim or processing",
		Params: []Param{
			{"events", "5", "events of each part"},
		},
		Slow:      true,
		instances: one("OUTBOX_RECLAIM_INTERVAL_SECONDS=0.2"),
		run: func(ctx context.Context, r *run) error {
			n, err := r.count("events", 1, 1000)
			if err != nil {
				return err
			}
			var c contention
			if err := r.lockedRows(ctx, n, &c); err != nil {
				return err
			}
			if err := r.takenRows(ctx, n, &c); err != nil {
				return err
			}
			return r.probe("contention", c)
		},
		verify: func(j *judge) {
			n := float64(len(j.events("taken over")))
			var c contention
			if err := j.Probe("contention", &c); err != nil {
				j.check("the contention was probed", evidence.ProbeFile("contention"), err.Error(), "times", false)
			}
			j.spans(spanClaim, "result=partial")
			locked := within(j.SpansOf(spanClaim, "result=partial"), c.LockedFrom, c.LockedTo)
			j.least("… while the stranger held the locks", evidence.SpansFile, float64(len(locked)), 1)
			early := 0
			for _, e := range j.events("locked") {
				for _, s := range j.SpansOf(spanEvent, "wordloom.outbox_event_id="+e.ID.String()) {
					if s.Start.Before(c.LockedTo) {
						early++
					}
				}
			}
			j.number("locked events whose processing began before the locks were gone: the time went into the claim", evidence.SpansFile, float64(early), 0)
			j.number("outbox_owner_mismatch_skips_total grew by", metricFiles, j.Delta("outbox_owner_mismatch_skips_total"), n)
			j.spans(spanBatch, "mismatch_count="+strconv.Itoa(int(n)))
			j.least("most events in flight at once", evidence.SeriesFile, j.most("outbox_inflight_events"), n)
			claims, batches := longest(within(j.SpansOf(spanClaim), c.HeldFrom, c.HeldTo)), longest(within(j.SpansOf(spanBatch), c.HeldFrom, c.HeldTo))
			j.check("while Elasticsearch was slow: longest claim, longest batch: the time went into the processing", evidence.SpansFile,
				fmt.Sprintf("%v, %v", claims.Round(time.Millisecond), batches.Round(time.Millisecond)),
				fmt.Sprintf("a batch of at least %v, and no claim", heldFor), batches >= heldFor && claims < heldFor)
			j.grewBy(n, "weft_reclaimed_events_total", "cause=lease_expired")
			j.reclaimAuditedBy("a", rival, outbox.CauseLeaseExpired, int(n))
			j.grewBy(0, "outbox_failed_total")
			j.ended("locked", "done")
			j.ended("taken over", "done")
			j.storesEqual()
		},
	}
}

// lockedRows lets a stranger hold rows from before they are due.
func (r *run) lockedRows(ctx context.Context, n int, c *contention) error {
	later := func(ctx context.Context, tx pgx.Tx, events []evidence.Event) error {
		_, err := tx.Exec(ctx, `update `+searchOutbox+` set next_retry_at = clock_timestamp() + $2 * interval '1 second' where id = any ($1)`,
			idsOf(events), dueIn.Seconds())
		return err
	}
	events, err := r.enqueueAnd(ctx, later, upserts(n, "locked")...)
	if err != nil {
		return err
	}
	stranger, err := r.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin as a stranger: %w", err)
	}
	release := func(ctx context.Context) error {
		if err := stranger.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			return err
		}
		return nil
	}
	done, err := r.inject(ctx, "row locks of a stranger on events that are due", func(ctx context.Context) error {
		tag, err := stranger.Exec(ctx, `select from `+searchOutbox+` where id = any ($1) and status = 'pending' for update`, idsOf(events))
		if err == nil && tag.RowsAffected() != int64(n) {
			err = fmt.Errorf("%d of %d rows were still pending", tag.RowsAffected(), n)
		}
		return err
	}, release)
	if err != nil {
		return errors.Join(err, release(context.WithoutCancel(ctx)))
	}
	if done {
		c.LockedFrom = time.Now()
		if err := await.Sleep(ctx, dueIn+lockedFor); err != nil {
			return err
		}
		c.LockedTo = time.Now()
		if err := r.heal(ctx); err != nil {
			return err
		}
	} else if err := release(ctx); err != nil {
		return err
	}
	return r.become(ctx, events, "done")
}

// takenRows lets another claimer take rows that are being processed.
func (r *run) takenRows(ctx context.Context, n int, c *contention) error {
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
	_, err = r.inject(ctx, "another claimer takes claimed rows over", func(ctx context.Context) error {
		tag, err := r.pool.Exec(ctx, `
update `+searchOutbox+`
set owner = $2, epoch = null, lease_until = clock_timestamp() + interval '`+rivalLease+`', processing_started_at = clock_timestamp()
where id = any ($1) and status = 'processing'`, idsOf(events), rival)
		c.Taken = int(tag.RowsAffected())
		if err == nil && c.Taken != n {
			err = fmt.Errorf("%d of %d rows were being processed", c.Taken, n)
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
	return r.become(ctx, events, "done")
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
