package demo

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Command returns `weftlab demo`.
func Command() *cobra.Command {
	var opts Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch two instances carry the documentation of Go's standard library",
		Long: `Write every doc comment of the standard library into search_index, each with its
outbox event, and let two instances of weft carry them into Elasticsearch. A stream of
edits goes on while the leader is killed three times. Then everything is compared,
document by document, and searched.

It starts a PostgreSQL and an Elasticsearch; where DATABASE_URL or ELASTIC_URL is set
it works in a schema and an index of its own on that server and removes them. It takes
less than 90 s after the downloads, usually half of that.

Exit code 0 means that no event was lost or out of order, no two instances were active
at once, and both stores agree; 1 means anything else.`,
		Example: `  weftlab demo
  weftlab demo --json result.json
  weftlab demo --keep`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			opts.Out, opts.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			opts.Environ = os.Environ()
			opts.DatabaseURL, opts.ElasticURL = os.Getenv("DATABASE_URL"), os.Getenv("ELASTIC_URL")
			return Run(ctx, opts)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&opts.JSON, "json", "", "write the figures to `FILE` as JSON")
	f.BoolVar(&opts.Keep, "keep", false, "leave the servers and both instances up, and say how to look around")
	f.StringVar(&opts.Dir, "dir", "", "keep the logs of the instances in `DIR`")
	f.StringVar(&opts.Binary, "weft", "", "run this weft `FILE` instead of building one")
	return cmd
}
