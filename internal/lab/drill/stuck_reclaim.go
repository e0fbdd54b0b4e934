package drill

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
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
		Name: "stuck_reclaim", runbooks: []string{"stuck-processing"},
		About:     "the leader is killed with SIGKILL with a batch in flight, and another worker has left a claim in the table whose lease is over",
		Shows:     "lease and claim taken back with an audit of from whom and by whom, and the rows finished by the successor, who waits for no lease to end",
		Params:    []Param{{"events", "5", "events that the leader has in flight"}},
		instances: pair("OUTBOX_RECLAIM_INTERVAL_SECONDS=0.5", "OUTBOX_LEASE_SECONDS=300"),
		run: func(r *run) {
			n, a := r.count("events", 1, 1000), r.Member("a")
			if r.without {
				r.settled(upserts(n, "claimed")...)
				return
			}
			a.Tap.Hold()
			claimed := r.enqueue(upserts(n, "claimed")...)
			r.Must(a.AwaitHeld(r.Ctx, awaitBound))
			r.become(claimed, "processing")
			r.probe("claimed", r.table())
			r.probe("leases", r.flights())
			r.injectFault("SIGKILL of a with its batch in flight", faults.SIGKILL, a)
			r.become(claimed, "done")
			r.step("the request of a arrives, late")
			a.Tap.Release()
			r.legacy()
		},
		verify: func(j *judge) {
			claimed := j.Events("claimed")
			n, held := len(claimed), count(verdict.Probed[[]row](j.Judge, "claimed"), func(o row) bool { return o.Status == "processing" && is(o.Owner, "a") })
			j.counted("rows that a had in flight and not settled", "claimed", held, n)
			j.endedBefore()
			j.GrewBy(float64(n), "weft_reclaimed_events_total", "cause=older_epoch")
			j.GrewBy(1, "weft_reclaimed_events_total", "cause=lease_expired")
			j.GrewBy(0, "outbox_failed_total")
			j.reclaimAuditedBy("b", "a", outbox.CauseOlderEpoch, n)
			j.reclaimAuditedBy("b", legacyOwner, outbox.CauseLeaseExpired, 1)
			j.Logged(1, "event=reclaim.rows", "from_owner=a", "cause=older_epoch", "from_epoch=1", "by_epoch=2")
			j.Logged(1, "event=reclaim.rows", "from_owner="+legacyOwner, "cause=lease_expired")
			j.ended("", "done")
			j.ofSuccessor("b")
			for _, e := range first(claimed) {
				j.NoSpans("spans of a for its event (it died with them)", spanEvent, eventID+e.ID.String(), "attempt=1")
				j.Equal("attempts at its event", verdict.SpansFile, j.results(e), "ok(2)")
			}
			j.storesEqual()
		},
	}
}

// legacy leaves a claim in the table as a killed worker of another kind does, and waits
// until its event is done.
func (r *run) legacy() {
	claimed := r.enqueueAnd(func(ctx context.Context, tx pgx.Tx, events []verdict.Event) error {
		_, err := tx.Exec(ctx, `
update `+searchOutbox+` set status = 'processing', owner = $2, lease_until = clock_timestamp() - interval '1 second',
       processing_started_at = clock_timestamp() - interval '31 seconds' where id = any ($1)`, idsOf(events), legacyOwner)
		return err
	}, upserts(1, "claim of another worker")...)
	r.mark(verdict.Fault, "the lease of a claim of %s has run out", legacyOwner)
	r.become(claimed, "done")
}

// endedBefore asserts that the successor has ended the lease of the killed leader, and
// settled its events, long before it would have run out.
func (j *judge) endedBefore() {
	leased := verdict.Probed[[]flight](j.Judge, "leases")
	if len(leased) == 0 {
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
	j.counted("of its events, those that b took back", "history", reclaimed, len(mine))
	j.counted("… and that were done before the lease of a would have run out", "history", early, len(mine))
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
	j.counted("events settled by "+name, "history", n, len(j.Recipe.Events))
}
