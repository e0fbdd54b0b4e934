package drill

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// scenarioArgs wants scenarios, all of them, or the few that every change has to pass.
const scenarioArgs = "SCENARIO...|all|fast"

// Commands returns `weftlab list`, `run`, `verify`, `export`, `clean` and `exercise`.
func Commands() []*cobra.Command {
	return []*cobra.Command{listCommand(), runCommand(), verifyCommand(), exportCommand(), cleanCommand(), exerciseCommand()}
}

// named requires at least n arguments, each the name of a scenario or of several.
func named(n int) cobra.PositionalArgs {
	return cobra.MatchAll(cobra.MinimumNArgs(n), func(_ *cobra.Command, args []string) error {
		_, err := lookUp(args)
		return err
	})
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Args:  named(0),
		Use:   "list [SCENARIO...]",
		Short: "Name the failure drills, what they do, what they must show, and their parameters",
		Example: `  weftlab list
  weftlab list es_429_inject`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"all"}
			}
			return List(cmd.OutOrStdout(), args...)
		},
	}
}

// take takes what the flags do not say from a command and its environment.
func (o *Options) take(cmd *cobra.Command) {
	o.Out, o.Progress, o.Environ = cmd.OutOrStdout(), cmd.ErrOrStderr(), os.Environ()
	o.DatabaseURL, o.ElasticURL, o.Environment = os.Getenv("DATABASE_URL"), os.Getenv("ELASTIC_URL"), os.Getenv("WORDLOOM_ENV")
}

func runCommand() *cobra.Command {
	var opts Options
	cmd := &cobra.Command{
		Use:   "run " + scenarioArgs,
		Short: "Trigger failures and keep the evidence of what weft does about them",
		Long: `Run failure drills: start weft, trigger the failure, wait for what weft does about it,
undo the failure, and leave the evidence in a directory of its own: what was done, the
metrics before and after, logs, spans, and what the database and Elasticsearch hold.

It starts a PostgreSQL and an Elasticsearch, once for all scenarios. Where DATABASE_URL
or ELASTIC_URL is set it works there instead, in a schema, an index and a leader group of
its own that are removed in the end, and only if environment_sentinel (or else the
database's name) says test or dev. Drills that stop servers start their own anyway.

Exit code 0 means that the drills were carried out. What they show is for verify to say.`,
		Example: `  weftlab run es_down_connect
  weftlab run es_429_inject --set ratio=0.3 --set seed=7
  weftlab run all && weftlab verify all
  weftlab run es_bulk_partial --without-fault && weftlab verify es_bulk_partial   # which must fail`,
		Args: named(1),
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			opts.take(cmd)
			return Run(ctx, opts, cmd.Flags().Args()...)
		}),
	}
	verdict.EvidenceFlag(cmd, &opts.Evidence)
	cmd.Flags().StringArrayVar(&opts.Set, "set", nil, "a parameter of the scenario as `NAME=VALUE`; weftlab list names them")
	cmd.Flags().BoolVar(&opts.WithoutFault, "without-fault", false, "do everything but trigger the failure; verify must find that out")
	cmd.Flags().StringVar(&opts.Binary, "weft", "", "run this weft `FILE` instead of building one")
	cmd.Flags().IntVar(&opts.HeapMB, "elastic-heap", 0, "Elasticsearch's heap in MiB (default that of the stack)")
	return cmd
}

func verifyCommand() *cobra.Command {
	var root, run string
	cmd := &cobra.Command{
		Use:   "verify " + scenarioArgs,
		Short: "Judge drills by their evidence alone",
		Long: `Judge the newest run of each scenario by what it has left in its directory, print every
assertion with what was seen and what was needed, and keep the table beside it in
_result.json. It needs no server.

Exit code 0 means that every assertion holds, 1 that one does not, that the run was broken
off, of which nothing else is judged, or that there is no evidence.`,
		Example: `  weftlab verify es_down_connect
  weftlab verify es_down_connect --run 20261121T164207Z
  weftlab verify all`,
		Args: named(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return VerifyAll(cmd.OutOrStdout(), root, run, args...)
		},
	}
	verdict.EvidenceFlag(cmd, &root)
	verdict.RunFlag(cmd, &run)
	return cmd
}

func exportCommand() *cobra.Command {
	var opts ExportOptions
	cmd := &cobra.Command{
		Use:   "export SCENARIO",
		Short: "Write the traces of a drill's events and batches beside its evidence",
		Long: `Write the traces of events (by outbox_event_id, spans outbox.process) and of batches (by
claim_batch_id, spans projection.process_batch) into _exports of the run, in the form of
Jaeger's API, and print how many there are. Without --event and --batch these are the
run's first events, their batches and their entities, the batches and claims that carry this
build's wordloom.obs_schema, and the names of the services and of the run's operations.

The traces come from the Jaeger that JAEGER_URL names; the run must have been given its
OTLP endpoint (OTEL_EXPORTER_OTLP_ENDPOINT, or JAEGER_URL alone for port 4318). Without
JAEGER_URL they come from the spans that the run has received itself.

Exit code 1 means that something has no trace.`,
		Example: `  weftlab export es_down_connect
  JAEGER_URL=http://localhost:16686 weftlab export es_429_inject --limit 20 --lookback 2h`,
		Args: cobra.MatchAll(cobra.ExactArgs(1), named(1)),
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			opts.Out, opts.JaegerURL = cmd.OutOrStdout(), os.Getenv("JAEGER_URL")
			return Export(ctx, opts, cmd.Flags().Arg(0))
		}),
	}
	verdict.EvidenceFlag(cmd, &opts.Evidence)
	verdict.RunFlag(cmd, &opts.Run)
	cmd.Flags().StringArrayVar(&opts.Events, "event", nil, "`ID` of an outbox row; may be given again")
	cmd.Flags().StringArrayVar(&opts.Batches, "batch", nil, "`ID` of a claim batch; may be given again")
	cmd.Flags().StringVar(&opts.Service, "service", "", "service name in Jaeger (default that of the run)")
	cmd.Flags().DurationVar(&opts.Lookback, "lookback", time.Hour, "how far back Jaeger looks")
	cmd.Flags().IntVar(&opts.Limit, "limit", 20, "traces of one question to Jaeger, and events where none are named")
	return cmd
}

func exerciseCommand() *cobra.Command {
	var opts ExerciseOptions
	cmd := &cobra.Command{
		Use:   "exercise " + strings.Join(ExerciseNames(), "|"),
		Short: "Break something without saying what, and time how long you take to find and fix it",
		Long: `Start a pair of instances under load, break something about what the argument names, and wait
for your diagnosis: the name of the runbook that you would open. Then fix it, see how long you
took, and read the runbook. The times are kept as evidence; weftlab history shows them.

It starts servers of its own, or works in those that DATABASE_URL and ELASTIC_URL name, as run does.`,
		Example: `  weftlab exercise leader
  weftlab exercise any --within 5m`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: ExerciseNames(),
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			opts.take(cmd)
			opts.In = cmd.InOrStdin()
			if !cmd.Flags().Changed("seed") {
				opts.Seed = uint64(time.Now().UnixNano())
			}
			return Exercise(ctx, opts, cmd.Flags().Arg(0))
		}),
	}
	verdict.EvidenceFlag(cmd, &opts.Evidence)
	cmd.Flags().DurationVar(&opts.Within, "within", time.Minute, "the fault comes within this time")
	cmd.Flags().Uint64Var(&opts.Seed, "seed", 0, "of the fault and its moment (default by the clock)")
	return cmd
}

func cleanCommand() *cobra.Command {
	var opts Options
	var keep int
	cmd := &cobra.Command{
		Use:   "clean " + scenarioArgs,
		Short: "Undo what a killed run has left behind, and remove old evidence",
		Long: `Remove from the servers that DATABASE_URL and ELASTIC_URL name what runs have left there
because they were killed: their index with any block on it, the sessions of their
instances, their schema. A run that is under way is left alone. A run that comes to its
end, whatever end, has done so itself, and servers that it has started are gone with it.

It may be called again, and looks at the environment of the database first, as run does.`,
		Example: `  weftlab clean all
  weftlab clean es_write_block_4xx --keep-last 10`,
		Args: named(1),
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			if !cmd.Flags().Changed("keep-last") {
				keep = -1
			}
			opts.take(cmd)
			return Clean(ctx, opts, keep, cmd.Flags().Args()...)
		}),
	}
	verdict.EvidenceFlag(cmd, &opts.Evidence)
	cmd.Flags().IntVar(&keep, "keep-last", 0, "remove the evidence of all but the newest `N` runs of each scenario")
	return cmd
}
