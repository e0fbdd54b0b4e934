package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// paused is the JSON form of weft pause and weft resume. Names and units stay; fields may be
// added.
type paused struct {
	Projection string         `json:"projection"`
	Changed    bool           `json:"changed"` // false when it was so before
	Pause      *records.Pause `json:"pause"`   // null after weft resume
}

func (a *app) pauseCommand() *cobra.Command {
	return a.pauseOrResume(&cobra.Command{
		Use:   "pause PROJECTION",
		Short: "Have nothing carried for a projection until it is resumed",
		Long: `Have the leader lease no more events for a projection. It obeys within a second; what is in
flight settles. The pause is kept in Postgres, so it outlives restarts and takeovers, until
weft resume. Works from any host, with or without a leader.

Meanwhile events wait, and none is lost. weft status, the body of /health/ready and the
metric weft_projection_paused_seconds show the pause; readiness does not fail with it. The
alerts on lag stay quiet, and WeftPausedLong fires after a day.

Instances of an older build do not know of it. Exits 0, also when it was paused before; the
first pause then stays as it is.`,
		Example: `  weft pause search_index_to_elastic --by alice --why "reindexing"
  weft resume search_index_to_elastic --by alice --why "reindexed"`,
	}, func(ctx context.Context, pool *pgxpool.Pool, o outbox.HoldOrder, timeout time.Duration) (paused, error) {
		now, begun, err := outbox.PauseProjection(ctx, pool, o, timeout)
		return paused{Projection: o.Projection, Changed: begun, Pause: records.DescribePause(now)}, err
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.pauseOrResume(&cobra.Command{
		Use:   "resume PROJECTION",
		Short: "End the pause of a projection",
		Long: `End what weft pause has begun: the leader goes on within a second. Exits 0, also when the
projection was not paused.`,
		Example: `  weft resume search_index_to_elastic --by alice --why "reindexed"`,
	}, func(ctx context.Context, pool *pgxpool.Pool, o outbox.HoldOrder, timeout time.Duration) (paused, error) {
		ended, err := outbox.ResumeProjection(ctx, pool, o, timeout)
		return paused{Projection: o.Projection, Changed: ended}, err
	})
}

func (a *app) pauseOrResume(cmd *cobra.Command, do func(context.Context, *pgxpool.Pool, outbox.HoldOrder, time.Duration) (paused, error)) *cobra.Command {
	var (
		by, why string
		asJSON  bool
	)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(cmd, "want the name of one projection")
		}
		return signed(cmd, by, why)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
			if !slices.Contains(cfg.Projections, args[0]) {
				return usage(cmd, fmt.Sprintf("%q is none of the projections: %s", args[0], joined(cfg.Projections)))
			}
			out, err := do(ctx, pool, outbox.HoldOrder{Group: cfg.Group, Projection: args[0], By: by, Why: why}, cfg.Database.Timeout)
			if err != nil {
				return err
			}
			return a.show(asJSON, out, out.write)
		})
	}
	cmd.Flags().StringVar(&by, "by", "", "who does it (required)")
	cmd.Flags().StringVar(&why, "why", "", "the reason (required)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	databaseFlags(cmd, "group", "projections", "env")
	return cmd
}

func (p paused) write(w io.Writer) error {
	var text string
	switch {
	case p.Pause == nil && p.Changed:
		text = "resumed: the leader goes on within a second"
	case p.Pause == nil:
		text = "was not paused"
	case p.Changed:
		text = "paused: the leader leases nothing more within a second, and what is in flight settles; weft status shows it"
	default:
		text = "was " + p.Pause.Line()
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", p.Projection, text)
	return err
}
