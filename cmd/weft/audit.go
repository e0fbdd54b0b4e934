package main

import (
	"cmp"
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

func (a *app) auditCommand() *cobra.Command {
	var (
		f     outbox.AuditFilter
		since records.Moment
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who did what beside the ordinary work, and why",
		Long: `Show what was done beside the ordinary work, the newest first: leases of an older term
and claims of other workers that the leader has ended (reclaim), sessions of an old term
that it has terminated (session_ended), requests to hand over (resign_requested), replays
of dead letters (replay) and discards of them (discard), pauses of projections (pause) and
their ends (resume), throttles (throttle) and their ends (unthrottle), quarantines of
entities (quarantine) and their ends (release), removals of finished events (prune),
documents that are newer than their source rows (version_ahead), documents that weft verify
or the leader had written anew (repair), requests for loads (load), what was asked of
rebuilds (rebuild, rebuild_pause, rebuild_resume, rebuild_abort, rebuild_drop_old), shards
that were made (shards_create) or moved (shards_move), and changes of the log's level on the
operator's page (log_level).`,
		Example: `  weft audit
  weft audit --action replay --since 24h --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.Action != "" {
				if err := known(cmd, "action", f.Action, records.Actions()); err != nil {
					return err
				}
			}
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				now, err := records.Now(ctx, pool, preflightTimeout)
				if err != nil {
					return err
				}
				f.Since = since.Resolve(now)
				asked := f // each shard is asked in turn
				asked.Limit = beyond(f.Limit)
				found, err := outbox.ReadAudit(ctx, pool, asked, cfg.Database.Timeout)
				if err != nil {
					return err
				}
				found, more := cut(found, f.Limit)
				return a.show(records.AuditEntries(found), func(w io.Writer) error { return cmp.Or(writeAudit(w, found), more(w)) })
			})
		},
	}
	cmd.Flags().StringVar(&f.Action, "action", "", "only this `action`")
	cmd.Flags().StringVar(&f.Actor, "by", "", "only what this instance or person did")
	cmd.Flags().StringVar(&f.Projection, "projection", "", "only this projection")
	cmd.Flags().Var(&since, "since", "only what happened since then: a time, or a duration ago")
	countFlag(cmd, &f.Limit, "limit", 50, 1, "show at most this many")
	a.jsonFlags(cmd)
	return cmd
}

func writeAudit(w io.Writer, found []outbox.AuditEntry) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(w, "nothing")
		return err
	}
	t := newTable(w, "AT", "ACTION", "BY", "COUNT", "PROJECTION", "FROM", "WHY", "OUTCOME")
	for _, e := range found {
		from := records.Dash(e.FromOwner)
		if e.FromEpoch != nil {
			from += fmt.Sprintf(" (epoch %d)", *e.FromEpoch)
		}
		t.row(e.At.UTC().Format(time.RFC3339), e.Action, e.Actor, e.Count, records.Dash(e.Projection), from, short(w, e.Why), records.OutcomeOf(e))
	}
	return t.Flush()
}
