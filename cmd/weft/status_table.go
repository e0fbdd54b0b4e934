package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
)

// writeStatus renders st as aligned columns.
func writeStatus(w io.Writer, st records.Status) error {
	fmt.Fprintf(w, "group   %s (lock key %d)\n", st.Group, st.LockKey)
	fmt.Fprintf(w, "leader  %s\n", st.LeaderLine())

	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\nINSTANCE\tROLE\tHOST\tPID\tVERSION\tUPTIME\tSEEN\tHTTP")
	for _, i := range st.Instances {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\t%s ago\t%s\n", i.Name, i.Role, i.Host, i.PID, i.Version,
			records.Span(i.UptimeSecs), records.Span(i.SeenAgo), records.Dash(i.HTTPAddr))
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
			oldest = records.Span(p.OldestSecs)
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t~%d\t%d\t%s\t%s\t%s\n", p.Projection, p.Pending, max(0, p.Retrying-p.PutOff), p.PutOff,
			p.Flight(), p.Foreign, p.Stuck, p.Failed, p.Discarded, p.DoneEstimate, p.Lag, oldest, p.NextRetry(), p.LastSettle())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, p := range st.Projections {
		if p.Pause != nil {
			fmt.Fprintf(w, "\nPAUSED  %s: %s; weft resume ends it\n", p.Projection, p.Pause.Line())
		}
		if p.Throttle != nil {
			fmt.Fprintf(w, "\nTHROTTLED  %s: %s; weft throttle --off ends it\n", p.Projection, p.Throttle.Line())
		}
		writeQuarantines(w, p)
		if p.Rebuild != nil {
			fmt.Fprintf(w, "\n%s %s\n", strings.ToUpper(p.Rebuild.Kind()), p.Rebuild.Line())
		}
		if v := p.VersionAhead; v != nil {
			fmt.Fprintf(w, "\nALARM   %s: documents are newer than their source rows and stay so: %d writes refused since %s, the last %s ago (%s)\n"+
				"        see the runbook restored from a backup, docs/runbooks/restore-from-backup.md\n",
				p.Projection, v.Writes, v.FirstAt.Format(time.RFC3339), records.Span(max(0, p.Now.Sub(v.LastAt).Seconds())), records.Plain(strings.Join(v.Entities, ", ")))
		}
	}
	return nil
}

// mostQuarantines is how many entities in quarantine the table shows; the JSON has them all.
const mostQuarantines = 5

func writeQuarantines(w io.Writer, p records.Projection) {
	if len(p.Quarantine) == 0 {
		return
	}
	fmt.Fprintf(w, "\nQUARANTINE  %s: %d events of %d entities wait until weft release\n", p.Projection, p.Quarantined, len(p.Quarantine))
	for i, q := range p.Quarantine {
		if i == mostQuarantines {
			fmt.Fprintf(w, "        and %d more: weft status --json\n", len(p.Quarantine)-i)
			return
		}
		fmt.Fprintf(w, "        %s %s\n", q.Entity(), q.Line())
	}
}
