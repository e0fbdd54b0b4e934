package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/systemd"
	"github.com/samuelhu324-dev/weft/leader"
)

const (
	projectTimeout = time.Minute // of one batch

	// Some way above the longest step of a healthy part: what is silent for longer will
	// not come back by itself.
	startLimit    = 6 * checkTimeout
	electionLimit = 30 * time.Second // and twice the idle timeout
	longestRest   = 30 * time.Second // of a pipeline whose breaker is open
	scanShare     = 6                // what a scan of the waiting events may take, in timeouts of a statement
)

// report tells the service manager what health knows, and feeds its watchdog.
func (d *daemon) report(leaving bool) {
	st := d.elector.Status()
	able := st.Role != leader.RoleDisconnected && !leaving
	d.manager.Tell(systemd.State{Ready: able, Status: summary(d.health.Report(), st.Holder), Parts: d.parts()})
}

// parts are those whose standstill ends what weft is for. What else runs (gauges,
// presence, the look at the destinations) makes calls with deadlines, and nothing waits
// for it.
func (d *daemon) parts() []systemd.Part {
	lane := 2 * max(projectTimeout, scanShare*d.cfg.Database.Timeout, d.cfg.Outbox.PollInterval, longestRest)
	parts := []systemd.Part{
		{Name: "start", Silent: d.start.Silent(), Limit: startLimit},
		{Name: "election", Silent: d.elector.Silent(), Limit: electionLimit + 2*d.cfg.Leader.IdleSession},
	}
	for _, l := range d.lanes {
		name := l.proj.Name()
		parts = append(parts, systemd.Part{Name: "takeover of " + name, Silent: l.takeover.Silent(), Limit: lane},
			systemd.Part{Name: name, Silent: l.pipeline.Silent(), Limit: lane})
	}
	return parts
}

// summary is the report in one line.
func summary(r admin.Report, holder string) string {
	parts := []string{string(r.Role)}
	if r.Epoch > 0 {
		parts[0] += fmt.Sprintf(", epoch %d", r.Epoch)
	}
	if r.Role == admin.Standby && holder != "" {
		parts[0] += " of " + holder
	}
	for _, name := range slices.Sorted(maps.Keys(r.Dependencies)) {
		if dep := r.Dependencies[name]; !dep.OK {
			parts = append(parts, name+": "+dep.Error)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Projections)) {
		if p := r.Projections[name]; p.Activity == admin.Outage || p.Activity == admin.Paused {
			parts = append(parts, name+": "+string(p.Activity)+", "+p.Detail)
		}
	}
	return strings.Join(parts, "; ")
}
