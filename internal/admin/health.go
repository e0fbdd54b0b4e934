package admin

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Role is the current role of an instance.
type Role string

// The roles.
const (
	Starting Role = "starting"
	Standby  Role = "standby"
	Leader   Role = "leader"
	Stopping Role = "stopping"
	// Disconnected has no session that could win, or keep, the leadership.
	Disconnected Role = "disconnected"
)

// notChecked is the error of a dependency that nobody has looked at.
const notChecked = "not checked yet"

// Dependency is the state of a server that weft needs.
type Dependency struct {
	OK       bool      `json:"ok"`
	Required bool      `json:"required"` // readiness fails with it
	Error    string    `json:"error,omitempty"`
	Since    time.Time `json:"since"`
}

// Activity is the current activity of a projection.
type Activity string

// The activities.
const (
	Idle    Activity = "idle"    // this instance does not lead
	Running Activity = "running" // events flow
	Outage  Activity = "outage"  // its destination is away; it probes
	Paused  Activity = "paused"  // the breaker stopped it; it probes with one event
)

// Suspended means that somebody has paused the projection: nothing is leased until it is resumed.
const Suspended Activity = "suspended"

// Projection is the state of one projection.
type Projection struct {
	Activity Activity  `json:"activity"`
	Detail   string    `json:"detail,omitempty"`
	Pause    string    `json:"pause,omitempty"` // who has paused it, when and why
	Moved    *Warning  `json:"moved,omitempty"` // the index behind the name is another one, and no rebuild has made it so
	Rival    *Warning  `json:"rival,omitempty"` // a leader of another database writes into the index, too
	Since    time.Time `json:"since"`
}

// Warning is what a projection says that holds up no event.
type Warning struct {
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"`
}

// Report is the body of the readiness endpoint.
type Report struct {
	Ready        bool                  `json:"ready"`
	Failing      []string              `json:"failing"` // required dependencies that fail
	Role         Role                  `json:"role"`
	Epoch        int64                 `json:"epoch"` // of the term, or the newest one seen; 0 when none
	Group        string                `json:"group"`
	Instance     string                `json:"instance"`
	Since        time.Time             `json:"since"` // of the role
	Dependencies map[string]Dependency `json:"dependencies"`
	Projections  map[string]Projection `json:"projections"`
	Shards       []Report              `json:"shards,omitempty"` // each of them, where there are several
}

// Health collects the reports of the parts of the process. It is safe for concurrent
// use.
type Health struct {
	mu  sync.Mutex
	rep Report
	now func() time.Time
	of  []*Health // shards
}

// NewHealth returns a Health in the role Starting, without dependencies.
func NewHealth(group, instance string) *Health {
	h := &Health{now: func() time.Time { return time.Now().UTC() }}
	h.rep = Report{Role: Starting, Group: group, Instance: instance, Since: h.now(),
		Dependencies: map[string]Dependency{}, Projections: map[string]Projection{}}
	return h
}

// OfShards returns a Health that reports those of several shards: it is ready when each of them is,
// and a leader when one of them is.
func OfShards(group, instance string, of []*Health) *Health {
	h := NewHealth(group, instance)
	h.of = of
	return h
}

// Require adds a dependency that has not been seen to work yet. Readiness fails
// with it when required.
func (h *Health) Require(name string, required bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rep.Dependencies[name] = Dependency{Required: required, Error: notChecked, Since: h.now()}
}

// Set records the state of a dependency: err nil means usable. The text of err is
// shown to whoever asks, so it must hold no secret. Set reports whether the
// dependency went from usable to not, or back: the moment for one log line. A
// dependency that was not added with Require is added as a required one.
func (h *Health) Set(name string, err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, known := h.rep.Dependencies[name]
	if !known {
		d.Required = true
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	first := !known || !d.OK && d.Error == notChecked
	changed = first || d.OK != (err == nil)
	if changed {
		d.Since = h.now()
	}
	d.OK, d.Error = err == nil, text
	h.rep.Dependencies[name] = d
	return changed
}

// SetRole records the role and the epoch that goes with it.
func (h *Health) SetRole(r Role, epoch int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rep.Role != r {
		h.rep.Role, h.rep.Since = r, h.now()
	}
	h.rep.Epoch = epoch
}

// SetProjection records the activity of a projection, and reports whether it changed.
func (h *Health) SetProjection(name string, a Activity, detail string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.rep.Projections[name]
	changed = p.Activity != a
	if changed {
		p.Since = h.now()
	}
	p.Activity, p.Detail = a, detail
	h.rep.Projections[name] = p
	return changed
}

// SetMoved records that the index of a projection is another one, or with an empty detail that this has been dealt with.
func (h *Health) SetMoved(name, detail string) {
	h.warn(name, detail, func(p *Projection) **Warning { return &p.Moved })
}

// SetRival records that a leader of another database writes into the index of a projection, or with an empty detail that
// this has been dealt with.
func (h *Health) SetRival(name, detail string) {
	h.warn(name, detail, func(p *Projection) **Warning { return &p.Rival })
}

// warn replaces a warning of a projection; an empty detail ends it.
func (h *Health) warn(name, detail string, of func(*Projection) **Warning) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.rep.Projections[name]
	*of(&p) = nil
	if detail != "" {
		*of(&p) = &Warning{Detail: detail, Since: h.now()}
	}
	h.rep.Projections[name] = p
}

// SetPause records who has paused a projection, when and why; an empty text means nobody.
// Readiness does not change with it.
func (h *Health) SetPause(name, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.rep.Projections[name]
	p.Pause = text
	h.rep.Projections[name] = p
}

// Report returns the state at this moment.
func (h *Health) Report() Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.of) > 0 {
		return h.ofShards()
	}
	r := h.rep
	r.Dependencies = maps.Clone(r.Dependencies)
	r.Projections = maps.Clone(r.Projections)
	r.Failing = []string{}
	for _, name := range slices.Sorted(maps.Keys(r.Dependencies)) {
		if d := r.Dependencies[name]; d.Required && !d.OK {
			r.Failing = append(r.Failing, name)
		}
	}
	// A process that has not come up, or is going down, takes no part in anything.
	r.Ready = len(r.Failing) == 0 && (r.Role == Leader || r.Role == Standby)
	return r
}

// ofShards needs mu locked.
func (h *Health) ofShards() Report {
	r := h.rep
	r.Ready, r.Failing = true, []string{}
	roles := map[Role]bool{}
	for n, one := range h.of {
		s := one.Report()
		r.Shards = append(r.Shards, s)
		r.Ready = r.Ready && s.Ready
		roles[s.Role] = true
		for _, name := range s.Failing {
			r.Failing = append(r.Failing, fmt.Sprintf("shard %d: %s", n, name))
		}
	}
	for _, role := range []Role{Stopping, Starting, Disconnected, Standby, Leader} { // the last that is there
		if roles[role] {
			r.Role = role
		}
	}
	if r.Role != h.rep.Role {
		h.rep.Role, h.rep.Since = r.Role, h.now()
	}
	r.Since = h.rep.Since
	return r
}

// reason is what a detail must look like to be told to other hosts.
var reason = regexp.MustCompile(`^[a-z0-9_]*$`)

// brief returns the report for other hosts: names and reasons, without the words of servers
// and people.
func (r Report) brief() Report {
	for name, d := range r.Dependencies {
		if d.Error != "" && d.Error != notChecked {
			d.Error = "unusable"
		}
		r.Dependencies[name] = d
	}
	for name, p := range r.Projections {
		if !reason.MatchString(p.Detail) {
			p.Detail = ""
		}
		if p.Pause != "" {
			p.Pause = "paused"
		}
		for _, w := range []**Warning{&p.Moved, &p.Rival} {
			if *w != nil {
				*w = &Warning{Since: (*w).Since}
			}
		}
		r.Projections[name] = p
	}
	for i, s := range r.Shards {
		r.Shards[i] = s.brief()
	}
	return r
}
