package main

import (
	"context"
	"io"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
)

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who leads and how far the projections are",
		Long: `Show who leads, which instances were seen, and the state of every projection, as the
database has it. Works from any host. Exits 1 when nobody leads, or the shard is elsewhere.

One instance leads. One that was killed or cut off while it led is lost until it has been
silent for seven seconds; then it is gone, as every instance that is silent for so long.

READY events may go; WAITING ones have a retry time, and PUT OFF ones stand behind an
earlier event of their entity. IN FLIGHT events are leased by the leader, with the
number of batches and the age of the oldest. OTHERS are claimed by another worker or an
older build of weft. STUCK events have been in flight for longer than --max-processing,
or are claimed by a worker whose lease has ended. Done events are an estimate of the server's
statistics, marked with ~.

What the leader alone knows it is asked for at the address under HTTP: UNUSABLE names a server
that it cannot use, OUTAGE a projection whose destination is away, BREAKER one that stopped
after many final failures in a row, MOVED one whose index somebody has replaced outside a
rebuild, until a comparison or a rebuild has ended, RIVAL one into whose index a leader of
another database writes, too. These are missing where it does not answer within a second,
and another host is told no more than the reason.

An entity that is tried in requests of its own shows in the leader's metric
weft_isolated_entities only.`,
		Example: `  weft status
  weft status --json | jq .projections`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				st, err := records.ReadStatus(ctx, pool, scope(cfg))
				if err != nil {
					return err
				}
				askLeader(ctx, &st)
				err = a.show(st, func(w io.Writer) error { return writeStatus(w, st) })
				if err != nil {
					return err
				}
				if st.Leader == nil {
					return &exitError{exitBad, nobodyLeads(st.Group)}
				}
				return nil
			})
		},
	}
	a.jsonFlags(cmd, "group", "projections", "outbox.max_processing")
	return cmd
}
