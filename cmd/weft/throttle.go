package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// throttled is the JSON form of weft throttle. Names and units stay; fields may be added.
type throttled struct {
	Projection string            `json:"projection"`
	Changed    bool              `json:"changed"`  // false when there was no throttle to end
	Throttle   *records.Throttle `json:"throttle"` // null after --off
}

func (a *app) throttleCommand() *cobra.Command {
	var (
		by, why     string
		rate        float64
		off, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "throttle PROJECTION",
		Short: "Limit the events that go through a projection each second",
		Long: `Have the leader lease at most --rate events a second for a projection, evenly, until
weft throttle --off. Every event counts, also one that a newer one of its entity supersedes,
and every attempt. It obeys within a second. The throttle is kept in Postgres, so it outlives
restarts and takeovers. Works from any host, with or without a leader.

Meanwhile the other events wait, and none is lost. weft status and the metric
weft_projection_throttle_events_per_second show the throttle; the alerts on lag do not stay
quiet, and WeftThrottledLong fires after a day. A rebuild goes at a speed of its own.

Instances of an older build do not know of it. Another --rate takes the place of the first.`,
		Example: `  weft throttle search_index_to_elastic --rate 200 --by alice --why "cluster is busy"
  weft throttle search_index_to_elastic --off --by alice --why "cluster is idle"`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch set := cmd.Flags().Changed("rate"); {
			case len(args) != 1:
				return usage(cmd, "want the name of one projection")
			case set == off:
				return usage(cmd, "want either --rate or --off")
			case set && (rate < outbox.MinRate || rate > outbox.MaxRate || rate != rate):
				return usage(cmd, fmt.Sprintf("--rate %g: want %g to %g events a second", rate, outbox.MinRate, float64(outbox.MaxRate)))
			}
			return signed(cmd, by, why)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				if !slices.Contains(cfg.Projections, args[0]) {
					return usage(cmd, fmt.Sprintf("%q is none of the projections: %s", args[0], joined(cfg.Projections)))
				}
				o := outbox.HoldOrder{Group: cfg.Group, Projection: args[0], By: by, Why: why}
				out := throttled{Projection: args[0], Changed: true}
				var err error
				if off {
					out.Changed, err = outbox.EndThrottle(ctx, pool, o, cfg.Database.Timeout)
				} else {
					var now *outbox.Throttle
					now, err = outbox.ThrottleProjection(ctx, pool, o, rate, cfg.Database.Timeout)
					out.Throttle = records.DescribeThrottle(now)
				}
				if err != nil {
					return err
				}
				return a.show(asJSON, out, out.write)
			})
		},
	}
	cmd.Flags().Float64Var(&rate, "rate", 0, "`events` a second")
	cmd.Flags().BoolVar(&off, "off", false, "end the throttle")
	cmd.Flags().StringVar(&by, "by", "", "who does it (required)")
	cmd.Flags().StringVar(&why, "why", "", "the reason (required)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	databaseFlags(cmd, "group", "projections", "env")
	return cmd
}

func (t throttled) write(w io.Writer) error {
	text := "was not throttled"
	switch {
	case t.Throttle != nil:
		text = fmt.Sprintf("throttled to %g events a second: the leader obeys within a second; weft status shows it", t.Throttle.Rate)
	case t.Changed:
		text = "throttle ended: the leader goes on at full speed within a second"
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", t.Projection, text)
	return err
}
