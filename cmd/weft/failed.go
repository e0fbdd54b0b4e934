package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

func (a *app) failedCommand() *cobra.Command {
	return groupOf(&cobra.Command{
		Use:   "failed",
		Short: "Look at the dead letters",
		Long: `Look at the events that ended in failed: they are tried no more, and hold up nobody
but, under strict order, the later events of their entity. weft replay sends them again;
weft failed discard takes those off the list that nobody will send again.`,
		Example: `  weft failed summary
  weft failed list --reason es_4xx --since 2h
  weft failed show 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11
  weft failed discard --entity book --by alice --why "test data"`,
	}, a.failedSummary(), a.failedList(), a.failedShow(), a.failedDiscard())
}

// failedSub makes one of the commands below weft failed; show gets what was found.
func (a *app) failedSub(cmd *cobra.Command, sel *selection, asJSON *bool,
	show func(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := sel.parse(cmd, args); err != nil {
			return err
		}
		return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
			all, s, err := sel.open(ctx, cmd, pool, cfg)
			if err != nil {
				return err
			}
			return show(ctx, all, s)
		})
	}
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
	databaseFlags(cmd, "projections")
	return cmd
}

func (a *app) failedSummary() *cobra.Command {
	var (
		sel    selection
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:     "summary",
		Short:   "Count dead letters by projection, reason and entity type",
		Example: "  weft failed summary --since 24h",
		Args:    noArgs,
	}
	sel.addFlags(cmd)
	sel.addDiscarded(cmd)
	return a.failedSub(cmd, &sel, &asJSON, func(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) error {
		groups, err := records.Summarize(ctx, all, s)
		if err != nil {
			return err
		}
		return a.show(asJSON, groups, func(w io.Writer) error { return writeGroups(w, groups) })
	})
}

func (a *app) failedList() *cobra.Command {
	var (
		sel    selection
		asJSON bool
		limit  int
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the newest failure first",
		Example: `  weft failed list --entity book
  weft failed list --reason es_4xx --json | jq -r .listed[].id`,
		Args: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usage(cmd, "--limit must be at least 1")
			}
			return noArgs(cmd, args)
		},
	}
	sel.addFlags(cmd)
	sel.addDiscarded(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "list at most this many")
	return a.failedSub(cmd, &sel, &asJSON, func(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) error {
		out, err := records.ListLetters(ctx, all, s, limit)
		if err != nil {
			return err
		}
		return a.show(asJSON, out, func(w io.Writer) error { return writeLetters(w, out) })
	})
}

func (a *app) failedShow() *cobra.Command {
	var (
		sel    selection
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "show ID ...",
		Short: "Show all that is known of a dead letter",
		Long: `Show all that is known of dead letters, by the id of the event. Exits 1 when one of
them is not in failed.`,
		Example: "  weft failed show 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(cmd, "the id of an event is missing")
			}
			return nil
		},
	}
	return a.failedSub(cmd, &sel, &asJSON, func(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) error {
		out, err := records.ListLetters(ctx, all, s, len(s.IDs))
		if err != nil {
			return err
		}
		if err := a.show(asJSON, out.Listed, func(w io.Writer) error { return writeLettersFull(w, out) }); err != nil {
			return err
		}
		var missing []string
		for _, id := range s.IDs {
			if !slices.ContainsFunc(out.Listed, func(l records.DeadLetter) bool { return l.ID == id.String() }) {
				missing = append(missing, id.String())
			}
		}
		if len(missing) > 0 {
			return &exitError{exitBad, "not in failed: " + strings.Join(missing, ", ")}
		}
		return nil
	})
}

func writeGroups(w io.Writer, groups []records.DeadLetterGroup) error {
	if len(groups) == 0 {
		_, err := fmt.Fprintln(w, "no dead letters")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PROJECTION\tREASON\tENTITY\tROWS\tREPLAYED\tOLDEST\tNEWEST\tONE OF THE ERRORS")
	for _, g := range groups {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", g.Projection, cmp.Or(g.Reason, "-"), g.EntityType, g.Rows, g.Replayed,
			records.Clock(g.Oldest), records.Clock(g.Newest), records.Short(g.Sample))
	}
	return tw.Flush()
}

func writeLetters(w io.Writer, d records.DeadLetters) error {
	if d.Total == 0 {
		_, err := fmt.Fprintln(w, "no dead letters")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "FAILED\tID\tENTITY\tOP\tVERSION\tREASON\tATTEMPTS\tREPLAYS\tERROR")
	for _, l := range d.Listed {
		fmt.Fprintf(tw, "%s\t%s\t%s:%s\t%s\t%d\t%s\t%d\t%d\t%s\n", records.Clock(l.FailedAt), l.ID, l.EntityType, l.EntityID, l.Op, l.EventVersion,
			cmp.Or(l.Reason, "-"), l.Attempts, l.Replays, records.Short(l.Error))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if more := d.Total - int64(len(d.Listed)); more > 0 {
		fmt.Fprintf(w, "and %d more; --limit lists them, and weft failed summary counts them\n", more)
	}
	return nil
}

func writeLettersFull(w io.Writer, d records.DeadLetters) error {
	for i, l := range d.Listed {
		if i > 0 {
			fmt.Fprintln(w)
		}
		replayed := "never"
		if l.Replays > 0 {
			replayed = fmt.Sprintf("%d×, last at %s by %s: %s", l.Replays, records.Clock(l.ReplayedAt), records.Dash(l.ReplayedBy), records.Dash(l.ReplayReason))
		}
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, line := range [][2]string{
			{"event", l.ID}, {"projection", l.Projection}, {"entity", l.EntityType + ":" + l.EntityID},
			{"op", fmt.Sprintf("%s, version %d", l.Op, l.EventVersion)}, {"created", records.Clock(l.CreatedAt)},
			{"failed", records.Clock(l.FailedAt)}, {"attempts", strconv.Itoa(l.Attempts)},
			{"reason", records.Dash(l.Reason)}, {"error", records.Dash(records.Plain(l.Error))}, {"replayed", replayed},
			{"discarded", discardedLine(l.DiscardedAt, l.DiscardedBy, l.DiscardReason)}, {"traceparent", records.Dash(l.Traceparent)},
		} {
			fmt.Fprintf(tw, "%s\t%s\n", line[0], line[1])
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}
