package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/patroni"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped

	Instances int
	Duration  time.Duration // of the faults; 0 is no limit
	Faults    int           // 0 is no limit
	Only      []string      // names of faults; empty: all
	Seed      uint64
	Rate      int // events per second

	Domain   string          // [Wordloom] or [Shop]; empty means the first
	Finished outbox.Finished // what becomes of events that are done; empty: weft's default
	Rebuilds bool            // the index is built again all the time, beside searches
	Upgrade  string          // binary or revision of another build, which leads in turns with this one; empty means none

	JSON     string // file for the result; empty means none
	Evidence string // directory for the evidence, kept in any case; empty: a temporary one, kept on failure
	Binary   string // weft; empty means to build it
	HeapMB   int    // of each Elasticsearch; 0 is the stack's default

	Shards         int  // that entities are dealt out to, and that instances share; 1 or 0: none
	ElasticNodes   int  // as one cluster, with faults of single nodes
	Patroni        bool // manages a PostgreSQL of three members, with faults of theirs
	stack.Versions      // of the servers that are started

	// DatabaseURL and ElasticURL name servers to use instead of starting some: a
	// database that is the run's alone, and an Index that does not exist. They are not
	// stopped; faults that need that are skipped.
	DatabaseURL, ElasticURL, Index string
}

const (
	defaultIndex = "weft-chaos"
	writers      = 8

	entities    = 600
	hotEntities = 60

	// quietPeriod is between two status lines where they cannot be rewritten in place.
	quietPeriod = 10 * time.Second
)

// there returns which servers are more than one.
func (o *Options) there() (there []faults.Where) {
	if o.ElasticNodes > 1 {
		there = append(there, faults.Nodes)
	}
	if o.Patroni {
		there = append(there, faults.Members)
	}
	if o.Shards > 1 {
		there = append(there, faults.Shards)
	}
	return there
}

func (o *Options) schedule() *schedule {
	s := newSchedule(o.Seed, o.Only, o.there()...)
	s.shards = o.Shards
	return s
}

type run struct {
	*rig.Group
	rig.Script
	opts   Options
	screen *rig.Screen
	dir    string // evidence
	began  time.Time
	opened time.Time // by the database's clock, before weft was there

	shards      rig.Shards       // of the run's own place without shards
	cluster     *patroni.Cluster // nil without
	target      faults.Target
	otherBinary string // of the other build; empty when there is none
	starts      []start
	domain      *domain
	rebuilds    *rebuilds // nil without

	injections []*injection
	lasting    *injection // that goes on beside others, or nil
	unexpected []string   // instances that ended by themselves, or badly
	clocks     []string   // times in tables that are not the database's
	result     *Result    // once the run was judged
}

// Run starts the servers and the instances, injects faults, heals everything, and judges. It
// returns an error when something could not be done, and when a figure of the verdict is not
// what it must be.
func Run(ctx context.Context, opts Options) error {
	dir := rig.Dir{Path: opts.Evidence, Program: "chaos", Holds: fmt.Sprintf("seed %d, evidence", opts.Seed)}
	return dir.Run(ctx, func(ctx context.Context, path string) (err error) {
		r := &run{
			opts: opts, screen: rig.NewScreen(opts.Out, quietPeriod), dir: path, began: time.Now(), Group: &rig.Group{Recorder: proxy.NewRecorder()},
		}
		r.Pick, r.Unexpected = r.pick, func(i *rig.Instance) {
			r.unexpected = append(r.unexpected, i.EndedError().Error())
			r.screen.Line("  instance %s ended by itself", i.Name)
		}
		defer func() {
			r.screen.Refresh("")
			err = errors.Join(err, r.close(ctx))
		}()
		if err := r.Play(ctx, r.prepare); err != nil {
			return err
		}
		err = r.perform(ctx)
		r.screen.Refresh("")
		if r.result == nil {
			return errors.Join(err, r.keepWhatThereIs(ctx))
		}
		r.result.write(r.screen) // whatever became of the evidence
		return errors.Join(err, rig.WriteResult(opts.JSON, r.result), r.result.Err())
	})
}

// builds is where binaries are; they are no evidence.
func (r *run) builds() string { return filepath.Join(r.dir, "build") }

func (r *run) close(ctx context.Context) error {
	var errs []error
	if r.lasting != nil {
		errs = append(errs, r.lasting.Heal(ctx))
	}
	_ = r.Stop() // settle has looked at a clean end before
	if r.Place != nil {
		errs = append(errs, r.Place.Close(ctx))
	}
	if r.cluster != nil {
		errs = append(errs, r.cluster.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(r.builds()))...)
}

// prepare starts the servers and builds weft, at once, and then starts the instances.
func (r *run) prepare() {
	r.MustDo("directory for binaries", os.MkdirAll(r.builds(), 0o755))
	g, ctx := errgroup.WithContext(r.Ctx)
	g.Go(func() error { return r.open(ctx) })
	g.Go(func() error { return r.build(ctx) })
	g.Go(func() (err error) {
		r.otherBinary, err = otherBuild(ctx, r.opts.Upgrade, r.builds())
		return err
	})
	r.Must(g.Wait())
	r.Index = cmp.Or(r.opts.Index, defaultIndex)
	r.Fleet.Env = rig.Environment(r.opts.Environ, false, r.Settings()...)
	if r.opts.Finished != "" {
		r.Fleet.Env = append(r.Fleet.Env, "OUTBOX_FINISHED="+string(r.opts.Finished))
	}
	r.opened = rig.Try(r.Now(r.Ctx)).Must(r)
	r.install()
	r.domain = r.openDomain()
	for _, s := range r.shards {
		r.Must(s.Record(r.Ctx))
	}
	if r.opts.ElasticNodes > 1 && r.opts.Domain != Shop {
		r.Must(r.MakeIndex(r.Ctx, r.Index, rig.ClusterIndex))
	}
	r.target.Group, r.target.Patroni = r.Group, r.cluster
	var names []string
	for n := range r.opts.Instances {
		names = append(names, string(rune('a'+n)))
	}
	r.Must(r.LaunchAll(r.Ctx, names...))
	if r.opts.Rebuilds {
		r.openRebuilds()
	}
}

// open starts the servers. Of a PostgreSQL that fails over by itself each instance's own way
// ends at HAProxy.
func (r *run) open(ctx context.Context) (err error) {
	database := r.opts.DatabaseURL
	if r.opts.Patroni {
		r.cluster, err = patroni.Start(ctx, patroni.Options{Progress: r.opts.Progress, Synchronous: true})
		if err != nil {
			return err
		}
		database = r.cluster.ProxyURL()
	}
	r.Place, err = rig.Open(ctx, stack.Options{
		Progress: r.opts.Progress, HeapMB: r.opts.HeapMB, DatabaseURL: database, ElasticURL: r.opts.ElasticURL,
		Versions: r.opts.Versions, ElasticNodes: r.opts.ElasticNodes, Cables: r.opts.ElasticNodes > 1 && stack.CanCutOff(),
	}, writers+8)
	return err
}

// build makes the binary, and the one with a wrong wall clock if the schedule needs it.
func (r *run) build(ctx context.Context) (err error) {
	start := time.Now()
	if r.Fleet, err = rig.NewFleet(ctx, r.opts.Binary, r.builds()); err != nil {
		return err
	}
	r.Fleet.Dir = r.dir
	if r.opts.Binary != "" {
		return nil
	}
	if r.opts.schedule().contains(faults.SkewedClock, r.opts.Faults) {
		r.screen.Line("Building weft with a wrong wall clock …")
		r.target.Skew = skew(r.opts.Seed)
		variant, err := rig.SkewedClock(ctx, r.target.Skew)
		if err != nil {
			return err
		}
		if r.target.Skewed, err = rig.Build(ctx, r.builds(), variant); err != nil {
			return err
		}
	}
	r.screen.Line("Built weft in %.1f s", time.Since(start).Seconds())
	return nil
}

// perform runs writers and faults, heals, drains and judges.
func (r *run) perform(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	writing, stop := context.WithCancel(gctx)
	defer stop()
	g.Go(func() error { return r.domain.Run(writing) })
	g.Go(func() error { r.watch(writing); return nil })
	searching, end := context.WithCancel(gctx)
	defer end()
	if r.rebuilds != nil {
		g.Go(func() error { r.rebuilds.Run(writing); return nil })
		g.Go(func() error { r.rebuilds.searcher.Run(searching); return nil })
	}
	g.Go(func() error {
		defer stop()
		defer end()
		return r.Play(gctx, r.injectAll)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	return r.Play(ctx, func() {
		r.settle()
		r.judge()
	})
}

// keepWhatThereIs writes the evidence of a run that has failed before it was judged.
func (r *run) keepWhatThereIs(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	err := errors.Join(r.keepLogs(), r.keepSchedule())
	for n, s := range r.shards {
		applied := r.Recorder.Applied()
		if n > 0 {
			applied = nil // all of it is beside the first
		}
		if log, unread := history.Read(ctx, s.Pool, s.Outbox, s.Group); unread == nil {
			err = errors.Join(err, r.keepRecord(s.Shard, log, applied))
		}
	}
	return err
}

// otherBuild returns the binary of another build, nothing for nothing.
func otherBuild(ctx context.Context, what, dir string) (binary string, err error) {
	if what == "" {
		return "", nil
	}
	if info, err := os.Stat(what); err == nil && !info.IsDir() {
		return filepath.Abs(what)
	}
	binary, err = rig.BuildRevision(ctx, dir, what)
	return binary, rig.Wrap(fmt.Sprintf("%s is neither a file nor a revision that can be built", what), err)
}

type start struct {
	name  string
	at    time.Time
	other bool // of the other build
}

// pick notes a start. With another build, a member's processes are of both in turns, and the
// first ones of two neighbours differ.
func (r *run) pick(m *rig.Member, binary string) string {
	other := len(r.Members())%2 == 0
	for _, s := range slices.Backward(r.starts) {
		if s.name == m.Name {
			other = s.other != (binary == "")
			break
		}
	}
	other = other && r.otherBinary != ""
	r.starts = append(r.starts, start{m.Name, time.Now(), other})
	if binary == "" && other {
		return r.otherBinary
	}
	return binary
}

// otherTerms counts the terms that instances of the other build began.
func otherTerms(terms []history.Term, starts []start) (n int) {
	for _, t := range terms {
		for _, s := range slices.Backward(starts) {
			if s.name == t.Instance && s.at.Before(t.At) {
				if s.other {
					n++
				}
				break
			}
		}
	}
	return n
}
