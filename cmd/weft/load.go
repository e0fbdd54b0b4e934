package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// loaded is what weft load prints.
type loaded struct {
	Projection string `json:"projection"`
	Rows       int64  `json:"rows"`   // of the source, read
	Events     int64  `json:"events"` // of those that could not be carried
	DurationMS int64  `json:"duration_ms"`
}

func (a *app) loadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "load PROJECTION",
		Short: "Carry the rows that a table had before it got its outbox",
		Long: `Have the leader write all rows of the source into the destination in use: those that were
there before weft outbox create, too. Live changes go on, and none is lost to a row of the load.
The command asks and then follows; interrupt it, and the load goes on, whoever leads. weft status
shows how far it is; weft rebuild pause, resume and abort take a load as they take a rebuild.

A row that cannot be carried gets an event, which ends in failed with the reason, and holds up
nothing. A load may be asked for again at any time: it writes all documents anew. One that goes
on is followed. With load: true in the declaration the leader does the same by itself, once.

Exits 0 when all rows are carried, 1 when the load was ended, 75 when the command was
interrupted, 77 while a rebuild of the projection goes on.`,
		Example: `  weft load products
  weft load products --json`,
		Args: one("the name of one projection"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				if err := known(cmd, "projection", args[0], cfg.Registry().Names()); err != nil {
					return err
				}
				return a.loadProjection(ctx, cfg, pool, args[0])
			})
		},
	}
	a.jsonFlags(cmd, "env")
	return cmd
}

func (a *app) loadProjection(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, name string) error {
	if _, err := outbox.DescribeTable(ctx, pool, cfg.Registry().Table(name), cfg.Database.Timeout); err != nil { // says more of a table that is missing
		return err
	}
	ok, err := outbox.RequestLoad(ctx, pool, cfg.Registry().Table(name), name, false, person(), "weft load", cfg.Database.Timeout)
	if err != nil {
		return err
	}
	if row, err := outbox.ReadRebuild(ctx, pool, name, cfg.Database.Timeout); err != nil {
		return err
	} else if !ok && !row.Load {
		return &exitError{exitRefused, "a rebuild of " + name + " goes on, which writes all rows: see `weft rebuild status " + name + "`"}
	}
	r, ended, err := a.follow(ctx, cfg, pool, name, "carries the rows", false)
	if err != nil {
		return err
	}
	out := loaded{Projection: name, Rows: r.Filled, Events: r.Unreadable, DurationMS: r.Age.Milliseconds()}
	if r.Finished != nil {
		out.DurationMS = r.Finished.Sub(r.Began).Milliseconds()
	}
	err = a.show(out, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s: %s read, %s written in %s\n", name, records.Counted(out.Rows, "1 row", "%d rows"),
			records.Counted(out.Events, "1 event", "%d events"), records.Span(float64(out.DurationMS)/1000))
		return err
	})
	switch {
	case err != nil:
		return err
	case !ended:
		return &exitError{exitTryAgain, "interrupted: the load goes on without this command; run it again to follow, or see weft status"}
	case r.Phase != outbox.RebuildDone:
		return &exitError{exitBad, unfinished("load", r)}
	}
	return nil
}

// vacancy says that a request waits because nobody leads, or because the leader does not run the projection; nothing
// when it need not wait. What is not known is not said.
func (a *app) vacancy(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, name, does string) string {
	st, err := leader.ReadState(ctx, pool, cfg.Group)
	if err != nil {
		return ""
	}
	if !st.Led() {
		return fmt.Sprintf("nobody leads group %s: start weft run, which %s; the request waits for it", cfg.Group, does)
	}
	if yes, err := outbox.WorksOn(ctx, pool, st.Group, st.Epoch, name, cfg.Database.Timeout); err != nil || yes {
		return ""
	}
	return fmt.Sprintf("%s leads group %s and does not run %s, or has not begun to: the request waits until an instance with it in WEFT_PROJECTIONS leads",
		records.Plain(st.Instance), cfg.Group, name)
}
