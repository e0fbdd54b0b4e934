package failover

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
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
		Args:         cobra.NoArgs,
		SilenceUsage: true,
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
