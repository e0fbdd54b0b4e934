package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

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
func (a *app) failedSub(cmd *cobra.Command, sel *selection,
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
	a.jsonFlags(cmd, "projections")
	return cmd
}

func (a *app) failedSummary() *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:     "summary",
		Short:   "Count dead letters by projection, reason and entity type",
		Example: "  weft failed summary --since 24h",
		Args:    noArgs,
	}
	sel.addFlags(cmd)
	sel.addDiscarded(cmd)
	return a.failedSub(cmd, &sel, func(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) error {
		groups, err := records.Summarize(ctx, all, s)
		if err != nil {
			return err
		}
		return a.show(groups, func(w io.Writer) error { return writeGroups(w, groups) })
	})
}

func (a *app) failedList() *cobra.Command {
	var (
		sel   selection
		limit int
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the newest failure first",
		Example: `  weft failed list --entity book
  weft failed list --reason es_4xx --json | jq -r .listed[].id`,
		Args: noArgs,
	}
	sel.addFlags(cmd)
	sel.addDiscarded(cmd)
	countFlag(cmd, &limit, "limit", 50, 1, "list at most this many")
	return a.failedSub(cmd, &sel, func(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) error {
		out, err := records.ListLetters(ctx, all, s, limit)
		if err != nil {
			return err
		}
		return a.show(out, func(w io.Writer) error { return writeLetters(w, out) })
	})
}

func (a *app) failedShow() *cobra.Command {
	var sel selection
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
	return a.failedSub(cmd, &sel, func(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) error {
		out, err := records.ListLetters(ctx, all, s, len(s.IDs))
		if err != nil {
			return err
		}
		if err := a.show(out.Listed, func(w io.Writer) error { return writeLettersFull(w, out) }); err != nil {
			return err
		}
		var missing []string
		for _, id := range s.IDs {
			if !slices.ContainsFunc(out.Listed, func(l records.DeadLetter) bool { return l.ID == id.String() }) {
				missing = append(missing, id.String())
			}
		}
		if len(missing) > 0 {
			return &exitError{exitBad, "not in failed: " + strings.Join(missing, ", ") + "; `weft event` says where an event is"}
		}
		return nil
	})
}

func writeGroups(w io.Writer, groups []records.DeadLetterGroup) error {
	if len(groups) == 0 {
		_, err := fmt.Fprintln(w, "no dead letters")
		return err
	}
	t := newTable(w, "PROJECTION", "REASON", "ENTITY", "ROWS", "REPLAYED", "OLDEST", "NEWEST", "ONE OF THE ERRORS")
	for _, g := range groups {
		t.row(g.Projection, cmp.Or(g.Reason, "-"), g.EntityType, g.Rows, g.Replayed, records.Clock(g.Oldest), records.Clock(g.Newest), short(w, g.Sample))
	}
	return t.Flush()
}

func writeLetters(w io.Writer, d records.DeadLetters) error {
	if d.Total == 0 {
		_, err := fmt.Fprintln(w, "no dead letters")
		return err
	}
	t := newTable(w, "FAILED", "ID", "ENTITY", "OP", "VERSION", "REASON", "ATTEMPTS", "REPLAYS", "ERROR")
	for _, l := range d.Listed {
		t.row(records.Clock(l.FailedAt), l.ID, l.EntityType+":"+l.EntityID, l.Op, l.EventVersion, cmp.Or(l.Reason, "-"), l.Attempts, l.Replays, short(w, l.Error))
	}
	if err := t.Flush(); err != nil {
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
		err := writePairs(w, [][2]string{
			{"event", l.ID}, {"projection", l.Projection}, {"entity", l.EntityType + ":" + l.EntityID},
			{"op", fmt.Sprintf("%s, version %d", l.Op, l.EventVersion)}, {"created", records.Clock(l.CreatedAt)},
			{"failed", records.Clock(l.FailedAt)}, {"attempts", strconv.Itoa(l.Attempts)},
			{"reason", records.Dash(l.Reason)}, {"error", records.Dash(records.Plain(l.Error))}, {"replayed", replayed},
			{"discarded", discardedLine(l.DiscardedAt, l.DiscardedBy, l.DiscardReason)}, {"traceparent", records.Dash(l.Traceparent)},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
