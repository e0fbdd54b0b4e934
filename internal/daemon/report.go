package daemon

import (
	"cmp"
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

	// These limits are well above the longest step of a healthy part: a part that is silent
	// for longer does not recover by itself.
	startLimit    = 6 * checkTimeout
	electionLimit = 30 * time.Second // and twice the idle timeout
	longestRest   = 30 * time.Second // of a pipeline whose breaker is open
	scanShare     = 6                // what a scan of the waiting events may take, in timeouts of a statement
)

// report sends the state of health to the service manager, and feeds its watchdog.
func (d *daemon) report(leaving bool) {
	st := d.elector.Status()
	d.manager.Tell(systemd.State{Ready: d.able() && !leaving, Status: summary(d.Health.Report(), st.Holder), Parts: d.parts()})
}

// able reports whether the instance leads, or may.
func (d *daemon) able() bool { return d.elector.Status().Role != leader.RoleDisconnected }

// parts returns the parts without whose progress no event flows. The others (gauges,
// presence, checks of the destinations) only make calls with deadlines, and no part waits
// for them.
func (d *daemon) parts() []systemd.Part {
	projector := 2 * max(projectTimeout, scanShare*d.cfg.Database.Timeout, d.cfg.Outbox.PollInterval, longestRest)
	parts := []systemd.Part{
		{Name: "start", Silent: d.start.Silent(), Limit: startLimit},
		{Name: "election", Silent: d.elector.Silent(), Limit: electionLimit + 2*d.cfg.Leader.IdleSession},
	}
	for _, l := range d.projectors {
		name := l.proj.Name()
		parts = append(parts, systemd.Part{Name: "takeover of " + name, Silent: l.takeover.Silent(), Limit: projector},
			systemd.Part{Name: name, Silent: l.pipeline.Silent(), Limit: projector})
	}
	return parts
}

// summary returns the state of health in one line.
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
		if p := r.Projections[name]; p.Activity == admin.Outage || p.Activity == admin.Paused || p.Activity == admin.Suspended {
			parts = append(parts, name+": "+string(p.Activity)+", "+cmp.Or(p.Pause, p.Detail))
		}
	}
	return strings.Join(parts, "; ")
}
