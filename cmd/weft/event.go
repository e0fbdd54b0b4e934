package main

import (
	"context"
	"errors"
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

func (a *app) eventCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "event ID",
		Short: "Show where an event is, and what to do about it",
		Long: `Show all that is known of one event, wherever it is: waiting (and for what), in flight (and
under whose lease), failed, done, or archived in the history; what of its entity goes before
it; and what to do. ID is the id of the outbox row, a UUID or a number.

The outbox table and the days of the history that are over are searched by index. The day
that is being written has none: an event that was archived today, or is nowhere, takes as
long as reading that day does, at most --db-timeout for each day.

Exits 0 when it is found; 1 when it is not; 3 when a day could not be read in time, so that
it may be there.`,
		Example: `  weft event 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11
  weft event 4711 --json`,
		Args: one("the id of one event"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := eventID(cmd, args[0])
			if err != nil {
				return err
			}
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				found, searches, err := records.FindEvent(ctx, pool, scope(cfg), id)
				if kind, ok := errors.AsType[*records.KindError](err); ok {
					return usage(cmd, kind.Error())
				}
				if err != nil {
					return err
				}
				err = a.show(found, func(w io.Writer) error { return writeStories(w, found) })
				if err == nil && len(found) == 0 {
					err = notFound(id, searches)
				}
				return err
			})
		},
	}
	a.jsonFlags(cmd, "group", "projections", "outbox.max_processing")
	return cmd
}

// eventID reads the id of an event.
func eventID(cmd *cobra.Command, text string) (outbox.ID, error) {
	id, ok := records.EventID(text)
	if !ok {
		return id, usage(cmd, fmt.Sprintf("%q is no id of an event: want a UUID or a number", text))
	}
	return id, nil
}

// notFound says where the event was looked for.
func notFound(id outbox.ID, searches []outbox.Search) error {
	var skipped []string
	var since time.Time
	days := 0
	for _, s := range searches {
		skipped = append(skipped, s.Skipped...)
		days += s.Partitions
		if !s.Since.IsZero() && (since.IsZero() || s.Since.Before(since)) {
			since = s.Since
		}
	}
	if len(skipped) > 0 {
		return &exitError{exitInconclusive, fmt.Sprintf("event %s is in no outbox table and no day of the history that could be searched; %s took too long: try again with a longer --db-timeout",
			id, strings.Join(skipped, ", "))}
	}
	where := "no outbox table, and there is no history"
	if days > 0 {
		where = fmt.Sprintf("no outbox table and %s of the history since %s", records.Counted(days, "not in the one day", "none of %d days"), since.UTC().Format(time.DateOnly))
	}
	return &exitError{exitBad, fmt.Sprintf("event %s is in %s: it was done and deleted, or pruned, or there never was one; see `weft audit --action prune`", id, where)}
}
