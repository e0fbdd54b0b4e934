package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

const (
	defaultFaults   = 60
	defaultDuration = 3 * time.Minute
	// shardInstances is how many instances share shards: with two, an instance that goes leaves
	// nothing to share.
	shardInstances = 3
)

// Command returns `weftlab chaos`.
func Command() *cobra.Command {
	var (
		opts Options
		list bool
		only faults.Names
	)
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Break everything around a pair of instances, and check that nothing was lost or mixed up",
		Long: `Start a PostgreSQL, an Elasticsearch and two instances of weft, each behind its own
faulty ways to both servers. A writer changes entities all the time, with commits that
are not in the order of their versions, while faults from a seeded schedule come one
after the other: processes are killed, frozen and asked to leave, sessions ended, ways
cut, slowed down and reset, servers restarted, answers falsified.

In the end everything is healed and drained, and what the database recorded of itself,
what passed to Elasticsearch, and both stores are judged: no event lost or out of order,
no document taken back or come back, one claimer at a time, no verdict and no send
without a lease, both stores equal. With --rebuilds the index is built again all the time,
commands are killed too, and no search by the alias may fail or find an older state. With --shards
instances share shards, an instance also stays away for a while, or another one comes, and every
entity must stay in its shard. A table says how long takeovers took. The servers that DATABASE_URL and ELASTIC_URL name are
left alone: chaos starts its own.

Exit code 0 means that every figure is 0 and the stores are equal; 1 means anything
else, and the evidence stays: logs, schedule, record, what passed, the rows in question.`,
		Example: `  weftlab chaos
  weftlab chaos --duration 30m --json chaos.json
  weftlab chaos --only sigkill,sigstop --faults 20
  weftlab chaos --seed 42 --evidence ./evidence
  weftlab chaos --upgrade v1.2.0
  weftlab chaos --finished archive
  weftlab chaos --domain shop
  weftlab chaos --rebuilds --duration 10m
  weftlab chaos --elastic-nodes 3
  weftlab chaos --shards 4 --duration 14m
  weftlab chaos --patroni
  weftlab chaos --postgres 14 --opensearch 2.19.3
  weftlab chaos --list`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(cobra.NoArgs(cmd, args), opts.check(), withShards(cmd.Flags()))
		},
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			if list {
				faults.List(cmd.OutOrStdout())
				return nil
			}
			if opts.Domain != Wordloom && opts.Domain != Shop {
				return fmt.Errorf("--domain %q: want %s or %s", opts.Domain, Wordloom, Shop)
			}
			// A limit that was given is the only one.
			f := cmd.Flags()
			if f.Changed("duration") && !f.Changed("faults") {
				opts.Faults = 0
			}
			if f.Changed("faults") && !f.Changed("duration") {
				opts.Duration = 0
			}
			if opts.Shards > 1 && !f.Changed("instances") {
				opts.Instances = shardInstances
			}
			if !f.Changed("seed") {
				opts.Seed = uint64(rand.Uint32()) // short enough to be typed again
			}
			opts.Only = only
			opts.Out, opts.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			opts.Environ = os.Environ()
			return Run(ctx, opts)
		}),
	}
	f := cmd.Flags()
	f.IntVar(&opts.Instances, "instances", 2, "how many instances of weft, 2 to 9")
	f.DurationVar(&opts.Duration, "duration", defaultDuration, "no new fault after this time")
	f.IntVar(&opts.Faults, "faults", defaultFaults, "no more faults than this")
	f.Var(&only, "only", "draw from these faults only")
	f.Uint64Var(&opts.Seed, "seed", 0, "draw the schedule of this seed (default a random one)")
	f.IntVar(&opts.Rate, "rate", 300, "events per second that the writer produces, 10 to 5000")
	f.StringVar(&opts.JSON, "json", "", "write the figures to `FILE` as JSON")
	f.StringVar(&opts.Evidence, "evidence", "", "keep the evidence in `DIR`, also that of a clean run")
	f.StringVar(&opts.Domain, "domain", Wordloom, "what is written and compared: wordloom, or shop, the example with children")
	f.BoolVar(&opts.Rebuilds, "rebuilds", false, "build the index again all the time, beside searches")
	f.StringVar((*string)(&opts.Finished), "finished", "", "what becomes of events that are done: keep, archive or delete (default weft's own)")
	f.StringVar(&opts.Upgrade, "upgrade", "", "let instances of another build, a `BINARY|REVISION`, and of this one lead in turns")
	f.StringVar(&opts.Binary, "weft", "", "run this weft `FILE` instead of building one, which leaves out skewed-clock")
	f.IntVar(&opts.HeapMB, "elastic-heap", 0, "heap of each Elasticsearch in MiB (default that of the stack)")
	f.IntVar(&opts.ElasticNodes, "elastic-nodes", 1, "nodes of Elasticsearch, 1 to 9; single ones of several are killed, frozen, restarted and cut off, too")
	f.IntVar(&opts.Shards, "shards", 1, "shards that entities are dealt out to, 1 to 8; instances (three unless given) share several, and also come and go")
	f.BoolVar(&opts.Patroni, "patroni", false, "PostgreSQL is three members behind HAProxy that Patroni fails over, commits wait for a second one, and members are killed and frozen, too")
	opts.AddFlags(f)
	cmd.MarkFlagsMutuallyExclusive("patroni", "postgres")
	f.BoolVar(&list, "list", false, "name the faults and end")
	return cmd
}

// withShards refuses flags that do not go with several shards.
func withShards(f *pflag.FlagSet) error {
	if f.Lookup("shards").Value.String() == "1" {
		return nil
	}
	for _, other := range []string{"domain", "elastic-nodes", "patroni", "rebuilds", "upgrade"} {
		if f.Changed(other) {
			return fmt.Errorf("--shards and --%s do not go together: leave one of them out", other)
		}
	}
	return nil
}

// check refuses numbers that are out of their limits.
func (o *Options) check() error {
	for _, l := range []struct {
		name         string
		n, low, high int
	}{{"instances", o.Instances, 2, 9}, {"rate", o.Rate, 10, 5000}, {"elastic-nodes", o.ElasticNodes, 1, 9}, {"shards", o.Shards, 1, 8}} {
		if l.n < l.low || l.n > l.high {
			return fmt.Errorf("--%s: %d is no number from %d to %d", l.name, l.n, l.low, l.high)
		}
	}
	return nil
}
