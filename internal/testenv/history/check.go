package history

import (
	"fmt"
	"slices"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Finding is one place where the record contradicts an invariant.
type Finding struct {
	Event   outbox.ID // zero when it is about no single event
	Key     outbox.Key
	Version int64
	What    string
}

// String returns the finding as one line.
func (f Finding) String() string {
	switch {
	case f.Key == (outbox.Key{}):
		return f.What
	case f.Event.IsZero():
		return fmt.Sprintf("%s version %d: %s", f.Key, f.Version, f.What)
	default:
		return fmt.Sprintf("%s version %d (event %s): %s", f.Key, f.Version, f.Event, f.What)
	}
}

func finding(c *Change, format string, args ...any) Finding {
	return Finding{Event: c.Event, Key: c.Key, Version: c.Version, What: fmt.Sprintf(format, args...)}
}

// Run is all that is known of a run.
type Run struct {
	Log          *Log
	Acknowledged []Enqueued
	Applied      []Applied   // all of the run; nil when nothing recorded it
	Crashes      []FaultMark // of PostgreSQL: see [Verdict.SentEarly]
	End          *End        // nil when nobody looked

	// Alias, when not empty, is the name by which events were carried while rebuilds wrote to
	// other indexes and moved it; Index is what it leads to in the end.
	Alias, Index string

	// Home, when not nil, says which shard each entity belongs to, and Shard which one Log is of. See
	// [Deal].
	Home    map[outbox.Key]int
	Shard   int
	leaders map[string]bool // instances that have held leases in any shard
}

// Verdict is what the checks found.
type Verdict struct {
	// Each of these breaks an invariant.
	TwoActive   []Finding
	Unleased    []Finding
	SentEarly   []Finding
	Lost        []Finding // [Lost] and [Unprojected]
	Twice       []Finding
	OutOfOrder  []Finding
	Regressions []Finding
	Resurrected []Finding
	Diverged    []Finding
	Misplaced   []Finding
	// These are legal ends, for whoever operates weft to act on.
	DeadLetters []Finding
	Unsettled   []Finding // documents of entities whose newest event is one
	Kept        []Finding
}

// Check runs all checks for which r has the record.
func Check(r Run) *Verdict {
	v := &Verdict{
		TwoActive: TwoActive(r.Log), Unleased: Unleased(r.Log), Lost: Lost(r.Log, r.Acknowledged), Twice: Twice(r.Log),
		OutOfOrder: OutOfOrder(r.Log), DeadLetters: DeadLetters(r.Log), Kept: Kept(r.Log),
	}
	if r.Applied != nil {
		live := r.live()
		v.SentEarly = sentEarly(r.Log, live, r.Crashes, r.leaders)
		v.Lost = append(v.Lost, Unprojected(r.Log, live)...)
		for index, items := range r.byIndex() {
			docs, end := documents(items), r.End
			if index != r.Index {
				end = nil // it is frozen, or gone
			}
			v.Regressions = append(v.Regressions, regressions(r.Log, docs, end)...)
			v.Resurrected = append(v.Resurrected, resurrected(r.Log, docs, end)...)
		}
	}
	if r.Home != nil {
		v.Misplaced = Misplaced(r.Log, r.Shard, r.Home)
	}
	if r.End != nil {
		v.Diverged, v.Unsettled = Diverged(r.Log, r.End)
	}
	return v
}

// Breach is an invariant and what breaks it.
type Breach struct {
	Invariant string
	Findings  []Finding
}

// Lines returns the first findings of each kind, dead letters included, and how many more there are, for
// a person to read.
func (v *Verdict) Lines() (lines []string) {
	const most = 5
	for _, b := range append(v.Breaches(), Breach{"dead letters", v.DeadLetters}) {
		for _, f := range b.Findings[:min(most, len(b.Findings))] {
			lines = append(lines, fmt.Sprintf("%s: %v", b.Invariant, f))
		}
		if more := len(b.Findings) - most; more > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d more", b.Invariant, more))
		}
	}
	return lines
}

// Breaches returns the invariants that are broken.
func (v *Verdict) Breaches() []Breach {
	var out []Breach
	for _, b := range []Breach{
		{"one claimer", v.TwoActive}, {"a lease for every verdict", v.Unleased}, {"a lease before every send", v.SentEarly},
		{"no event lost", v.Lost}, {"done once", v.Twice}, {"order per entity", v.OutOfOrder},
		{"versions never go back", v.Regressions}, {"deleted documents stay deleted", v.Resurrected}, {"convergence", v.Diverged},
		{"one shard per entity", v.Misplaced},
	} {
		if len(b.Findings) > 0 {
			out = append(out, b)
		}
	}
	return out
}

// beside is what the aliases end with by which a rebuild writes to a new index.
const beside = "-writes"

// live returns the items that decided the fate of events: not those of rebuilds.
func (r *Run) live() []Applied {
	if r.Alias == "" {
		return r.Applied
	}
	return slices.DeleteFunc(slices.Clone(r.Applied), func(a Applied) bool { return a.Target != r.Alias })
}

// byIndex returns the items of each index, all of them under one name where there is one index. An
// item by the alias without an answer may have reached any index that the alias led to.
func (r *Run) byIndex() map[string][]Applied {
	if r.Alias == "" {
		return map[string][]Applied{r.Index: r.Applied}
	}
	out, led := map[string][]Applied{}, map[string]bool{}
	var unknown []Applied
	for _, a := range r.Applied {
		switch {
		case a.Index != "":
			out[a.Index] = append(out[a.Index], a)
			led[a.Index] = led[a.Index] || a.Target == r.Alias
		case a.Target == r.Alias:
			unknown = append(unknown, a)
		default:
			index := strings.TrimSuffix(a.Target, beside)
			out[index] = append(out[index], a)
		}
	}
	for index := range led {
		out[index] = append(out[index], unknown...)
	}
	return out
}

// Deal returns the part of r that each shard has, with its record of logs. home says which shard an
// entity belongs to. What is known of an entity without a home, such as a document that nobody
// wrote, is for the first shard to answer for.
func Deal(r Run, logs []*Log, home map[outbox.Key]int) []Run {
	out := make([]Run, len(logs))
	leaders := map[string]bool{}
	for n, log := range logs {
		out[n] = Run{Log: log, Crashes: r.Crashes, Alias: r.Alias, Index: r.Index, Shard: n, Home: home, leaders: leaders}
		for _, l := range log.Leases {
			leaders[l.Owner] = true
		}
		if r.Applied != nil {
			out[n].Applied = []Applied{} // nothing was sent, and that was recorded
		}
		if r.End != nil {
			out[n].End = &End{Compared: &reconcile.Report{}, Documents: map[string]int64{}}
		}
	}
	for _, a := range r.Acknowledged {
		part := &out[home[a.Key]]
		part.Acknowledged = append(part.Acknowledged, a)
	}
	for i := range r.Applied {
		part := &out[home[r.Applied[i].key()]]
		part.Applied = append(part.Applied, r.Applied[i])
	}
	if r.End == nil {
		return out
	}
	for id, version := range r.End.Documents {
		out[home[KeyOf(id)]].End.Documents[id] = version
	}
	for _, d := range r.End.Differences {
		end := out[home[KeyOf(d.ID)]].End
		end.Differences = append(end.Differences, d)
	}
	return out
}

// Misplaced returns the first event and the first row of each entity in the record of a shard that
// is not the entity's, or of an entity that has no shard.
//
// It proves that an entity was in one shard only, so that the order that each shard keeps for itself
// is the order of the entity.
func Misplaced(log *Log, shard int, home map[outbox.Key]int) []Finding {
	var found []Finding
	told := map[outbox.Key]bool{}
	wrong := func(k outbox.Key) string {
		right, known := home[k]
		switch {
		case known && right == shard || told[k]:
			return ""
		case !known:
			return fmt.Sprintf("in shard %d, and belongs to none", shard)
		default:
			return fmt.Sprintf("in shard %d, and belongs to shard %d", shard, right)
		}
	}
	for i := range log.Changes {
		c := &log.Changes[i]
		if what := wrong(c.Key); what != "" {
			told[c.Key] = true
			found = append(found, finding(c, "its event is %s", what))
		}
	}
	clear(told)
	for i := range log.Source {
		c := &log.Source[i]
		if what := wrong(c.Key); what != "" {
			told[c.Key] = true
			found = append(found, Finding{Key: c.Key, Version: c.Version, What: "its row is " + what})
		}
	}
	return found
}
