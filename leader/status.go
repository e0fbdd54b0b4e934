package leader

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Role is what an instance is in its group.
type Role string

// The roles. They are also the values of the label to of weft_leader_transitions_total.
const (
	RoleLeader       Role = "leader"
	RoleDraining     Role = "draining"     // still the leader, asked for a graceful end
	RoleStandby      Role = "standby"      // its session is proven and tries for the lock
	RoleDisconnected Role = "disconnected" // it has no session
)

// Status is what one instance knows about the election.
type Status struct {
	Role  Role
	Since time.Time // of Role, local clock
	Epoch int64     // of the running term; 0 when this instance does not lead

	Holder      string // the leader, as last read: an instance, or the application_name of a foreign session; may be empty
	HolderEpoch int64  // newest epoch seen

	LastProof time.Time     // start of the last successful heartbeat or poll, local clock
	ProofAge  time.Duration // its age; 0 before the first
	Err       error         // the last fault of the connection; nil when it works
}

// Status may be called from any goroutine. It never reports a leader whose proof is too old.
func (e *Elector) Status() Status {
	e.mu.Lock()
	st, t := e.status, e.term
	e.mu.Unlock()
	if st.Role == RoleLeader || st.Role == RoleDraining {
		if err := t.Check(); err != nil {
			st.Role, st.Epoch = RoleStandby, 0 // Work has returned, and the lock is being freed
			if _, lost := t.loss(); lost {
				st.Role, st.Err = RoleDisconnected, err
			}
		}
	}
	if !st.LastProof.IsZero() {
		st.ProofAge = time.Since(st.LastProof)
		st.LastProof = st.LastProof.Round(0) // the monotonic reading is of no use outside
	}
	return st
}

// Silent returns the time since the election last made progress; 0 while Run does not run.
// An answer of the server is progress, and so is a call that fails in time. Silent grows
// while a call outlives its deadline and while Work does not return after the loss of its
// term; otherwise it stays below 30 s and twice the idle timeout.
func (e *Elector) Silent() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.moved.IsZero() {
		return 0
	}
	return time.Since(e.moved)
}

// moves records progress.
func (e *Elector) moves() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.moved = time.Now()
}

// rests records the end of Run.
func (e *Elector) rests() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.moved = time.Time{}
}

// become sets the role, and reports whether it was another one before.
func (e *Elector) become(role Role, t *Term, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.moved = time.Now()
	held := e.term != nil
	if err == nil && role == RoleStandby {
		err = e.refused
	}
	e.status.Err, e.status.Epoch, e.term = err, 0, t
	if t != nil {
		e.status.Epoch, e.status.HolderEpoch = t.epoch, t.epoch
		e.status.Holder = e.cfg.Instance
		e.met.epoch.Set(float64(t.epoch))
	} else if held || role == RoleDisconnected {
		e.status.Holder = ""
	}
	return e.setRole(role)
}

// setRole needs mu locked; it reports whether the role was another one before.
func (e *Elector) setRole(role Role) bool {
	changed := e.status.Role != role
	if changed {
		e.status.Role, e.status.Since = role, time.Now().Round(0)
		e.met.transitions.WithLabelValues(string(role)).Inc()
	}
	e.met.isLeader.Set(indicator(role == RoleLeader || role == RoleDraining))
	e.met.draining.Set(indicator(role == RoleDraining))
	return changed
}

func indicator(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

func (e *Elector) proven(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status.LastProof, e.status.Err, e.moved = at, e.refused, time.Now()
}

// refuse records why the server lets this instance begin no term: a session that stands by again does not take it back.
func (e *Elector) refuse(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = err
}

// trouble records a failed heartbeat that beat repeats.
func (e *Elector) trouble(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status.Err, e.moved = err, time.Now()
}

// setHolder records who leads while this instance is a standby.
func (e *Elector) setHolder(st State) {
	holder := ""
	foreign := false
	switch {
	case !st.LockHeld:
	case st.LockMatches:
		holder = st.Instance
	case st.LockApp != "":
		holder = st.LockApp
		foreign = st.LockElsewhere || !strings.HasPrefix(st.LockApp, appPrefix(e.cfg.Group))
	default:
		holder, foreign = "pid "+strconv.Itoa(int(st.LockPID)), true
	}

	e.mu.Lock()
	e.status.Holder, e.status.HolderEpoch, e.moved = holder, st.Epoch, time.Now()
	switch {
	case st.LockElsewhere:
		e.refused = errElsewhere
	case st.Led(), errors.Is(e.refused, errElsewhere): // somebody could begin a term
		e.refused = nil
	}
	e.mu.Unlock()
	e.met.epoch.Set(float64(st.Epoch))

	if foreign && st.LockPID != e.foreignPID {
		what := "the lock of this group is held by a session that is not of it"
		if st.LockElsewhere {
			what = errElsewhere.Error()
		}
		e.log.Warn(what,
			zap.String("event", "leader.foreign_holder"), zap.Int64("key", st.Key),
			zap.Int32("pid", st.LockPID), zap.String("user", st.LockUser), zap.String("application_name", st.LockApp))
	}
	e.foreignPID = 0
	if foreign {
		e.foreignPID = st.LockPID
	}
}
