package failover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/patroni"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Command returns `weftlab failover`.
func Command() *cobra.Command {
	var opts Options
	var sync, async bool
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Lose the PostgreSQL primary under load, promote its replica, and check what came over",
		Long: `Start a PostgreSQL with a streaming replica, an Elasticsearch, two instances of weft and
a writer that all name both PostgreSQL servers. Then stop the primary hard, promote the
replica, make a new replica, and begin again with the roles exchanged.

Exit code 0 means that no event of the new primary was lost or out of order, no two
instances claimed at once, both stores agree, and, with --sync, that nothing was lost
that the producer saw committed; with --async, that weft named every document that the
new primary does not know. 1 means anything else.`,
		Example: `  weftlab failover
  weftlab failover --async --times 3
  weftlab failover --patroni
  weftlab failover --patroni --async --haproxy --faults member-killed,member-frozen
  weftlab failover --times 20 --seed 7 --json failover.json`,
		Args: cobra.NoArgs,
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			opts.Replication = stack.Synchronous
			if async || !sync {
				opts.Replication = stack.Asynchronous
			}
			if !cmd.Flags().Changed("seed") {
				opts.Seed = uint64(rand.Uint32())
			}
			opts.Out, opts.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			opts.Environ = os.Environ()
			return Run(ctx, opts)
		}),
	}
	f := cmd.Flags()
	f.IntVar(&opts.Times, "times", 5, "lose the primary `N` times")
	opts.Faults = faults.MemberFaults()
	f.BoolVar(&opts.Patroni, "patroni", false, "let Patroni manage three members, and inject each of --faults once")
	f.BoolVar(&opts.Proxy, "haproxy", false, "with --patroni: reach the primary through HAProxy")
	f.Var(&opts.Faults, "faults", "with --patroni: only these")
	cmd.MarkFlagsMutuallyExclusive("patroni", "times")
	f.BoolVar(&sync, "sync", true, "commits wait for the replica")
	f.BoolVar(&async, "async", false, "commits do not wait, and the replica is cut off before the primary is lost")
	cmd.MarkFlagsMutuallyExclusive("sync", "async")
	f.DurationVar(&opts.Lag, "lag", 300*time.Millisecond, "with --async: how long before")
	f.Uint64Var(&opts.Seed, "seed", 0, "of the writer and of the faults; random by default")
	f.StringVar(&opts.JSON, "json", "", "write the figures to `FILE` as JSON")
	f.StringVar(&opts.Dir, "dir", "", "keep the logs of the instances in `DIR`")
	f.StringVar(&opts.Binary, "weft", "", "run this weft `FILE` instead of building one")
	return cmd
}

const (
	index = "weft-failover"
	group = "failover"

	poll = 10 * time.Millisecond
	// bound is for what takes a second or two on an idle machine.
	bound = time.Minute
	// warm is how many events are to be settled before the primary is lost.
	warm = 100

	writers   = 4
	rate      = 320 // events per second
	txTimeout = 3 * time.Second
	entities  = 600
)

// Entities that the stream leaves alone: what is done to them while the replica is cut off is
// lost for certain.
const (
	edited = entities + iota
	removed
	created
	probed // and one for each further probing client
)

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped

	Times int // how often the primary is lost
	// Patroni manages three members instead; then each of Faults takes place once.
	Patroni bool
	Proxy   bool // with Patroni: the way to the primary is HAProxy, instead of a URL with all members
	Faults  faults.Names

	Replication stack.Replication
	Lag         time.Duration // asynchronous: the replica is cut off this long before
	Seed        uint64

	Binary     string // weft; empty means to build it
	ElasticURL string // a server to use instead of starting one
	Index      string // empty means one of our own name
	Dir        string // for logs and the binary; empty means a temporary one, kept on failure
	JSON       string // file for the result; empty means none
}

type run struct {
	*rig.Group
	rig.Script
	opts   Options
	random *rand.Rand
	app    *traffic.Application
	stream *traffic.Stream

	primary, replica stack.Server

	cluster *patroni.Cluster // nil: the pair above
	probes  []*traffic.Application

	judged map[*traffic.Application]int // acknowledged events that were looked for on a new primary
	gone   map[history.Enqueued]bool
}

// Run loses the primary as often as it is told. It returns an error when something could not be
// done and when the verdict is not clean.
func Run(ctx context.Context, opts Options) error {
	if opts.Times < 1 && !opts.Patroni {
		return fmt.Errorf("times: %d, want 1 or more", opts.Times)
	}
	dir := rig.Dir{Path: opts.Dir, Program: "failover", Holds: "logs"}
	return dir.Run(ctx, func(ctx context.Context, path string) (err error) {
		r := &run{
			Group: &rig.Group{}, opts: opts, random: rand.New(rand.NewPCG(opts.Seed, 1)), app: &traffic.Application{},
			primary: stack.Postgres, replica: stack.Replica, gone: map[history.Enqueued]bool{}, judged: map[*traffic.Application]int{},
		}
		defer func() { err = errors.Join(err, r.close(ctx)) }()
		result := &Result{Replication: opts.Replication, Seed: opts.Seed}
		err = r.Play(ctx, func() {
			r.prepare(path)
			r.all(result)
		})
		if err != nil {
			return err
		}
		result.write(opts.Out)
		return errors.Join(rig.WriteResult(opts.JSON, result), result.Err())
	})
}

// all plays the rounds while the application writes, and judges.
func (r *run) all(result *Result) {
	r.write(upsert(edited), upsert(removed))
	r.app.Timeout = txTimeout
	var streamed error
	stop := rig.During(r.Ctx, func(ctx context.Context) { streamed = r.stream.Run(ctx) })
	defer stop() // also when a round fails
	r.await("first events", func(ctx context.Context) error {
		return r.Holds(ctx, `select count(*) >= $1 from search_outbox_events where status = 'done'`, warm)
	})
	r.rounds(result)
	stop()
	r.Must(streamed)
	r.judge(result)
}

func (r *run) write(changes ...traffic.Change) []outbox.NewEvent {
	return rig.Try(r.app.Write(r.Ctx, changes...)).Must(r)
}

func (r *run) rounds(result *Result) {
	times := r.opts.Times
	if r.opts.Patroni {
		result.Route, times = "hosts", len(r.opts.Faults)
		if r.opts.Proxy {
			result.Route = "haproxy"
		}
	}
	for n := range times {
		var round *Round
		bound, play := 3*bound, func() { round = r.round() }
		if r.opts.Patroni {
			bound, play = memberBound, func() { round = r.member(r.opts.Faults[n]) }
		}
		r.Part(fmt.Sprintf("round %d", n+1), bound, play)
		fmt.Fprintf(r.opts.Out, "%d of %d: %s\n", n+1, times, round)
		result.Rounds = append(result.Rounds, *round)
	}
}

func (r *run) prepare(dir string) {
	g, ctx := errgroup.WithContext(r.Ctx)
	g.Go(func() error { return r.open(ctx) })
	g.Go(func() (err error) {
		r.Fleet, err = rig.NewFleet(ctx, r.opts.Binary, dir)
		return err
	})
	r.Must(g.Wait())
	r.Index, r.Place.Group = cmp.Or(r.opts.Index, index), group
	r.Fleet.Env = rig.Environment(r.opts.Environ, r.opts.ElasticURL != "", append(r.Settings(), "WEFT_PROJECTIONS=search_index_to_elastic")...)
	r.Must(r.Fleet.Run(r.Ctx, "migrate", "up"))
	r.Must(history.Install(r.Ctx, r.Pool, rig.Outbox))
	r.app.Pool = rig.Try(rig.OpenPool(r.Ctx, r.DatabaseURL, writers+1)).Must(r)
	r.stream = &traffic.Stream{App: r.app, Writers: writers, Rate: rate, Seed: r.opts.Seed, Entities: traffic.Entities(entities)}
	if r.cluster != nil {
		r.openProbes()
	}
	r.Must(r.LaunchAll(r.Ctx, "a", "b"))
}

func (r *run) close(ctx context.Context) error {
	errs := []error{r.Stop()}
	for _, app := range r.applications() {
		if app.Pool != nil {
			app.Pool.Close()
		}
	}
	if r.Place != nil {
		errs = append(errs, r.Place.Close(ctx))
	}
	if r.cluster != nil {
		errs = append(errs, r.cluster.Close())
	}
	return errors.Join(errs...)
}

// await waits for a condition, unless an instance ends before.
func (r *run) await(what string, check func(context.Context) error) {
	r.Must(r.Fleet.Await(r.Ctx, bound, poll, what, check))
}

// drained is for a time without a stream.
func (r *run) drained() { r.Must(r.Drained(r.Ctx, bound, r.Fleet.Alive)) }

func upsert(n int) traffic.Change { return traffic.Upsert(traffic.Entity(n), "changed by name") }
