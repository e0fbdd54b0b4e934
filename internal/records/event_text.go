package records

import (
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// advise says in words what happens next, and what to do where nothing does.
func advise(s *outbox.Story, table string, state leader.State, maxProcessing time.Duration) string {
	led := ""
	if !state.Led() {
		led = " Nobody leads group " + state.Group + ": start `weft run`, or see `weft status`."
	}
	id := s.ID.String()
	switch s.Place {
	case outbox.PlaceReady, outbox.PlaceDue:
		if len(s.Before) > 0 {
			return "Wait: it goes after the earlier open events of its entity, or with them." + led
		}
		return "Wait: the leader takes it in its turn; `weft status` shows how much is before it." + led
	case outbox.PlaceWaiting:
		switch {
		case s.Parked():
			return fmt.Sprintf("Ask who has parked it: weft never tries it, and later events of its entity wait behind it. To let it go: update %s set next_retry_at = now() where id = '%s';",
				pgx.Identifier{table}.Sanitize(), id)
		case s.Reason == "":
			return "Wait: it is tried at its retry time." + led
		}
		return "Wait: it is tried again at its retry time. If that goes on, see the reason " + s.Reason + " in docs/runbooks/reasons.md." + led
	case outbox.PlaceBehind:
		if len(s.Before) == 0 {
			return "Wait: nothing of its entity goes before it any more, so the leader takes it next." + led
		}
		return fmt.Sprintf("Wait: it goes once the earlier events of its entity are settled. See the first of them: weft event %s.%s", s.Before[0].ID, led)
	case outbox.PlaceInFlight:
		return adviseInFlight(s, state, maxProcessing) + led
	case outbox.PlaceClaimed:
		return adviseClaimed(s) + led
	case outbox.PlaceFailed:
		if s.DiscardedAt != nil {
			return fmt.Sprintf("Nothing: it was discarded. To send it again after all: weft replay %s --by YOU --why \"…\".", id)
		}
		return fmt.Sprintf("Fix the cause, then: weft replay %s --by YOU --why \"…\". weft does not try it again by itself. Under strict order it holds up the later events of its entity; otherwise it holds up none. To give it up: weft failed discard %s --by YOU --why \"…\".", id, id)
	case outbox.PlaceDone, outbox.PlaceArchived:
		return "Nothing: it is done. An event says only that its entity has changed; to write the document anew, change the source row or rebuild."
	default:
		return fmt.Sprintf("Its status %q is none of weft's, so weft leaves it alone: find out who set it.", Plain(s.Status))
	}
}

func adviseInFlight(s *outbox.Story, state leader.State, maxProcessing time.Duration) string {
	switch l := s.Holder; {
	case l.Epoch != state.Epoch || l.Owner != state.Instance:
		return "Wait: its lease is of an older term; the leader takes it back when its own term begins, and tries the event again."
	case l.Since != nil && s.Now.Sub(*l.Since) > maxProcessing:
		return fmt.Sprintf("It has been in flight for %s, longer than outbox.max_processing: look at the log of %s and at its destination; `weft resign` hands over to a standby.",
			Span(s.Now.Sub(*l.Since).Seconds()), l.Owner)
	case !state.Led():
		return "Wait: " + l.Owner + " had it in flight when its term ended; the next leader takes it back when its own term begins, and tries the event again."
	default:
		return "Wait: " + l.Owner + " is projecting it."
	}
}

func adviseClaimed(s *outbox.Story) string {
	switch {
	case s.Holder.Epoch > 0:
		return "Wait: a build before leases has claimed it; the leader takes it back when its own term begins."
	case s.Holder.Until != nil && s.Holder.Until.After(s.Now):
		return "Another worker has claimed it; when that does not settle it the leader takes it back after the lease. Stop the other worker if weft is to do its work."
	default:
		return "Wait: another worker has claimed it and its lease is over; the leader takes it back within outbox.reclaim_interval, or, without a lease time, after outbox.max_processing."
	}
}

// Where says in one line where the event is.
func (e Story) Where() string {
	switch outbox.Place(e.Place) {
	case outbox.PlaceReady:
		return "ready: it was never tried, and may go"
	case outbox.PlaceDue:
		return "due since " + Clock(e.NextRetryAt)
	case outbox.PlaceWaiting:
		if e.Parked {
			return "parked: its retry time is infinity"
		}
		return "waits for its retry time, " + Clock(e.NextRetryAt)
	case outbox.PlaceBehind:
		return putOff(*e.Behind)
	case outbox.PlaceInFlight:
		return fmt.Sprintf("in flight: batch %s of %s, epoch %d, since %s", e.Lease.Batch, e.Lease.Owner, e.Lease.Epoch, Clock(e.Lease.Since))
	case outbox.PlaceClaimed:
		return fmt.Sprintf("claimed by %s since %s, lease until %s", Dash(Plain(e.Lease.Owner)), Clock(e.Lease.Since), Clock(e.Lease.Until))
	case outbox.PlaceFailed:
		return "failed: a dead letter since " + Clock(e.UpdatedAt)
	case outbox.PlaceDone:
		return "done at " + Clock(e.ProcessedAt)
	case outbox.PlaceArchived:
		return "done at " + Clock(e.ProcessedAt) + ", archived in " + e.Partition
	default:
		return fmt.Sprintf("in the table, with status %q", Plain(e.Status))
	}
}

// putOff says what an event is put off behind; a quarantine is before every version.
func putOff(behind int64) string {
	if behind == math.MinInt64 {
		return "put off by a quarantine of its entity"
	}
	return fmt.Sprintf("put off behind version %d of its entity", behind)
}

// Line says in one line what the event waits for.
func (b Earlier) Line() string {
	state := "ready"
	switch {
	case b.InFlight:
		state = "in flight"
	case b.Status == "processing":
		state = "claimed by another worker"
	case b.Behind != nil:
		state = putOff(*b.Behind)
	case b.Parked:
		state = "parked"
	case b.NextRetryAt != nil:
		state = "tried at " + Clock(b.NextRetryAt)
	}
	return fmt.Sprintf("%s, version %d: %s", b.ID, b.EventVersion, state)
}
