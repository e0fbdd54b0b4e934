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
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/outbox"
)

// deadLetter is the JSON form of one row in failed. Names and units stay; fields may be
// added.
type deadLetter struct {
	Projection   string     `json:"projection"`
	ID           string     `json:"id"`
	EntityType   string     `json:"entity_type"`
	EntityID     string     `json:"entity_id"`
	Op           string     `json:"op"`
	EventVersion int64      `json:"event_version"`
	Attempts     int        `json:"attempts"`
	Reason       string     `json:"error_reason"`
	Error        string     `json:"error"`
	CreatedAt    *time.Time `json:"created_at"`
	FailedAt     *time.Time `json:"failed_at"`
	Traceparent  string     `json:"traceparent"`
	Tracestate   string     `json:"tracestate"`
	Replays      int        `json:"replay_count"`
	ReplayedAt   *time.Time `json:"last_replayed_at"`
	ReplayedBy   string     `json:"last_replayed_by"`
	ReplayReason string     `json:"last_replayed_reason"`

	DiscardedAt   *time.Time `json:"discarded_at"` // null unless it was discarded
	DiscardedBy   string     `json:"discarded_by"`
	DiscardReason string     `json:"discarded_reason"`
}

// deadLetters is the JSON form of weft failed list.
type deadLetters struct {
	Total  int64        `json:"total"` // that fit, listed or not
	Listed []deadLetter `json:"listed"`
}

// deadLetterGroup is one row of the JSON form of weft failed summary.
type deadLetterGroup struct {
	Projection string     `json:"projection"`
	Reason     string     `json:"error_reason"`
	EntityType string     `json:"entity_type"`
	Rows       int64      `json:"rows"`
	Replayed   int64      `json:"replayed_before"`
	Oldest     *time.Time `json:"oldest_failed_at"`
	Newest     *time.Time `json:"newest_failed_at"`
	Sample     string     `json:"sample_error"`
}

func (a *app) failedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "failed",
		Short: "Look at the dead letters",
		Long: `Look at the events that ended in failed: they are tried no more, and hold up nobody
but, under strict order, the later events of their entity. weft replay sends them again;
weft failed discard takes those off the list that nobody will send again.`,
		Example: `  weft failed summary
  weft failed list --reason es_4xx --since 2h
  weft failed show 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11
  weft failed discard --entity book --by alice --why "test data"`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(a.failedSummary(), a.failedList(), a.failedShow(), a.failedDiscard())
	return cmd
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
		groups, err := summarize(ctx, all, s)
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
		out, err := listLetters(ctx, all, s, limit)
		if err != nil {
			return err
		}
		return a.show(asJSON, out, out.write)
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
		out, err := listLetters(ctx, all, s, len(s.IDs))
		if err != nil {
			return err
		}
		if err := a.show(asJSON, out.Listed, out.writeFull); err != nil {
			return err
		}
		var missing []string
		for _, id := range s.IDs {
			if !slices.ContainsFunc(out.Listed, func(l deadLetter) bool { return l.ID == id.String() }) {
				missing = append(missing, id.String())
			}
		}
		if len(missing) > 0 {
			return &exitError{exitBad, "not in failed: " + strings.Join(missing, ", ")}
		}
		return nil
	})
}

func summarize(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector) ([]deadLetterGroup, error) {
	groups := []deadLetterGroup{}
	for _, d := range all {
		found, err := d.Summary(ctx, s)
		if err != nil {
			return nil, err
		}
		for _, g := range found {
			groups = append(groups, deadLetterGroup{Projection: d.Projection(), Reason: g.Reason, EntityType: g.EntityType, Rows: g.Rows,
				Replayed: g.Replayed, Oldest: utc(g.Oldest), Newest: utc(g.Newest), Sample: g.Sample})
		}
	}
	return groups, nil
}

func listLetters(ctx context.Context, all []*outbox.DeadLetters, s outbox.Selector, limit int) (deadLetters, error) {
	out := deadLetters{Listed: []deadLetter{}}
	for _, d := range all {
		n, err := d.Count(ctx, s)
		if err != nil {
			return out, err
		}
		out.Total += n
		found, err := d.List(ctx, s, limit)
		if err != nil {
			return out, err
		}
		for _, l := range found {
			out.Listed = append(out.Listed, deadLetter{
				Projection: d.Projection(), ID: l.ID.String(), EntityType: l.Key.Type, EntityID: l.Key.ID.String(), Op: string(l.Op),
				EventVersion: l.Version, Attempts: l.Attempts, Reason: l.Reason, Error: l.Error, CreatedAt: utc(l.CreatedAt), FailedAt: utc(l.FailedAt),
				Traceparent: l.Traceparent, Tracestate: l.Tracestate, Replays: l.Replays, ReplayedAt: utc(l.ReplayedAt),
				ReplayedBy: l.ReplayedBy, ReplayReason: l.ReplayReason,
				DiscardedAt: utc(l.DiscardedAt), DiscardedBy: l.DiscardedBy, DiscardReason: l.DiscardReason,
			})
		}
	}
	slices.SortStableFunc(out.Listed, func(x, y deadLetter) int { return orZero(y.FailedAt).Compare(orZero(x.FailedAt)) })
	out.Listed = out.Listed[:min(limit, len(out.Listed))]
	return out, nil
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func writeGroups(w io.Writer, groups []deadLetterGroup) error {
	if len(groups) == 0 {
		_, err := fmt.Fprintln(w, "no dead letters")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PROJECTION\tREASON\tENTITY\tROWS\tREPLAYED\tOLDEST\tNEWEST\tONE OF THE ERRORS")
	for _, g := range groups {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", g.Projection, cmp.Or(g.Reason, "-"), g.EntityType, g.Rows, g.Replayed,
			clock(g.Oldest), clock(g.Newest), short(g.Sample))
	}
	return tw.Flush()
}

func (d deadLetters) write(w io.Writer) error {
	if d.Total == 0 {
		_, err := fmt.Fprintln(w, "no dead letters")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "FAILED\tID\tENTITY\tOP\tVERSION\tREASON\tATTEMPTS\tREPLAYS\tERROR")
	for _, l := range d.Listed {
		fmt.Fprintf(tw, "%s\t%s\t%s:%s\t%s\t%d\t%s\t%d\t%d\t%s\n", clock(l.FailedAt), l.ID, l.EntityType, l.EntityID, l.Op, l.EventVersion,
			cmp.Or(l.Reason, "-"), l.Attempts, l.Replays, short(l.Error))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if more := d.Total - int64(len(d.Listed)); more > 0 {
		fmt.Fprintf(w, "and %d more; --limit lists them, and weft failed summary counts them\n", more)
	}
	return nil
}

func (d deadLetters) writeFull(w io.Writer) error {
	for i, l := range d.Listed {
		if i > 0 {
			fmt.Fprintln(w)
		}
		replayed := "never"
		if l.Replays > 0 {
			replayed = fmt.Sprintf("%d×, last at %s by %s: %s", l.Replays, clock(l.ReplayedAt), dash(l.ReplayedBy), dash(l.ReplayReason))
		}
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, line := range [][2]string{
			{"event", l.ID}, {"projection", l.Projection}, {"entity", l.EntityType + ":" + l.EntityID},
			{"op", fmt.Sprintf("%s, version %d", l.Op, l.EventVersion)}, {"created", clock(l.CreatedAt)},
			{"failed", clock(l.FailedAt)}, {"attempts", strconv.Itoa(l.Attempts)},
			{"reason", dash(l.Reason)}, {"error", dash(plain(l.Error))}, {"replayed", replayed},
			{"discarded", discardedLine(l.DiscardedAt, l.DiscardedBy, l.DiscardReason)}, {"traceparent", dash(l.Traceparent)},
		} {
			fmt.Fprintf(tw, "%s\t%s\n", line[0], line[1])
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}
