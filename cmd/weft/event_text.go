package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// advise says in words what happens next, and what to do where nothing does.
func advise(s *outbox.Story, state leader.State, maxProcessing time.Duration) string {
	led := ""
	if !state.Led() {
		led = " Nobody leads group " + state.Group + ": start `weft run`, or see `weft status`."
	}
	id := s.Row.ID.String()
	switch s.Place {
	case outbox.PlaceReady, outbox.PlaceDue:
		if len(s.Before) > 0 {
			return "Wait: it goes after the earlier open events of its entity, or with them." + led
		}
		return "Wait: the leader takes it in its turn; `weft status` shows how much is before it." + led
	case outbox.PlaceWaiting:
		if s.Reason == "" {
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
		return fmt.Sprintf("Its status %q is none of weft's, so weft leaves it alone: find out who set it.", plain(s.Status))
	}
}

func adviseInFlight(s *outbox.Story, state leader.State, maxProcessing time.Duration) string {
	switch l := s.Lease; {
	case l.Epoch != state.Epoch || l.Owner != state.Instance:
		return "Wait: its lease is of an older term; the leader takes it back when its own term begins, and tries the event again."
	case l.Since != nil && s.Now.Sub(*l.Since) > maxProcessing:
		return fmt.Sprintf("It has been in flight for %s, longer than outbox.max_processing: look at the log of %s and at its destination; `weft resign` hands over to a standby.",
			span(s.Now.Sub(*l.Since).Seconds()), l.Owner)
	default:
		return "Wait: " + l.Owner + " is projecting it."
	}
}

func adviseClaimed(s *outbox.Story) string {
	switch {
	case s.Claim.Epoch > 0:
		return "Wait: a build before leases has claimed it; the leader takes it back when its own term begins."
	case s.Claim.Until != nil && s.Claim.Until.After(s.Now):
		return "Another worker has claimed it; when that does not settle it the leader takes it back after the lease. Stop the other worker if weft is to do its work."
	default:
		return "Wait: another worker has claimed it and its lease is over; the leader takes it back within outbox.reclaim_interval, or, without a lease time, after outbox.max_processing."
	}
}

func writeStories(w io.Writer, found []eventStory) error {
	for i, e := range found {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := e.write(w); err != nil {
			return err
		}
	}
	return nil
}

// where says in one line where the event is.
func (e eventStory) where() string {
	switch outbox.Place(e.Place) {
	case outbox.PlaceReady:
		return "ready: it was never tried, and may go"
	case outbox.PlaceDue:
		return "due since " + clock(e.NextRetryAt)
	case outbox.PlaceWaiting:
		return "waits for its retry time, " + clock(e.NextRetryAt)
	case outbox.PlaceBehind:
		return fmt.Sprintf("put off behind version %d of its entity", *e.Behind)
	case outbox.PlaceInFlight:
		return fmt.Sprintf("in flight: batch %s of %s, epoch %d, since %s", e.Lease.Batch, e.Lease.Owner, e.Lease.Epoch, clock(e.Lease.Since))
	case outbox.PlaceClaimed:
		return fmt.Sprintf("claimed by %s since %s, lease until %s", dash(plain(e.Lease.Owner)), clock(e.Lease.Since), clock(e.Lease.Until))
	case outbox.PlaceFailed:
		return "failed: a dead letter since " + clock(e.UpdatedAt)
	case outbox.PlaceDone:
		return "done at " + clock(e.ProcessedAt)
	case outbox.PlaceArchived:
		return "done at " + clock(e.ProcessedAt) + ", archived in " + e.Partition
	default:
		return fmt.Sprintf("in the table, with status %q", plain(e.Status))
	}
}

func (e eventStory) write(w io.Writer) error {
	replayed := "never"
	if e.Replays > 0 {
		replayed = fmt.Sprintf("%d×, last at %s by %s: %s", e.Replays, clock(e.ReplayedAt), dash(plain(e.ReplayedBy)), dash(plain(e.ReplayReason)))
	}
	attempts := fmt.Sprintf("%d", e.Attempts)
	if e.Reclaims > 0 {
		attempts += fmt.Sprintf(", and taken back %d times in a row since it was last settled", e.Reclaims)
	}
	lines := [][2]string{
		{"event", e.ID}, {"where", e.where()}, {"projection", e.Projection + ", table " + e.Table},
		{"entity", plain(e.EntityType + ":" + e.EntityID)}, {"op", fmt.Sprintf("%s, version %d", plain(e.Op), e.EventVersion)},
		{"created", clock(e.CreatedAt)}, {"attempts", attempts},
	}
	if e.Reason != "" || e.Error != "" {
		lines = append(lines, [2]string{"reason", dash(plain(e.Reason))}, [2]string{"error", dash(plain(e.Error))})
	}
	if e.DiscardedAt != nil {
		lines = append(lines, [2]string{"discarded", discardedLine(e.DiscardedAt, e.DiscardedBy, e.DiscardReason)})
	}
	lines = append(lines, [2]string{"replayed", replayed}, [2]string{"trace", dash(e.TraceID)})
	for i, b := range e.Before {
		what := ""
		if i == 0 {
			what = "before it"
		}
		lines = append(lines, [2]string{what, b.line()})
	}
	if e.BeforeMore {
		lines = append(lines, [2]string{"", "and more"})
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range lines {
		fmt.Fprintf(tw, "%s\t%s\n", line[0], line[1])
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\n"+e.Advice)
	return err
}

func (b eventAhead) line() string {
	state := "ready"
	switch {
	case b.InFlight:
		state = "in flight"
	case b.Status == "processing":
		state = "claimed by another worker"
	case b.Behind != nil:
		state = fmt.Sprintf("put off behind version %d", *b.Behind)
	case b.NextRetryAt != nil:
		state = "tried at " + clock(b.NextRetryAt)
	}
	return fmt.Sprintf("%s, version %d: %s", b.ID, b.EventVersion, state)
}
