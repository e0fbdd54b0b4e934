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

// Measure says which time of a fault counts.
type Measure string

// The measures.
const (
	Nothing   Measure = ""
	Takeover  Measure = "takeover"             // fault → first event settled under a newer epoch
	Handover  Measure = "after last settle"    // last event of the old term → first of the next
	Restarted Measure = "after the server was" // server takes work again → first settled event
)

// Where says what servers a fault needs.
type Where int

// The servers.
const (
	Anywhere Where = iota
	Nodes          // several of Elasticsearch
	Members        // of a PostgreSQL that fails over by itself
	Shards         // that instances share
)

// Fault is an entry of the catalogue.
type Fault struct {
	Name    string
	About   string
	Measure Measure
	Share   int   // of a deck of chaos's schedule; 0: only when asked for by name
	Aimed   bool  // at an instance, which may be a standby; else at the leader, or at no instance
	Where   Where // it is drawn
	// OneShard says that the fault meets the leader of one shard, and not as the leader of others.
	OneShard bool
	// Crash says that PostgreSQL may lose what was committed without waiting for the disk, or for
	// another member.
	Crash bool
	// Lasting faults go on beside others until their Hold is over.
	Lasting bool

	// Draw decides by chance what the fault needs; nil: nothing. Chaos draws; other programs
	// give the Params to [New] themselves.
	Draw func(*Dice, *Params)
	// Available returns a [Skip], or [Never], where the fault cannot be injected; nil: it can everywhere.
	Available func(context.Context, *Injection) error
	// Inject begins the fault. It corrects Injection.At where the call takes time before the
	// fault begins.
	Inject func(context.Context, *Injection) error
	// Observe is called just before Heal, to note what the fault has met; nil: nothing.
	Observe func(context.Context, *Injection) error
	// Heal ends the fault and starts again what it has ended; nil: it ends by itself.
	Heal func(context.Context, *Injection) error
}

// EndsTerm reports whether the fault takes the leadership from the leader that it meets.
func (f *Fault) EndsTerm() bool { return f.Measure == Takeover || f.Measure == Handover }

// Skip is why a fault cannot be injected here and now.
type Skip string

// Error implements error.
func (s Skip) Error() string { return string(s) }

// Never is a [Skip] that what the run was started with makes certain.
type Never string

// Error implements error.
func (n Never) Error() string { return string(n) }

// Params is what chance decides about one fault. What a fault does not use is zero.
type Params struct {
	Hold    time.Duration // how long it lasts
	Latency time.Duration
	Jitter  time.Duration
	Every   int   // one of so many requests is hit
	Bytes   int64 // into a request, or the largest that is let through
	Variant int   // which of the forms of a fault; see the fault
}

// Process is an instance that signals reach: a process of [rig.Fleet], or a unit in a machine.
type Process interface {
	Signal(sig syscall.Signal) (time.Time, error)
}

// SignalFunc is a function that is a [Process].
type SignalFunc func(syscall.Signal) (time.Time, error)

// Signal implements Process.
func (f SignalFunc) Signal(sig syscall.Signal) (time.Time, error) { return f(sig) }

// Target is what faults are injected into.
type Target struct {
	*rig.Group
	Seed   uint64
	Skewed string        // binary whose wall clock is off; empty: none was built
	Skew   time.Duration // by this much
	// Primary is the PostgreSQL server that takes writes; empty means the one that was started
	// as such.
	Primary stack.Server
	// Patroni is the PostgreSQL that fails over by itself, where it does; nil elsewhere.
	Patroni *patroni.Cluster
	// Shards are all of those that instances share; Group is then one of them. Empty elsewhere.
	Shards rig.Shards
}

// Injection is one fault as it is carried out.
type Injection struct {
	*Fault
	Params
	*Target
	Member  *rig.Member // that it is aimed at; nil where the instances are none of the rig's
	Process Process     // of the member
	Leader  bool        // the member led
	Epoch   int64       // of the term that the fault met

	At       time.Time // when it began
	Accepts  time.Time // when a restarted server took work again
	Note     string    // what it has met, for the line about it
	Findings []string  // what is wrong that only the fault can see

	// What a fault keeps from Inject to Heal.
	begun  bool
	conn   *pgx.Conn
	index  string
	hits   int
	term   rig.Leadership
	skewed *rig.Member
	ledBy  *rig.Group // whose leader it became
	joined *rig.Member
	stop   func() error
	node   stack.Server // of Elasticsearch
	// Of the members, before the fault.
	primary *patroni.Host
	started time.Time // its PostgreSQL
}

// New returns an injection of the fault of that name, of which there must be one.
func New(name string, t *Target, m *rig.Member, p Params) *Injection {
	i := &Injection{Fault: Named(name), Params: p, Target: t, Member: m, At: time.Now()}
	if m != nil {
		i.Process = m.Instance()
	}
	return i
}

// Inject begins the fault, where it is available.
func (i *Injection) Inject(ctx context.Context) error {
	if i.Available != nil {
		if err := i.Available(ctx, i); err != nil {
			return err
		}
	}
	i.begun = true
	return i.Fault.Inject(ctx, i)
}

// Observe notes what the fault has met.
func (i *Injection) Observe(ctx context.Context) error {
	if i.Fault.Observe == nil {
		return nil
	}
	return i.Fault.Observe(ctx, i)
}

// Heal ends a fault that was begun. The end of ctx does not keep it from that.
func (i *Injection) Heal(ctx context.Context) error {
	if i.Fault.Heal == nil || !i.begun {
		return nil
	}
	return i.Fault.Heal(context.WithoutCancel(ctx), i)
}

// All returns the catalogue, in the order of the reports.
func All() []Fault {
	return slices.Concat(processes(), instances(), sessions(), networks(), servers(), answers(), indices(), databases(), full(), clocks(), nodes(), onDemand(), members())
}

// Named returns the fault of that name, or nil.
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

// Names is the value of a flag that names faults.
type Names []string

// Set implements pflag.Value; a name may be given twice to weigh it.
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

// Dice decides about faults by chance. Its decisions are a function of its seed.
type Dice struct{ *rand.Rand }

// Between returns a duration in whole milliseconds, each as likely as the others.
func (d *Dice) Between(low, high time.Duration) time.Duration {
	ms := int64((high - low) / time.Millisecond)
	return low + time.Duration(d.Int64N(ms+1))*time.Millisecond
}

// lasts is a Draw of nothing but a duration.
func lasts(low, high time.Duration) func(*Dice, *Params) {
	return func(d *Dice, p *Params) { p.Hold = d.Between(low, high) }
}
