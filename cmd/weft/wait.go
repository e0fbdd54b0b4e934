package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// awaited is the JSON form of weft wait. Names and units stay; fields may be added.
type awaited struct {
	ID         string  `json:"id"`
	Projection string  `json:"projection"` // empty while no table has the event
	Status     string  `json:"status"`     // done, failed, pending, processing, gone (done and no longer in the table), unknown
	Reason     string  `json:"error_reason"`
	Error      string  `json:"error"`
	Waited     float64 `json:"waited_seconds"`
}

// The pauses between two looks.
const (
	firstLook = 10 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

func (a *app) waitCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait ID",
		Short: "Wait until an event is settled",
		Long: `Wait until an event is done or failed, so that a script can read what it has written: once the
event is done, the destination has the entity as it was then, or newer. ID is the id of the outbox row. It looks
by the primary key, at first every 10 ms, then every quarter of a second.

Call it after the commit that wrote the event. Where finished events leave the table
(outbox.finished), an event that is not there counts as done, even one that never was. Where
they stay, it waits for the event to appear.

An application asks Postgres instead: select weft_settled('search_outbox_events', 'ID'). It
answers done, failed, gone (in no row of the table), or null while the event is open, and
needs nothing but: grant execute on function weft_settled to APPLICATION. In the schema of a shard
that has moved away it raises an error with the address (SQLSTATE WF005).

Elasticsearch shows a new document to searches at the next refresh of the index, and to a
get by id at once.

Exits 0 when the event is done; 1 when it has failed; 3 when it was not settled in time.`,
		Example: `  weft wait 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11
  weft wait 4711 --timeout 5s --json`,
		Args: one("the id of one event"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := eventID(cmd, args[0])
			if err != nil {
				return err
			}
			return a.connected(cmd, 1, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				w, err := newWaiter(ctx, pool, cfg, id)
				if err != nil {
					return err
				}
				if len(w.tables) == 0 {
					return usage(cmd, fmt.Sprintf("%s is no id of an event here: the tables of %s have ids of another type", args[0], joined(cfg.Projections)))
				}
				out, err := w.wait(ctx, timeout)
				if err != nil {
					return err
				}
				if out.Status == "gone" || out.Status == "unknown" {
					if away, ok := errors.AsType[*exitError](atHome(ctx, pool, cfg)); ok {
						return &exitError{exitInconclusive, away.msg}
					}
				}
				if err := a.show(out, out.write); err != nil {
					return err
				}
				return out.verdict()
			})
		},
	}
	durationFlag(cmd, &timeout, "timeout", 30*time.Second, 0, "give up after this long")
	a.jsonFlags(cmd, "projections", "outbox.finished")
	return cmd
}

// waiter looks for one event in the tables of the projections.
type waiter struct {
	id      outbox.ID
	tables  []waitTable
	leaves  bool // a table loses its finished events
	foundIn int  // index of the table that has had the event; -1 before
}

type waitTable struct {
	projection string
	stories    *outbox.Stories
	leaves     bool
}

func newWaiter(ctx context.Context, pool *pgxpool.Pool, cfg config.Config, id outbox.ID) (*waiter, error) {
	w := &waiter{id: id, foundIn: -1}
	for _, name := range cfg.Projections {
		stories, err := outbox.OpenStories(ctx, pool, cfg.Registry().Table(name), cfg.Database.Timeout)
		if err != nil {
			return nil, err
		}
		if _, err := outbox.ParseID(stories.Shape().ID, id.String()); err != nil {
			continue
		}
		leaves := outbox.Finished(cfg.Outbox.FinishedOf(name)) != outbox.Keep
		w.tables = append(w.tables, waitTable{name, stories, leaves})
		w.leaves = w.leaves || leaves
	}
	return w, nil
}

// wait looks until the event is settled or the time is over.
func (w *waiter) wait(ctx context.Context, timeout time.Duration) (awaited, error) {
	start := time.Now()
	for pause := firstLook; ; pause = min(pause*3/2, lastLook) {
		out, err := w.look(ctx)
		if err != nil {
			return out, err
		}
		took := time.Since(start)
		out.Waited = took.Seconds()
		if out.settled() || took >= timeout {
			return out, nil
		}
		timer := time.NewTimer(min(pause, timeout-took))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return out, &exitError{exitTryAgain, "interrupted before the event was settled; run the command again to wait on"}
		}
	}
}

// look reads the event once. After it was found, only its table is read.
func (w *waiter) look(ctx context.Context) (awaited, error) {
	out := awaited{ID: w.id.String(), Status: "unknown"}
	for i, t := range w.tables {
		if w.foundIn >= 0 && w.foundIn != i {
			continue
		}
		now, err := t.stories.InTable(ctx, w.id)
		if err != nil {
			return out, err
		}
		if now != nil {
			w.foundIn = i
			out.Projection, out.Status, out.Reason, out.Error = t.projection, now.Status, now.Reason, now.Error
			return out, nil
		}
	}
	switch {
	case w.foundIn >= 0:
		out.Projection, out.Status = w.tables[w.foundIn].projection, "gone"
	case w.leaves:
		out.Status = "gone"
	}
	return out, nil
}

func (a awaited) settled() bool {
	return a.Status == "gone" || a.Status == "done" || a.Status == "failed"
}

func (a awaited) write(w io.Writer) error {
	text := a.Status
	switch a.Status {
	case "gone":
		text = "done, and no longer in the table"
	case "failed":
		text = fmt.Sprintf("failed (%s: %s)", records.Dash(records.Plain(a.Reason)), short(w, a.Error))
	case "unknown":
		text = "in no outbox table"
	}
	_, err := fmt.Fprintf(w, "event %s: %s after %s\n", a.ID, text, records.Span(a.Waited))
	return err
}

// verdict makes the state the exit code.
func (a awaited) verdict() error {
	switch {
	case a.Status == "failed":
		return &exitError{exitBad, fmt.Sprintf("event %s has failed: see `weft event %s`", a.ID, a.ID)}
	case a.settled():
		return nil
	case a.Status == "unknown":
		return &exitError{exitInconclusive, fmt.Sprintf("event %s is in no outbox table: is its transaction committed?", a.ID)}
	default:
		return &exitError{exitInconclusive, fmt.Sprintf("event %s is not settled yet: see `weft event %s`", a.ID, a.ID)}
	}
}
