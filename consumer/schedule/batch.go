package schedule

import (
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Group is the leased events of one entity, lowest first. The last one is projected.
type Group struct {
	Key     outbox.Key
	Events  []outbox.Event
	Outcome outbox.Outcome // of the last event; its verdict is zero until it is known

	of *entity
}

// Newest returns the event that is projected.
func (g *Group) Newest() *outbox.Event { return &g.Events[len(g.Events)-1] }

// Earliest returns the event that carries attempts, reason and retry time of the group.
func (g *Group) Earliest() *outbox.Event { return &g.Events[0] }

// limit returns the deadline of a request of the group alone; 0 for the configured one.
func (g *Group) limit(quick time.Duration) time.Duration {
	if n := g.Earliest().Attempts; n <= narrowDoubled {
		return doubled(quick, n, time.Hour)
	}
	return 0
}

// Batch is a set of entities that are leased, projected and settled together.
type Batch struct {
	ID          uuid.UUID
	Groups      []Group             // once it is leased
	Settlements []outbox.Settlement // once every group has an outcome; none for a release
	Reason      outbox.Reason       // of the worst outcome

	way    queue          // that its entities come from: these decide beside what it is tried; or trial
	picked []*entity      // before it is leased
	asks   []outbox.Group // of them
	asked  int            // rows of them
	begun  time.Time
	step   step
	parts  []*Part // to be sent
	flying int     // parts that are being sent
	doubts []*Part // that have met a fault, until a probe has answered
	met    *outbox.Fault
	took   time.Duration // of the request of all its groups
}

// step is how far a batch has come.
type step uint8

const (
	leasing step = iota
	sending
	settleable
	settling
)

// Size returns the number of events.
func (b *Batch) Size() (n int) {
	for i := range b.Groups {
		n += len(b.Groups[i].Events)
	}
	return n
}

// Apart reports whether its entities are tried in requests of their own.
func (b *Batch) Apart() bool { return b.way == inApart }

// Part is what one call of the projection carries: some groups of a batch.
type Part struct {
	Batch  *Batch
	Groups []*Group
	// Limit is the deadline of the call when it is shorter than the configured one; else 0.
	Limit time.Duration

	narrowed bool      // cut out of a part that met a fault
	refusals int       // for which the destination was too busy
	until    time.Time // not to be sent before
}

// Events returns the events to be projected.
func (p *Part) Events() []outbox.Event {
	out := make([]outbox.Event, len(p.Groups))
	for i, g := range p.Groups {
		out[i] = *g.Newest()
	}
	return out
}

// rest returns the part without the groups that its answer has decided: a shared fault has
// left the others without an outcome of their own.
func (p *Part) rest() *Part {
	rest := &Part{Batch: p.Batch, Limit: p.Limit, narrowed: p.narrowed, refusals: p.refusals}
	for _, g := range p.Groups {
		if g.Outcome.Verdict == outbox.Retry && g.Outcome.Reason.Transient() {
			g.Outcome = outbox.Outcome{}
			rest.Groups = append(rest.Groups, g)
		}
	}
	return rest
}

const (
	// narrowWays is into how many parts a part is cut that met a fault; a part of up to eight
	// times as many entities is cut into single ones.
	narrowWays = 16
	// narrowFlying bounds the parts of one batch that are being sent.
	narrowFlying = 16
	// narrowLimit is the deadline of a part that was cut out, as long as a healthy call
	// takes a quarter of it at most. It doubles with each attempt of an event, up to
	// narrowDoubled times: an event that takes longer still has the configured deadline.
	narrowLimit   = 500 * time.Millisecond
	narrowDoubled = 4
)

// narrow cuts a part into smaller ones. quick is the deadline of each; 0 for none. They are
// not sent in their order, because what is wrong with one may be wrong with its neighbours.
func (b *Batch) narrow(p *Part, ways int, quick time.Duration) {
	size := max(1, (len(p.Groups)+ways-1)/ways)
	if len(p.Groups) <= 8*ways {
		size = 1
	}
	var cuts []*Part
	for from := 0; from < len(p.Groups); from += size {
		cut := &Part{Batch: b, Groups: p.Groups[from:min(from+size, len(p.Groups))], narrowed: true, Limit: quick}
		if size == 1 {
			cut.Limit = p.Groups[from].limit(quick)
		}
		cuts = append(cuts, cut)
	}
	for from := range narrowWays {
		for i := from; i < len(cuts); i += narrowWays {
			b.parts = append(b.parts, cuts[i])
		}
	}
}

// lose makes the groups of a part, which have no outcome yet, retry because of f.
func (p *Part) lose(f *outbox.Fault) {
	for _, g := range p.Groups {
		g.Outcome = outbox.Outcome{Verdict: outbox.Retry, Reason: f.Reason, Detail: f.Err.Error(), RetryAfter: f.RetryAfter, Marks: f.Marks}
	}
}

// judge turns the outcomes into settlements, as the breaker and the retry policy allow.
func (s *Scheduler) judge(now time.Time, b *Batch) {
	b.Settlements = make([]outbox.Settlement, 0, b.Size())
	for i := range b.Groups {
		g := &b.Groups[i]
		st := s.decide(now, b, g)
		g.Outcome.Verdict = st.Verdict
		if st.Verdict != outbox.Done {
			if b.Reason == "" || st.Verdict == outbox.Failed {
				b.Reason = st.Reason
			}
			b.Settlements = append(b.Settlements, st)
			continue
		}
		for j := range g.Events {
			older := st
			older.Event = &g.Events[j]
			if j < len(g.Events)-1 {
				older.Verdict = outbox.Superseded
			}
			b.Settlements = append(b.Settlements, older)
		}
	}
}

// decide turns the outcome of a group into the settlement of its newest event, or, for a
// retry, of its earliest.
func (s *Scheduler) decide(now time.Time, b *Batch, g *Group) outbox.Settlement {
	o := &g.Outcome
	st := outbox.Settlement{Event: g.Newest(), Verdict: o.Verdict, Reason: o.Reason, Detail: o.Detail, Outcome: o}
	switch o.Verdict {
	case outbox.Done:
		return st
	case outbox.Retry:
		st.Event = g.Earliest()
		transient := (o.Reason.Transient() || b.met != nil) && !s.cfg.Retry.TerminalOnTransient
		if transient || st.Event.Attempts+1 < s.cfg.Retry.MaxAttempts {
			st.Delay = max(s.cfg.Jitter(s.cfg.Retry.ceiling(st.Event.Attempts)), o.RetryAfter)
			return st
		}
	case outbox.Failed:
	default:
		o.Reason, o.Detail = outbox.ReasonUnknown, "projection answered "+o.Verdict.String()
		o.Verdict = outbox.Retry
		return s.decide(now, b, g)
	}
	if g.Newest().Loaded() { // a load meets all bad rows there are, one after the other
		s.gate.refused()
	} else if allowed, after := s.gate.final(now, g.Key, o.Reason, o.Detail); !allowed {
		s.stale = true
		st.Event, st.Verdict, st.Delay = g.Earliest(), outbox.Retry, after
		return st
	}
	st.Verdict = outbox.Failed
	return st
}

// RetryPolicy decides when an event is tried again, and when no more.
type RetryPolicy struct {
	MaxAttempts         int           // attempts after which a fault of the event is final; > 0
	BaseBackoff         time.Duration // ceiling of the first delay; it doubles with each attempt
	MaxBackoff          time.Duration // ceiling of every delay
	TerminalOnTransient bool          // count transient reasons against MaxAttempts too
}

// ceiling returns the longest delay after the given number of attempts.
func (p RetryPolicy) ceiling(attempts int) time.Duration {
	return doubled(p.BaseBackoff, attempts, p.MaxBackoff)
}

// doubled returns d doubled n times, at most limit.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}
