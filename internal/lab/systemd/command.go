package systemd

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

const defaultOutage = 2 * time.Minute

// Command returns `weftlab systemd`.
func Command() *cobra.Command {
	var opts Options
	cmd := &cobra.Command{
		Use:   "systemd",
		Short: "Drill a pair in two machines with a systemd of their own, from installation to removal",
		Long: `Build the Debian package twice, under two versions, boot two containers with a systemd
of their own, install the package, and drill the pair under load against a PostgreSQL
and an Elasticsearch that are started here: start, reload, stop, kill, freeze, upgrade,
an outage of PostgreSQL, machines that are shut down and that go dark, instances of two
groups on one machine, removal.

It takes root, and a kernel that allows mounts and cgroups; where that is not so it says
so and fails. Debian's packages that are missing are installed. Nothing of it is left.

Exit code 0 means that every drill has shown what it has to show, that nothing was lost,
out of order or in the dead letter, and that no upgrade stopped the flow for more than a
second; 1 means anything else, and the evidence stays: journals, consoles, findings.`,
		Example: `  weftlab systemd
  weftlab systemd --outage 20s --json systemd.json
  weftlab systemd --only start,upgrade --evidence ./evidence`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			opts.Out, opts.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return Run(ctx, opts)
		}),
	}
	f := cmd.Flags()
	f.DurationVar(&opts.Outage, "outage", defaultOutage, "how long PostgreSQL is away")
	f.StringSliceVar(&opts.Only, "only", nil, "these drills only: "+strings.Join(names(), ", "))
	f.StringSliceVar(&opts.Packages, "packages", nil, "two package `FILES`, the older one first, instead of building them")
	f.StringVar(&opts.JSON, "json", "", "write the figures to `FILE` as JSON")
	f.StringVar(&opts.Evidence, "evidence", "", "keep the evidence in `DIR`, also that of a clean run")
	f.IntVar(&opts.HeapMB, "elastic-heap", 0, "Elasticsearch's heap in MiB (default that of the stack)")
	return cmd
}
