package main

import (
	"context"
	"fmt"
	"io"

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
	var rate float64
	var off bool
	cmd := a.holding(&cobra.Command{
		Use:   "throttle PROJECTION",
		Short: "Limit how many events a second go through a projection",
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
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			switch set := cmd.Flags().Changed("rate"); {
			case set == off:
				return usage(cmd, "want either --rate or --off")
			case set && (rate < outbox.MinRate || rate > outbox.MaxRate || rate != rate):
				return usage(cmd, fmt.Sprintf("--rate %g: want %g to %d events a second", rate, outbox.MinRate, outbox.MaxRate))
			}
			return nil
		},
	}, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, o outbox.HoldOrder) (written, error) {
		o.Kind, o.Rate = outbox.Throttle, rate
		if off {
			ended, err := outbox.EndHold(ctx, pool, o, cfg.Database.Timeout)
			return throttled{Projection: o.Projection, Changed: ended}, err
		}
		now, _, err := outbox.BeginHold(ctx, pool, o, cfg.Database.Timeout)
		return throttled{Projection: o.Projection, Changed: true, Throttle: records.DescribeThrottle(now)}, err
	})
	cmd.Flags().Float64Var(&rate, "rate", 0, "`events` a second")
	cmd.Flags().BoolVar(&off, "off", false, "end the throttle")
	return cmd
}

func (t throttled) write(w io.Writer) error {
	text := "was not throttled"
	switch {
	case t.Throttle != nil:
		text = records.Counted(t.Throttle.Rate, "throttled to 1 event a second", "throttled to %g events a second") + ": the leader obeys within a second; weft status shows it"
	case t.Changed:
		text = "throttle ended: the leader goes on at full speed within a second"
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", t.Projection, text)
	return err
}
