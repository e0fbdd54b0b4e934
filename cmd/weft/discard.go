package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// discarded is the JSON form of weft failed discard. Names and units stay; fields may be added.
type discarded struct {
	DryRun      bool                      `json:"dry_run"`
	By          string                    `json:"by"`
	Why         string                    `json:"why"`
	Projections []discardedByProject      `json:"projections"`
	Groups      []records.DeadLetterGroup `json:"would_discard"` // of a dry run
}

type discardedByProject struct {
	Projection string `json:"projection"`
	Matched    int64  `json:"matched"`
	Discarded  int64  `json:"discarded"`
	Skipped    int64  `json:"skipped"`
	Outcome    string `json:"outcome"`
	AuditID    int64  `json:"audit_id"` // 0 when nothing matched
}

func (a *app) failedDiscard() *cobra.Command {
	var f letterFlags
	cmd := &cobra.Command{
		Use:   "discard [ID ...]",
		Short: "Give dead letters up",
		Long: `Give up events that ended in failed: by their ids, by what --entity, --reason, --since and
--until say together, or all of them. Works from any host, with or without a leader.

The rows stay in failed, with discarded_at, discarded_by and discarded_reason. They no longer
count as dead letters, so that the alert goes quiet; weft failed list --discarded shows them.
Under strict order the later events of their entity go on without them. weft replay with
their ids, or with --discarded, undoes it.

Who did it, and why, is kept in weft_audit. Interrupt it at any time and run it again for
the rest.

Exits 0 when all of them are discarded; 1 when an ID is not in failed, or was discarded
before; 75 when it was interrupted.`,
		Example: `  weft failed discard --reason es_4xx --since 2h --dry-run
  weft failed discard --reason es_4xx --since 2h --by alice --why "test data"
  weft failed discard 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by alice --why "the row is gone"`,
		Args: cobra.ArbitraryArgs,
		RunE: a.changing(f.check, func(ctx context.Context, cmd *cobra.Command, cfg config.Config, pool *pgxpool.Pool) error {
			return a.discard(ctx, cmd, cfg, pool, f)
		}),
	}
	f.addFlags(cmd, "discards", "discarded")
	a.jsonFlags(cmd, "projections", "env")
	return cmd
}

func (a *app) discard(ctx context.Context, cmd *cobra.Command, cfg config.Config, pool *pgxpool.Pool, f letterFlags) error {
	all, sel, err := f.sel.open(ctx, cmd, pool, cfg)
	if err != nil {
		return err
	}
	out := discarded{DryRun: f.dryRun, By: f.by, Why: f.why, Projections: []discardedByProject{}, Groups: []records.DeadLetterGroup{}}
	if f.dryRun {
		if out.Groups, err = records.Summarize(ctx, all, sel); err != nil {
			return err
		}
		return a.show(out, func(w io.Writer) error { return writeGroups(w, out.Groups) })
	}
	var failure error
	for _, d := range all {
		var res outbox.DiscardOutcome
		res, failure = d.Discard(ctx, outbox.LetterOrder{By: f.by, Why: f.why, Selector: sel})
		out.Projections = append(out.Projections, discardedByProject{
			Projection: d.Projection(), Matched: res.Matched, Discarded: res.Discarded, Skipped: res.Skipped, Outcome: res.Outcome, AuditID: res.AuditID,
		})
		if failure != nil {
			break
		}
	}
	if failure != nil && ctx.Err() == nil {
		if done := out.progress(); done != "" {
			fmt.Fprintf(a.stderr, "weft: %s\n", done)
		}
		return failure
	}
	if failure == nil || a.asJSON || out.progress() != "" {
		if err := a.show(out, out.write); err != nil {
			return err
		}
	}
	if failure != nil {
		return &exitError{exitTryAgain, "interrupted: run the command again for the rest"}
	}
	return out.verdict(len(f.sel.ids))
}

func (d discarded) write(w io.Writer) error {
	_, err := fmt.Fprintln(w, cmp.Or(d.progress(), "no dead letters to discard"))
	return err
}

// progress is one line for each projection that had something to discard.
func (d discarded) progress() string {
	var lines []string
	for _, p := range d.Projections {
		if p.Matched == 0 {
			continue
		}
		line := fmt.Sprintf("%s: %d of %d discarded", p.Projection, p.Discarded, p.Matched)
		if p.Skipped > 0 {
			line += fmt.Sprintf(", %d passed over because they were discarded before or have changed", p.Skipped)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// verdict makes what came of it the exit code. wanted is how many ids were named.
func (d discarded) verdict(wanted int) error {
	var done, skipped int64
	for _, p := range d.Projections {
		done += p.Discarded
		skipped += p.Skipped
	}
	switch {
	case wanted > 0 && done < int64(wanted):
		return &exitError{exitBad, lacking(int64(wanted)-done, wanted, "is not in failed, or was discarded before", "are not in failed, or were discarded before")}
	case wanted == 0 && skipped > 0:
		return &exitError{exitTryAgain, fmt.Sprintf("%d have changed or are locked: run the command again for those that are still in failed", skipped)}
	default:
		return nil
	}
}

// discardedLine is who discarded an event, when and why; "no" for an event that nobody did.
func discardedLine(at *time.Time, by, why string) string {
	if at == nil {
		return "no"
	}
	return fmt.Sprintf("at %s by %s: %s", records.Clock(at), records.Dash(records.Plain(by)), records.Dash(records.Plain(why)))
}
