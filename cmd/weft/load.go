package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

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
	Events     int64  `json:"events"` // written
	DurationMS int64  `json:"duration_ms"`
}

type loadFlags struct {
	backlog, page int
	again, asJSON bool
}

func (a *app) loadCommand() *cobra.Command {
	var f loadFlags
	cmd := &cobra.Command{
		Use:   "load PROJECTION",
		Short: "Carry the rows that a table had before it got its outbox",
		Long: `Write an event for each row of the source that has none yet: the rows that were there before
weft outbox create. The leader carries them as it carries every event, in order with the
changes that come meanwhile. Run it as the owner of the outbox, while an instance leads.

A load keeps at most --backlog events open, so that live changes wait behind few of them. It
may be interrupted and begun again at any time: rows that have an event are passed over. With
--again each row gets one more event, which writes all documents anew. A row that cannot be
carried ends in failed and holds up nothing. With load: true in the declaration the leader
does the same by itself, once.

Exits 0 when all events are written; weft status shows when they are carried. 75 when it was
interrupted.`,
		Example: `  weft load products
  weft load products --again --backlog 5000`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return usage(cmd, "want one projection")
			case f.backlog < 1:
				return usage(cmd, "--backlog must be at least 1")
			case f.page < 1 || f.page > 10000:
				return usage(cmd, "--page must be 1 to 10000")
			}
			return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				if names := cfg.Registry().Names(); !slices.Contains(names, args[0]) {
					return usage(cmd, fmt.Sprintf("there is no projection %q: want one of %s", args[0], strings.Join(names, ", ")))
				}
				if st, err := leader.ReadState(ctx, pool, cfg.Group); err == nil && !st.Led() {
					fmt.Fprintf(a.stderr, "weft: nobody leads group %s: start weft run; without it the load stops at %d open events and waits\n", cfg.Group, f.backlog)
				}
				return a.loadProjection(ctx, cfg, pool, args[0], f)
			})
		},
	}
	cmd.Flags().IntVar(&f.backlog, "backlog", 20000, "most events that are open while it goes on")
	cmd.Flags().IntVar(&f.page, "page", 2000, "rows of one transaction, 1 to 10000")
	cmd.Flags().BoolVar(&f.again, "again", false, "write an event for rows that have one, too")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	databaseFlags(cmd, "env")
	return cmd
}

func (a *app) loadProjection(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, name string, f loadFlags) error {
	l, err := outbox.OpenLoad(ctx, pool, cfg.Registry().Table(name), cfg.Database.Timeout)
	if err != nil {
		return err
	}
	out, started, meter := loaded{Projection: name}, time.Now(), newMeter(a.stderr, name)
	pace := outbox.Pace{Backlog: f.backlog, Page: f.page, Again: f.again, Waits: meter.waits}
	err = l.Run(ctx, outbox.ID{}, pace, func(p outbox.Page) error {
		out.Rows, out.Events = out.Rows+int64(p.Read), out.Events+int64(p.Written)
		meter.loaded(out, l.Rows(), time.Since(started))
		return nil
	})
	interrupted := err != nil && ctx.Err() != nil
	if err != nil && !interrupted {
		return err
	}
	out.DurationMS = time.Since(started).Milliseconds()
	err = a.show(f.asJSON, out, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s: %d rows read, %d events written in %s\n", name, out.Rows, out.Events, records.Span(time.Since(started).Seconds()))
		return err
	})
	if err == nil && interrupted {
		err = &exitError{exitTryAgain, "interrupted: what is written stays; run the command again for the rest"}
	}
	return err
}
