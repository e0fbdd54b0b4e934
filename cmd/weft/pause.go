package main

import (
	"context"
	"fmt"
	"io"
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
	Changed    bool           `json:"changed"`          // false when it was so before
	Pause      *records.Pause `json:"pause"`            // null after weft resume
	Obeyed     *bool          `json:"obeyed,omitempty"` // the leader has said that it begins no more leases; not of weft resume
}

const (
	obeyWait  = 3 * time.Second // the leader asks twice a second what is held back
	obeyPause = 50 * time.Millisecond
)

// obeyed waits until the leader says that it has seen the pause of a projection. It gives up where nobody leads, where the
// leader does not answer from here, and after obeyWait.
func obeyed(ctx context.Context, pool *pgxpool.Pool, group, projection string) bool {
	ctx, cancel := context.WithTimeout(ctx, obeyWait)
	defer cancel()
	for ctx.Err() == nil {
		st, err := records.ReadElection(ctx, pool, group)
		if err != nil {
			return false
		}
		report, ok := leaderReport(ctx, st)
		if !ok || report.Projections[projection].Pause != "" {
			return ok
		}
		select {
		case <-ctx.Done():
		case <-time.After(obeyPause):
		}
	}
	return false
}

func (a *app) pauseCommand() *cobra.Command {
	return a.holding(&cobra.Command{
		Use:   "pause PROJECTION",
		Short: "Pause a projection until weft resume",
		Long: `Have the leader lease no more events for a projection, and wait up to three seconds until it
says that it does; without an answer of it from here, it obeys within a second ("obeyed" in the
JSON is false then). What is in flight settles. The pause is kept in Postgres, so it outlives
restarts and takeovers, until weft resume. Works from any host, with or without a leader.

Meanwhile events wait, and none is lost. weft status, the body of /health/ready and the
metric weft_projection_paused_seconds show the pause; readiness does not fail with it. The
alerts on lag stay quiet, and WeftPausedLong fires after a day.

Instances of an older build do not know of it. Exits 0, also when it was paused before; the
first pause then stays as it is.`,
		Example: `  weft pause search_index_to_elastic --by alice --why "reindexing"
  weft resume search_index_to_elastic --by alice --why "reindexed"`,
	}, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, o outbox.HoldOrder) (written, error) {
		o.Kind = outbox.Pause
		now, begun, err := outbox.BeginHold(ctx, pool, o, cfg.Database.Timeout)
		out := paused{Projection: o.Projection, Changed: begun, Pause: records.DescribePause(now)}
		if err == nil {
			out.Obeyed = new(obeyed(ctx, pool, o.Group, o.Projection))
		}
		return out, err
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.holding(&cobra.Command{
		Use:   "resume PROJECTION",
		Short: "End the pause of a projection",
		Long: `End what weft pause has begun: the leader goes on within a second. Exits 0, also when the
projection was not paused.`,
		Example: `  weft resume search_index_to_elastic --by alice --why "reindexed"`,
	}, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, o outbox.HoldOrder) (written, error) {
		o.Kind = outbox.Pause
		ended, err := outbox.EndHold(ctx, pool, o, cfg.Database.Timeout)
		return paused{Projection: o.Projection, Changed: ended}, err
	})
}

// written is what a command has done, which can be shown.
type written interface{ write(io.Writer) error }

// holding completes a command that holds a projection back, or lets it go on.
func (a *app) holding(cmd *cobra.Command, do func(context.Context, config.Config, *pgxpool.Pool, outbox.HoldOrder) (written, error)) *cobra.Command {
	var who signature
	cmd.Args = one("the name of one projection")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := who.check(cmd); err != nil {
			return err
		}
		return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
			if err := known(cmd, "projection that runs", args[0], cfg.Projections); err != nil {
				return err
			}
			out, err := do(ctx, cfg, pool, outbox.HoldOrder{Group: cfg.Group, Projection: args[0], By: who.by, Why: who.why})
			if err != nil {
				return err
			}
			return a.show(out, out.write)
		})
	}
	who.add(cmd, "who does it")
	a.jsonFlags(cmd, "group", "projections", "env")
	return cmd
}

func (p paused) write(w io.Writer) error {
	var text string
	switch {
	case p.Pause == nil && p.Changed:
		text = "resumed: the leader goes on within a second"
	case p.Pause == nil:
		text = "was not paused"
	case p.Changed && *p.Obeyed:
		text = "paused: the leader begins no more leases, and what is in flight settles; weft status shows it"
	case p.Changed:
		text = "paused: the leader leases nothing more within a second, and what is in flight settles; weft status shows it"
	default:
		text = "was " + p.Pause.Line()
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", p.Projection, text)
	return err
}
