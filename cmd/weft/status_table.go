package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
)

// writeStatus renders st as aligned columns.
func writeStatus(w io.Writer, st records.Status) error {
	fmt.Fprintf(w, "group   %s (lock key %d)\n", st.Group, st.LockKey)
	fmt.Fprintf(w, "leader  %s\n\n", records.Plain(st.LeaderLine()))

	t := newTable(w, "INSTANCE", "ROLE", "HOST", "PID", "VERSION", "UPTIME", "SEEN", "HTTP")
	for _, i := range st.Instances {
		t.row(i.Name, i.Role, i.Host, i.PID, i.Version, records.Span(i.UptimeSecs), records.Span(i.SeenAgo)+" ago", records.Dash(i.HTTPAddr))
	}
	if len(st.Instances) == 0 {
		t.row("none was seen")
	}
	if err := t.Flush(); err != nil {
		return err
	}

	for _, i := range st.Instances {
		if i.Twin != nil {
			own := leader.Process{Host: i.Host, PID: i.PID, StartedAt: i.StartedAt}
			fmt.Fprintf(w, "\nTWICE   %s\n        give each a WEFT_INSTANCE of its own\n", records.Plain(fmt.Sprintf("%s: %v; and %v", i.Name, own, i.Twin)))
		}
	}

	writeTroubles(w, st)
	fmt.Fprintln(w)
	t.row("PROJECTION", "READY", "WAITING", "PUT OFF", "IN FLIGHT", "OTHERS", "STUCK", "FAILED", "DISCARDED", "DONE", "LAG", "OLDEST", "NEXT RETRY", "LAST SETTLE")
	for _, p := range st.Projections {
		oldest := "-"
		if p.Lag > 0 {
			oldest = records.Span(p.OldestSecs)
		}
		t.row(p.Projection, p.Pending, max(0, p.Retrying-p.PutOff), p.PutOff, p.Flight(), p.Foreign, p.Stuck, p.Failed, p.Discarded,
			fmt.Sprintf("~%d", p.DoneEstimate), p.Lag, oldest, p.NextRetry(), p.LastSettle())
	}
	if err := t.Flush(); err != nil {
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
		if p.Nameless != nil {
			fmt.Fprintf(w, "\nNAMELESS  %s: %s; %s\n", p.Projection, p.Nameless.Line(), records.NamelessRemedy)
		}
		if p.Rebuild != nil {
			fmt.Fprintf(w, "\n%s %s\n", strings.ToUpper(p.Rebuild.Kind()), p.Rebuild.Line())
		}
		if v := p.VersionAhead; v != nil {
			fmt.Fprintf(w, "\nALARM   %s: documents are newer than their source rows and stay so: %s refused since %s, the last %s ago (%s)\n"+
				"        see the runbook restored from a backup, docs/runbooks/restore-from-backup.md\n",
				p.Projection, records.Counted(v.Writes, "1 write", "%d writes"), v.FirstAt.Format(time.RFC3339), records.Span(max(0, p.Now.Sub(v.LastAt).Seconds())), records.Plain(strings.Join(v.Entities, ", ")))
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
	entities := records.Counted(len(p.Quarantine), "1 entity", "%d entities")
	fmt.Fprintf(w, "\nQUARANTINE  %s: %s until weft release\n", p.Projection, records.Counted(p.Quarantined, "1 event of "+entities+" waits", "%d events of "+entities+" wait"))
	for i, q := range p.Quarantine {
		if i == mostQuarantines {
			fmt.Fprintf(w, "        and %d more: weft status --json\n", len(p.Quarantine)-i)
			return
		}
		fmt.Fprintf(w, "        %s %s\n", q.Entity(), q.Line())
	}
}
