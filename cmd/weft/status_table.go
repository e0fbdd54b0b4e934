package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// write renders st as aligned columns.
func (st status) write(w io.Writer) error {
	fmt.Fprintf(w, "group   %s (lock key %d)\n", st.Group, st.LockKey)
	fmt.Fprintf(w, "leader  %s\n", st.leaderLine())

	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\nINSTANCE\tROLE\tHOST\tPID\tVERSION\tUPTIME\tSEEN\tHTTP")
	for _, i := range st.Instances {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\t%s ago\t%s\n", i.Name, i.Role, i.Host, i.PID, i.Version,
			span(i.UptimeSecs), span(i.SeenAgo), dash(i.HTTPAddr))
	}
	if len(st.Instances) == 0 {
		fmt.Fprintln(tw, "none was seen")
	}
	if err := tw.Flush(); err != nil {
		return err
	}

	fmt.Fprintln(tw, "\nPROJECTION\tREADY\tWAITING\tPUT OFF\tIN FLIGHT\tOTHERS\tSTUCK\tFAILED\tDISCARDED\tDONE\tLAG\tOLDEST\tNEXT RETRY\tLAST SETTLE")
	for _, p := range st.Projections {
		oldest := "-"
		if p.Lag > 0 {
			oldest = span(p.OldestSecs)
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t~%d\t%d\t%s\t%s\t%s\n", p.Projection, p.Pending, max(0, p.Retrying-p.PutOff), p.PutOff,
			p.inFlight(), p.Foreign, p.Stuck, p.Failed, p.Discarded, p.DoneEstimate, p.Lag, oldest, p.nextRetry(), p.lastSettle())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, p := range st.Projections {
		if p.Pause != nil {
			fmt.Fprintf(w, "\nPAUSED  %s: %s; weft resume ends it\n", p.Projection, p.Pause.line())
		}
		if p.Rebuild != nil {
			fmt.Fprintf(w, "\nREBUILD %s\n", p.Rebuild.line())
		}
		if v := p.VersionAhead; v != nil {
			fmt.Fprintf(w, "\nALARM   %s: documents are newer than their source rows and stay so: %d writes refused since %s, the last %s ago (%s)\n"+
				"        see the runbook restored from a backup, docs/runbooks/restore-from-backup.md\n",
				p.Projection, v.Writes, v.FirstAt.Format(time.RFC3339), span(max(0, p.now.Sub(v.LastAt).Seconds())), plain(strings.Join(v.Entities, ", ")))
		}
	}
	return nil
}

// inFlight is as in "120 in 3, 0.4s": events, batches, age of the oldest.
func (p projectionStatus) inFlight() string {
	if p.Batches == 0 {
		return "0"
	}
	return fmt.Sprintf("%d in %d, %s", p.InFlight, p.Batches, span(p.OldestBatchSecs))
}

func (st status) leaderLine() string {
	switch {
	case st.Leader != nil:
		line := fmt.Sprintf("%s, epoch %d, since %s, heartbeat %s ago", st.Leader.Instance, st.Leader.Epoch,
			st.Leader.Since.Format(time.RFC3339), span(st.Leader.HeartbeatAgeSecs))
		if r := st.Leader.Resign; r != nil {
			line += fmt.Sprintf("; asked to hand over by %s at %s: %s", r.By, r.AskedAt.Format(time.RFC3339), r.Why)
		}
		return line
	case st.Lock.Held:
		who := fmt.Sprintf("pid %d", st.Lock.PID)
		if st.Lock.Application != "" {
			who += " (" + st.Lock.Application + ")"
		}
		return "nobody; the lock is held by " + who + ", which has no term yet"
	case st.LastTerm == nil:
		return "nobody, ever"
	default:
		how := "without a hand-over, last heartbeat " + st.LastTerm.RenewedAt.Format(time.RFC3339)
		if st.LastTerm.ReleasedAt != nil {
			how = "with a hand-over at " + st.LastTerm.ReleasedAt.Format(time.RFC3339)
		}
		return fmt.Sprintf("nobody; the last was %s, epoch %d, which ended %s", st.LastTerm.Instance, st.LastTerm.Epoch, how)
	}
}

func (p projectionStatus) nextRetry() string {
	if p.NextRetryAt == nil {
		return "-"
	}
	if d := p.NextRetryAt.Sub(p.now); d > 0 {
		return "in " + span(d.Seconds())
	}
	return "due"
}

func (p projectionStatus) lastSettle() string {
	if p.LastSettleAt == nil {
		return "-"
	}
	return span(max(0, p.now.Sub(*p.LastSettleAt).Seconds())) + " ago"
}
