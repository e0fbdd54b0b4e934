package bench

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

const defaultRounds = 5

// Command returns `weftlab bench`.
func Command() *cobra.Command {
	var opts Options
	var about strings.Builder
	for _, s := range scenarios() {
		fmt.Fprintf(&about, "\n  %-9s %s", s.name, s.about)
	}
	cmd := &cobra.Command{
		Use:   "bench SCENARIO…",
		Short: "Measure weft against a bare bulk loader, or one build against another",
		Long: `Start a PostgreSQL and an Elasticsearch and let weft, with its default settings, drain
a backlog of events, in turns with a bare loader that sends the same documents to the
same Elasticsearch: 1,000 per request, two requests in flight, nothing else to do. The
ratio of the two rates says what weft costs, whatever the machine.

Scenarios:` + about.String() + `

backlog, retrying and longtx compare the time of lists and leases with that at 20,000
pending; adopted and adopted-archive compare with the same run on weft's own tables, traced
with one that exports no traces; shards-2 and shards-4 with tables that have none; waiting, blocked and single say what such a backlog costs;
verify, rebuild and scrub, what comparing and rebuilding cost. With --compare or --against every scenario compares two builds of weft
instead: rates, or where the scenario is about times, times. With --least the exit code is 1
when a median ratio is worse than that.

The servers that DATABASE_URL and ELASTIC_URL name are left alone. Leave the machine
alone while it runs: the figures are of the whole machine.`,
		Example: `  weftlab bench distinct hot mixed
  weftlab bench distinct --rounds 9 --json bench.json --svg bench.svg
  weftlab bench backlog --events 200000 --rounds 1
  weftlab bench distinct --against main --least 0.9`,
		Args: cobra.MatchAll(cobra.MinimumNArgs(1), func(_ *cobra.Command, args []string) error {
			_, err := pick(args)
			return err
		}),
		ValidArgs:    scenarioNames(),
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Rounds < 1 || opts.Events < 0 {
				return fmt.Errorf("%d rounds of %d events: want at least one round, and no negative number", opts.Rounds, opts.Events)
			}
			if !(opts.Least >= 0) {
				return fmt.Errorf("least ratio %v: want no negative number", opts.Least)
			}
			opts.Scenarios, opts.Environ = args, os.Environ()
			opts.Out, opts.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return rig.RunE(func(ctx context.Context, _ *cobra.Command) error { return Run(ctx, opts) })(cmd, args)
		},
	}
	f := cmd.Flags()
	f.IntVar(&opts.Rounds, "rounds", defaultRounds, "times that each side has its turn")
	f.IntVar(&opts.Events, "events", 0, "`N` events instead of each scenario's own number, all else in proportion")
	f.StringVar(&opts.JSON, "json", "", "write the figures to `FILE` as JSON")
	f.StringVar(&opts.SVG, "svg", "", "write a chart of the ratios to `FILE`")
	f.StringVar(&opts.Binary, "weft", "", "measure this weft `BINARY` instead of building one")
	f.StringVar(&opts.Compare, "compare", "", "measure against this weft `BINARY`")
	f.StringVar(&opts.Against, "against", "", "measure against the weft of this git `REVISION`")
	f.Float64Var(&opts.Least, "least", 0, "fail when a median ratio is below `RATIO`, or above 1/RATIO where less is better (default no judgement)")
	f.IntVar(&opts.HeapMB, "elastic-heap", 0, "Elasticsearch's heap in MiB (default that of the stack)")
	return cmd
}
