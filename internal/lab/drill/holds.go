package drill

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	heldWhy     = "drill: the operator holds back"
	heldRole    = "held"
	othersRole  = "others"
	heldEvents  = 3
	otherEvents = 20
)

// order is a command of weft that an operator signs.
func (r *run) order(args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		return r.Fleet.Run(ctx, append(args, "--by", operator, "--why", heldWhy)...)
	}
}

func entityQuarantined() Scenario {
	return Scenario{
		Name: "entity_quarantined", runbooks: []string{"lag-growing"},
		About:     "the operator puts an entity into quarantine, and the application changes it and others; then the operator releases it",
		Shows:     "events of this entity alone that wait, and go through once it is released",
		instances: one(),
		run: func(r *run) {
			sick := traffic.NewKey()
			if r.inject("weft quarantine", r.order("quarantine", sick.String()), r.order("release", sick.String())) {
				r.awaitMetric(1, "weft_quarantined_entities")
			}
			changes := upserts(otherEvents, othersRole)
			for range heldEvents {
				changes = append(changes, change{key: sick, op: outbox.Upsert, role: heldRole})
			}
			events := r.enqueue(changes...)
			r.become(events[:otherEvents], "done")
			r.probe("during", r.table())
			r.heal()
			r.become(events, "done")
		},
		verify: func(j *judge) {
			waiting := count(verdict.Probed[[]row](j.Judge, "during"), func(o row) bool { return o.Status == "pending" })
			j.counted("events that wait while the others are done", "during", waiting, heldEvents)
			j.ended(othersRole, "done")
			j.ended(heldRole, "done")
			j.signed(outbox.ActionQuarantine, outbox.ActionRelease)
			j.storesEqual()
			j.nothingFailed()
		},
	}
}

// throttled is the rate of the throttle in events a second, and pacedEvents as many as it lets
// through in three seconds.
const (
	throttledRate = 20
	pacedEvents   = 3 * throttledRate
)

func projectionThrottled() Scenario {
	return Scenario{
		Name: "projection_throttled", runbooks: []string{"lag-growing"},
		About:     "the operator throttles a projection, the application writes three times as many events as it lets through in a second, and the throttle ends",
		Shows:     "events that are done one after the other, no faster than the throttle says",
		instances: one(),
		run: func(r *run) {
			if r.inject(fmt.Sprintf("weft throttle --rate %d", throttledRate), r.order("throttle", searchProjection, "--rate", fmt.Sprint(throttledRate)), r.order("throttle", searchProjection, "--off")) {
				r.awaitMetric(throttledRate, "weft_projection_throttle_events_per_second")
			}
			r.settled(upserts(pacedEvents, heldRole)...)
			r.heal()
			r.settled(upserts(otherEvents, othersRole)...)
		},
		verify: func(j *judge) {
			var done []time.Time
			rows := j.rows()
			for _, e := range j.Events(heldRole) {
				if at := rows[e.ID].ProcessedAt; at != nil {
					done = append(done, *at)
				}
			}
			slices.SortFunc(done, time.Time.Compare)
			var took time.Duration
			if len(done) > 0 {
				took = done[len(done)-1].Sub(done[0])
			}
			// What the first second lets through at once is not in the time between.
			j.Least("seconds from the first event done to the last", verdict.ProbeFile("outbox"), took.Seconds(), pacedEvents/throttledRate-1)
			j.ended("", "done")
			j.signed(outbox.ActionThrottle, outbox.ActionUnthrottle)
			j.storesEqual()
			j.nothingFailed()
		},
	}
}

// signed asserts that each of these actions is in the audit once, with who and why.
func (j *judge) signed(actions ...string) {
	for _, action := range actions {
		n := count(j.audits(action), func(a auditRow) bool { return a.Actor == operator && a.Why == heldWhy })
		j.counted("audited: "+action, "audit", n, 1)
	}
}
