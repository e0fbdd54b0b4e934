package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// legacyOwner is the name of a worker that knows no epochs, as the one before weft.
const legacyOwner = "worker-1"

// stuckReclaim kills the leader between its lease and its settle: a proxy holds its bulk
// request back until the successor is done, and lets it arrive then. And it leaves a row as
// a worker of another kind does that was killed: claimed, without an epoch, its lease over.
func stuckReclaim() Scenario {
	return Scenario{
		Name:  "stuck_reclaim",
		About: "the leader is killed with SIGKILL with a batch in flight, and another worker has left a claim in the table whose lease is over",
		Shows: "lease and claim taken back with an audit of from whom and by whom, and the rows finished by the successor, who waits for no lease to end",
		Params: []Param{
			{"events", "5", "events that the leader has in flight"},
		},
		instances: pair("OUTBOX_RECLAIM_INTERVAL_SECONDS=0.5", "OUTBOX_LEASE_SECONDS=300"),
		run: func(ctx context.Context, r *run) error {
			n, err := r.count("events", 1, 1000)
			if err != nil {
				return err
			}
			a := r.member("a")
			if !r.without {
				a.Tap.Hold()
			}
			claimed, err := r.enqueue(ctx, upserts(n, "claimed")...)
			if err != nil {
				return err
			}
			if r.without {
				return r.become(ctx, claimed, "done")
			}
			if err := r.holds(ctx, a); err != nil {
				return err
			}
			if err := r.become(ctx, claimed, "processing"); err != nil {
				return err
			}
			stuck, err := r.rows(ctx)
			if err == nil {
				err = r.probe("claimed", stuck)
			}
			if err != nil {
				return err
			}
			leased, err := r.flights(ctx)
			if err == nil {
				err = r.probe("leases", leased)
			}
			if err != nil {
				return err
			}
			_, err = r.inject(ctx, "SIGKILL of a with its batch in flight", func(ctx context.Context) error {
				r.scrape(ctx, a)
				r.expectEnd(a)
				_, err := a.instance.Kill()
				return err
			}, nil)
			if err != nil {
				return err
			}
			if err := r.become(ctx, claimed, "done"); err != nil {
				return err
			}
			r.step("the request of a arrives, late")
			a.Tap.Release()
			return r.legacy(ctx)
		},
		verify: func(j *judge) {
			n := float64(len(j.Events("claimed")))
			var before []row
			if err := j.Probe("claimed", &before); err != nil {
				j.Check("what a had in flight was probed", verdict.ProbeFile("claimed"), "none", "rows", false)
			}
			held := 0
			for _, o := range before {
				if o.Status == "processing" && o.Owner != nil && *o.Owner == "a" {
					held++
				}
			}
			j.Number("rows that a had in flight and not settled", verdict.ProbeFile("claimed"), float64(held), n)
			j.endedBefore()
			j.GrewBy(n, "weft_reclaimed_events_total", "cause=older_epoch")
			j.GrewBy(1, "weft_reclaimed_events_total", "cause=lease_expired")
			j.GrewBy(0, "outbox_failed_total")
			j.reclaimAuditedBy("b", "a", outbox.CauseOlderEpoch, int(n))
			j.reclaimAuditedBy("b", legacyOwner, outbox.CauseLeaseExpired, 1)
			j.Logged(1, "event=reclaim.rows", "from_owner=a", "cause=older_epoch", "from_epoch=1", "by_epoch=2")
			j.Logged(1, "event=reclaim.rows", "from_owner="+legacyOwner, "cause=lease_expired")
			j.ended("", "done")
			j.ofSuccessor("b")
			for _, e := range j.Events("claimed")[:min(1, int(n))] {
				j.Number("spans of a for its event (it died with them)", verdict.SpansFile, float64(len(j.SpansOf(spanEvent, "wordloom.outbox_event_id="+e.ID.String(), "attempt=1"))), 0)
				j.Equal("attempts at its event", verdict.SpansFile, j.results(e), "ok(2)")
			}
			j.storesEqual()
		},
	}
}

// holds waits until a bulk request of a member is held back.
func (r *run) holds(ctx context.Context, m *member) error {
	return r.await(ctx, "bulk request of "+m.name, func(context.Context) error {
		if m.Tap.Held() == 0 {
			return errors.New("none has come")
		}
		return nil
	})
}

// legacy leaves a claim in the table as a killed worker of another kind does, and waits
// until its event is done.
func (r *run) legacy(ctx context.Context) error {
	key, version := newKey(), time.Now().UnixMicro()
	limited, cancel := context.WithTimeout(ctx, queryBound)
	defer cancel()
	e := verdict.Event{Entity: key.String(), Op: string(outbox.Upsert), Version: version, Role: "claim of another worker"}
	tx, err := r.pool.Begin(limited)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(limited) }()
	if _, err := tx.Exec(limited, upsertRow, key.Type, &key.ID, "claimed by a worker that is gone", version); err != nil {
		return fmt.Errorf("write row: %w", err)
	}
	if err := tx.QueryRow(limited, `
insert into `+searchOutbox+` (id, entity_type, entity_id, op, event_version, created_at, updated_at, status, owner, lease_until, processing_started_at)
values (gen_random_uuid(), $1, $2, 'upsert', $3, clock_timestamp(), clock_timestamp(), 'processing', $4, clock_timestamp() - interval '1 second', clock_timestamp() - interval '31 seconds')
returning id`, key.Type, &key.ID, version, legacyOwner).Scan((*[16]byte)(&e.ID)); err != nil {
		return fmt.Errorf("write claimed row: %w", err)
	}
	if err := tx.Commit(limited); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	r.note(e)
	r.mark(verdict.Fault, "the lease of a claim of %s has run out", legacyOwner)
	return r.become(ctx, []verdict.Event{e}, "done")
}

// endedBefore asserts that the successor has ended the lease of the killed leader, and
// settled its events, long before it would have run out.
func (j *judge) endedBefore() {
	var leased []flight
	if err := j.Probe("leases", &leased); err != nil || len(leased) == 0 {
		j.Check("the lease of a was probed", verdict.ProbeFile("leases"), "none", "a lease", false)
		return
	}
	lasted, mine := leased[0], map[uuid.UUID]bool{}
	for _, l := range leased {
		for _, id := range l.Events {
			mine[id] = true
		}
	}
	j.Equal("who had leased them", verdict.ProbeFile("leases"), fmt.Sprintf("%s, epoch %d", lasted.Owner, lasted.Epoch), "a, epoch 1")
	reclaimed, early := 0, 0
	log := j.history()
	for i := range log.Changes {
		switch c := &log.Changes[i]; {
		case !mine[uuidOf(c.Event)]:
		case c.Reclaim && c.By == "b" && c.To == history.Pending:
			reclaimed++
		case c.Done() && c.At.Before(lasted.LeaseUntil):
			early++
		}
	}
	j.Number("of its events, those that b took back", verdict.ProbeFile("history"), float64(reclaimed), float64(len(mine)))
	j.Number("… and that were done before the lease of a would have run out", verdict.ProbeFile("history"), float64(early), float64(len(mine)))
}

func (j *judge) reclaimAuditedBy(by, owner string, cause outbox.Cause, count int) {
	seen := "none"
	for _, a := range j.audits("reclaim") {
		if a.FromOwner != nil && *a.FromOwner == owner {
			seen = fmt.Sprintf("%d rows by %s: %s", a.Count, a.Actor, a.Why)
		}
	}
	j.Equal("audit of what was taken back from "+owner, verdict.ProbeFile("audit"), seen, fmt.Sprintf("%d rows by %s: %s", count, by, cause))
}

// ofSuccessor asserts that all events were settled by an instance.
func (j *judge) ofSuccessor(name string) {
	n := 0
	log := j.history()
	for _, e := range j.Recipe.Events {
		for i := range log.Changes {
			if c := &log.Changes[i]; uuidOf(c.Event) == e.ID && c.To == "done" && c.Owner == name && c.Settles() {
				n++
			}
		}
	}
	j.Number("events settled by "+name, verdict.ProbeFile("history"), float64(n), float64(len(j.Recipe.Events)))
}
