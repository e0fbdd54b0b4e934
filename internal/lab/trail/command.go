package trail

import (
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
)

// Command returns `weftlab trail`.
func Command() *cobra.Command {
	var opts Options
	cmd := &cobra.Command{
		Use:   "trail",
		Short: "Break something, and follow it from the graph over the trace and the log to the row",
		Long: `Start a PostgreSQL, an Elasticsearch, a Prometheus, a Jaeger and two instances of weft
under load. Then take Elasticsearch away for a while, write a document that it refuses,
and delete one that is not there. Every series that moves is followed: its labels are the
tags of a query to Jaeger, the trace's id is looked up in the logs, the event's id in
Postgres. What one step shows must be what the next one finds.

Exit code 0 means that every series led to its rows. The program needs prometheus on the
PATH, and builds Jaeger the first time.`,
		Example: `  weftlab trail
  weftlab trail --outage 1m
  weftlab trail --docs docs    # from the top of the sources`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Out, opts.Progress, opts.Environ = cmd.OutOrStdout(), cmd.ErrOrStderr(), os.Environ()
			// The caller sees to the other ways to end.
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			return Run(ctx, opts)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&opts.Calm, "calm", 15*time.Second, "let it run for so long before, between and after")
	f.DurationVar(&opts.Outage, "outage", 20*time.Second, "keep Elasticsearch away for so long")
	f.StringVar(&opts.Docs, "docs", "", "write the walk into observability.md of this `DIRECTORY`, and the graphs beside it")
	f.StringVar(&opts.Dir, "dir", "", "keep the logs of all processes in `DIR`")
	f.StringVar(&opts.Binary, "weft", "", "run this weft `FILE` instead of building one")
	f.IntVar(&opts.HeapMB, "elastic-heap", 0, "Elasticsearch's heap in MiB (default that of the stack)")
	return cmd
}
