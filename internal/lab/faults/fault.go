package faults

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/patroni"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// Measure says which time a report gives for a fault. Its text names that time in the report.
type Measure string

// The measures.
const (
	Nothing   Measure = ""                     // none
	Takeover  Measure = "takeover"             // Injection.At → first event done under a newer epoch
	Handover  Measure = "after last settle"    // last event done under the old term → first one under the next
	Restarted Measure = "after the server was" // Injection.Accepts → first event done
)

// Where says what a fault needs besides one PostgreSQL, one Elasticsearch and the instances.
type Where int

// The places of faults.
const (
	Anywhere Where = iota // nothing
	Nodes                 // several nodes of Elasticsearch
	Members               // a PostgreSQL that fails over by itself
	Shards                // shards that instances share
)

// Fault is an entry of the catalogue.
type Fault struct {
	Name    string
	About   string
	Measure Measure
	Share   int   // how often it is in a deck of chaos's schedule; 0: only when asked for by name
	Aimed   bool  // at an instance, which may be a standby; else at the leader, or at no instance
	Where   Where // chaos draws it only there, unless asked for it by name
	// OneShard says that the fault takes one shard from its leader, which goes on leading its others.
	OneShard bool
	// Crash says that PostgreSQL may lose what was committed without waiting for the disk, or for
	// another member.
	Crash bool
	// Lasting faults go on beside others until [Injection.Alive] is false; then the caller heals them.
	Lasting bool

	// Draw decides by chance what the fault needs; nil: nothing. Chaos draws; other programs
	// give the Params to [New] themselves.
	Draw func(*Dice, *Params)

	// The parts of a fault are scripts, see [rig.Script]. A [Skip] or a [Never] ends one, too.

	// Available ends with one of these where the fault cannot be injected; nil: it can everywhere.
	Available func(*Injection)
	// Inject begins the fault. It corrects Injection.At where the call takes time before the
	// fault begins. Whatever ends it, Heal is called.
	Inject func(*Injection)
	// Observe is called just before Heal, to note what the fault has met, for which it may wait;
	// nil: nothing. It ends with a [Skip] for a fault that has met nothing.
	Observe func(*Injection)
	// Heal ends the fault and starts again what it has ended, also after an Inject that failed;
	// nil: it ends by itself.
	Heal func(*Injection)
}

// EndsTerm reports whether the fault ends the term of a leader that it meets, so that a newer epoch follows.
func (f *Fault) EndsTerm() bool { return f.Measure == Takeover || f.Measure == Handover }

// Skip is the error of a fault that cannot be injected here and now, or has met nothing: the text says
// why. It is no failure of the run; joined with another error, it is one.
type Skip string

// Error implements error.
func (s Skip) Error() string { return string(s) }

// Never is as [Skip], for a fault that cannot be injected in the whole run, because of what the run was
// started with. It is a type of its own, which errors.As does not take for a Skip.
type Never string

// Error implements error.
func (n Never) Error() string { return string(n) }

// Params is what chance, or a program, decides about one fault. What a fault does not use is zero.
type Params struct {
	Hold    time.Duration // how long it lasts; the caller waits for it before Heal
	Latency time.Duration // added to each round trip, or as the fault says
	Jitter  time.Duration // give or take, on Latency; at most as long
	Every   int           // one of so many requests is hit
	Bytes   int64         // into a request, or the largest that is let through
	Variant int           // which of the forms of a fault, from 0; see the fault
}

// Target is what faults are injected into.
type Target struct {
	*rig.Group
	*rig.Place               // that the fault is about: the group's, or one of Shards
	Seed       uint64        // of the chance by which a proxy picks requests
	Skewed     string        // path of a binary of weft whose wall clock is off; empty: none was built
	Skew       time.Duration // how far that clock is off
	// Primary is the PostgreSQL server that takes writes; empty means [stack.Postgres].
	Primary stack.Server
	// Patroni is the PostgreSQL that fails over by itself; nil where none does.
	Patroni *patroni.Cluster
	Shards  rig.Shards // all that the instances share; empty where there are none
}

// Injection is one fault as it is carried out. It is not safe for concurrent use. The caller sets Leader
// and Epoch, which [New] does not know, and calls Inject, and then Observe and Heal.
type Injection struct {
	rig.Script // of the part that is carried out
	*Fault
	Params
	*Target
	Member *rig.Member // that it is aimed at; nil for none, and where the instances are not the rig's
	Leader bool        // the member led when the fault began
	Epoch  int64       // of the term that the fault met
	// Signal sends a signal to the member, and returns the time just before; the caller sets it where Member is nil.
	Signal func(syscall.Signal) (time.Time, error)

	At       time.Time // when it began
	Accepts  time.Time // when a restarted server took work again; zero for other faults
	Note     string    // what it has met, for the line about it: empty, or with ", " at its beginning
	Findings []string  // what is wrong that only the fault can see; each fails the run

	// What a fault keeps from Inject to Heal.
	begun  bool
	conn   *pgx.Conn
	index  string
	hits   int
	term   rig.Leadership
	skewed *rig.Member
	ledBy  *rig.Place // where it became the leader
	joined *rig.Member
	stop   func() error
	node   stack.Server // of Elasticsearch
	// Of the members, before the fault.
	primary *patroni.Host
	started time.Time // its PostgreSQL
}

// New returns an injection of the fault of that name, with At set to now. There must be such a fault: see
// [Named]. m is the member that it is aimed at, or nil.
func New(name string, t *Target, m *rig.Member, p Params) *Injection {
	i := &Injection{Fault: Named(name), Params: p, Target: t, Member: m, At: time.Now()}
	if m != nil {
		now := m.Instance()
		i.Signal = func(sig syscall.Signal) (time.Time, error) { return now.Signal(sig) }
	}
	return i
}

// Inject begins the fault where it is available, and returns a [Skip] or a [Never] where it is not.
// Heal takes away what it has begun, whatever it returns.
func (i *Injection) Inject(ctx context.Context) error {
	return i.Play(ctx, func() {
		if i.Available != nil {
			i.Available(i)
		}
		i.begun = true
		i.Fault.Inject(i)
	})
}

// Observe notes what the fault has met, in Note and Findings. It returns a [Skip] when that is nothing.
func (i *Injection) Observe(ctx context.Context) error { return i.play(ctx, i.Fault.Observe) }

// Heal ends a fault that Inject has begun, also when that failed, and does nothing before. The end of
// ctx does not keep it from that.
func (i *Injection) Heal(ctx context.Context) error {
	if !i.begun {
		return nil
	}
	return i.play(context.WithoutCancel(ctx), i.Fault.Heal)
}

func (i *Injection) play(ctx context.Context, part func(*Injection)) error {
	if part == nil {
		return nil
	}
	return i.Play(ctx, func() { part(i) })
}

// All returns a copy of the catalogue, in the order of the reports.
func All() []Fault {
	return slices.Concat(processes(), instances(), sessions(), networks(), servers(), answers(), indices(), databases(), full(), clocks(), nodes(), onDemand(), members())
}

// Named returns a copy of the fault of that name, or nil when there is none.
func Named(name string) *Fault {
	all := All()
	if n := slices.IndexFunc(all, func(f Fault) bool { return f.Name == name }); n >= 0 {
		return &all[n]
	}
	return nil
}

// List writes the names of the faults and what they do.
func List(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range All() {
		fmt.Fprintf(tw, "%s\t%s\n", f.Name, f.About)
	}
	_ = tw.Flush()
}

// Names is the value of a flag that names faults, separated by commas.
type Names []string

// Set implements pflag.Value. It replaces all names, and returns an error for one that no fault has. A
// name that is given twice is drawn twice as often.
func (l *Names) Set(text string) error {
	*l = nil
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if Named(name) == nil {
			return fmt.Errorf("no fault is named %q; --list names them", name)
		}
		*l = append(*l, name)
	}
	return nil
}

// String implements pflag.Value.
func (l *Names) String() string { return strings.Join(*l, ",") }

// Type implements pflag.Value.
func (l *Names) Type() string { return "FAULT,…" }

const second = time.Second

// Dice decides about faults by chance. Its decisions are a function of the seed of its Rand. It is not
// safe for concurrent use.
type Dice struct{ *rand.Rand }

// Between returns low and a whole number of milliseconds, up to high, which must not be less than low. Each
// is as likely as the others.
func (d *Dice) Between(low, high time.Duration) time.Duration {
	ms := int64((high - low) / time.Millisecond)
	return low + time.Duration(d.Int64N(ms+1))*time.Millisecond
}

// lasts returns a Draw that sets nothing but Hold.
func lasts(low, high time.Duration) func(*Dice, *Params) {
	return func(d *Dice, p *Params) { p.Hold = d.Between(low, high) }
}
