package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// pruned is the JSON form of weft prune. Names and units stay; fields may be added.
type pruned struct {
	DryRun        bool              `json:"dry_run"`
	By            string            `json:"by"`
	OlderThanSecs float64           `json:"older_than_seconds"`
	Projections   []prunedByProject `json:"projections"`
}

type prunedByProject struct {
	Projection string            `json:"projection"`
	Table      string            `json:"table"`
	Partitions []prunedPartition `json:"partitions"` // of the history: dropped, or to be dropped
	Deleted    int64             `json:"deleted"`    // done events of the outbox table; of a dry run: to be deleted
	Outcome    string            `json:"outcome"`    // finished, finished but for days in use, dry run, interrupted, broken off by an error
	AuditID    int64             `json:"audit_id"`   // 0 of a dry run
}

type prunedPartition struct {
	Name     string    `json:"name"`
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	Bytes    int64     `json:"bytes"`
	Estimate int64     `json:"events_estimate"`
}

type pruneFlags struct {
	olderThan  age
	projection string
	by         string
	dryRun     bool
	rate       int
	wait       time.Duration
}

func (a *app) pruneCommand() *cobra.Command {
	var f pruneFlags
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove finished events that are old",
		Long: `Remove events that were done longer ago than --older-than: the days of the history that
are wholly older, and the done rows that are still in the outbox table, whatever
outbox.finished says. Nothing else is touched: events that are pending, in flight or failed
stay. Works from any host, beside a leader, and may be interrupted and repeated.

Days of the history go without shutting anybody out: the owner of the tables detaches them
concurrently, which waits up to --wait for transactions that read the history; a role with
the right (weft migrate grant ROLE --retention …) drops them when nobody uses the history.
A day that is in use stays until the next run, with the days after it; one that the owner
has begun to detach is out of sight until then. Rows go all the same, in small batches, at
--rate, from one end of the table to the other. The space is free for new events afterwards;
the files do not shrink. What was removed is kept in weft_audit.

The leader does the same once an hour when outbox.retention is set.

Exits 0 when it is done, and when there was nothing to do; 75 when it was interrupted, or a
day of the history was in use.`,
		Example: `  weft prune --older-than 30d --dry-run
  weft prune --older-than 30d
  weft prune --older-than 720h --projection search_index_to_elastic --rate 1000 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			f.by = cmp.Or(f.by, person())
			return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				if f.projection != "" {
					if err := known(cmd, "projection", f.projection, cfg.Registry().Names()); err != nil {
						return err
					}
				}
				return a.prune(ctx, cfg, pool, f)
			})
		},
	}
	cmd.Flags().Var(&f.olderThan, "older-than", "remove what was done this long ago, as in 30d or 36h (required)")
	cmd.Flags().StringVar(&f.projection, "projection", "", "only this projection; default all of --projections")
	cmd.Flags().StringVar(&f.by, "by", "", "who removes them (default user@host)")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be removed, and change nothing")
	countFlag(cmd, &f.rate, "rate", 5000, 0, "rows per second; 0 for as fast as it goes")
	durationFlag(cmd, &f.wait, "wait", time.Minute, time.Second, "longest wait for transactions that use a day of the history")
	a.jsonFlags(cmd, "projections", "env")
	return cmd
}

func (f *pruneFlags) check(cmd *cobra.Command) error {
	switch {
	case f.olderThan == 0:
		return usage(cmd, "--older-than is missing: say how long finished events are kept")
	case len([]rune(f.by)) > 120:
		return usage(cmd, "--by must not be longer than 120 characters")
	}
	return nil
}

// pruner removes the finished events of one projection.
type pruner struct {
	*outbox.FinishedEvents
	url   string
	flags pruneFlags
	out   *prunedByProject
	meter *meter
	inUse error // of the day at which the removal of days ended
}

func (a *app) prune(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, f pruneFlags) (err error) {
	names := cfg.Projections
	if f.projection != "" {
		names = []string{f.projection}
	}
	var inUse error
	out := pruned{DryRun: f.dryRun, By: f.by, OlderThanSecs: time.Duration(f.olderThan).Seconds(), Projections: []prunedByProject{}}
	for _, name := range names {
		table := cfg.Registry().Table(name)
		out.Projections = append(out.Projections, prunedByProject{Projection: name, Table: table, Partitions: []prunedPartition{}, Outcome: pruneFinished})
		one := &out.Projections[len(out.Projections)-1]
		var events *outbox.FinishedEvents
		if events, err = outbox.OpenFinishedEvents(ctx, pool, table, cfg.Database.Timeout); err == nil {
			p := &pruner{FinishedEvents: events, url: cfg.Database.URL.Reveal(), flags: f, out: one, meter: newMeter(a.stderr, name)}
			err = p.run(ctx)
			inUse = cmp.Or(inUse, p.inUse)
		}
		if err != nil {
			break
		}
	}
	interrupted := err != nil && ctx.Err() != nil
	if err != nil && !interrupted {
		_ = out.write(a.stderr)
		return err
	}
	switch err = a.show(out, out.write); {
	case err != nil:
		return err
	case interrupted:
		return &exitError{exitTryAgain, "interrupted: what is removed stays removed; run the command again for the rest"}
	}
	return inUse
}

// The outcomes of a removal, in the audit and in the JSON form.
const (
	pruneFinished    = "finished"
	pruneRunning     = "running"
	pruneInUse       = "finished but for days in use"
	pruneDry         = "dry run"
	pruneInterrupted = "interrupted"
	pruneBroken      = "broken off by an error"
)

func (p *pruner) run(ctx context.Context) error {
	parts, now, err := p.Partitions(ctx)
	if err != nil {
		return err
	}
	parts = slices.DeleteFunc(parts, func(part outbox.Partition) bool {
		return !part.Closed || part.Until.After(now.Add(-time.Duration(p.flags.olderThan)))
	})
	if p.flags.dryRun {
		return p.dryRun(ctx, parts)
	}
	if err := p.CheckRemoval(ctx); err != nil {
		return err
	}
	detail, err := json.Marshal(map[string]any{"table": p.out.Table, "older_than": time.Duration(p.flags.olderThan).String(), "outcome": pruneRunning})
	if err != nil {
		return fmt.Errorf("audit of a removal: %w", err)
	}
	p.out.AuditID, err = p.BeginPruning(ctx, outbox.AuditEntry{
		Actor: p.flags.by, Why: "older than " + time.Duration(p.flags.olderThan).String(), Projection: p.out.Projection, Detail: detail,
	})
	if err != nil {
		return err
	}
	err = p.dropAll(ctx, parts)
	if err == nil {
		err = p.sweep(ctx, outbox.Sweep{Older: time.Duration(p.flags.olderThan), Rate: p.flags.rate, Ease: 1})
	}
	switch {
	case err != nil && ctx.Err() != nil:
		p.out.Outcome = pruneInterrupted
	case err != nil:
		p.out.Outcome = pruneBroken
	case p.inUse != nil:
		p.out.Outcome = pruneInUse
	}
	return errors.Join(err, p.end(context.WithoutCancel(ctx)))
}

func (p *pruner) dryRun(ctx context.Context, parts []outbox.Partition) error {
	p.out.Outcome = pruneDry
	for _, part := range parts {
		p.out.Partitions = append(p.out.Partitions, describePartition(part))
	}
	return p.sweep(ctx, outbox.Sweep{CountOnly: true, Older: time.Duration(p.flags.olderThan), Ease: 1})
}

func describePartition(p outbox.Partition) prunedPartition {
	return prunedPartition{Name: p.Name, From: p.From.UTC(), Until: p.Until.UTC(), Bytes: p.Bytes, Estimate: p.Estimate}
}

// dropAll drops days of the history, up to one that is in use: for the next ones it would wait for the same transactions.
func (p *pruner) dropAll(ctx context.Context, parts []outbox.Partition) error {
	if len(parts) == 0 {
		return nil
	}
	owned, err := p.Owned(ctx)
	if err != nil {
		return err
	}
	for _, part := range parts {
		p.meter.note(p.out.Projection + ": dropping " + part.Name)
		var dropped bool // another command, or the leader, may have been quicker
		if owned {
			dropped, err = p.detach(ctx, part)
		} else {
			dropped, err = p.Drop(ctx, part.Name)
		}
		if left, ok := errors.AsType[*outbox.DetachedError](err); ok {
			code, why := diagnose(postgres.In(p.url, left.Unwrap()))
			return &exitError{code, fmt.Sprintf("%s is detached and not dropped: %s; then `drop table %s` finishes its removal", part.Name, why, left.Table)}
		}
		switch pg, ok := errors.AsType[*pgconn.PgError](err); {
		case ok && slices.Contains([]string{pgerrcode.LockNotAvailable, pgerrcode.QueryCanceled}, pg.Code):
			p.inUse = &exitError{exitTryAgain, fmt.Sprintf("%s is in use: transactions read or write the history (%s); run the command again", part.Name, pg.Message)}
			return nil
		case err != nil:
			return err
		}
		if dropped {
			p.out.Partitions = append(p.out.Partitions, describePartition(part))
		}
	}
	return nil
}

// detach drops a day on a session of its own, where statements may take as long as --wait says.
func (p *pruner) detach(ctx context.Context, part outbox.Partition) (dropped bool, err error) {
	conn, err := postgres.Connect(ctx, p.url, postgres.Options{AppName: "weft/prune", Statement: p.flags.wait, Lock: p.flags.wait})
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return p.DetachAndDrop(ctx, conn, part)
}

func (p *pruner) sweep(ctx context.Context, s outbox.Sweep) error {
	s.Progress = p.meter.swept
	defer p.meter.close()
	got, err := p.Sweep(ctx, s)
	p.out.Deleted = got.Deleted
	return err
}

// end writes into the audit what was removed.
func (p *pruner) end(ctx context.Context) error {
	events := p.out.Deleted
	names := make([]string, len(p.out.Partitions))
	for i, part := range p.out.Partitions {
		names[i], events = part.Name, events+part.Estimate
	}
	return p.EndPruning(ctx, p.out.AuditID, events, map[string]any{"outcome": p.out.Outcome, "deleted": p.out.Deleted, "partitions": names})
}

func (r pruned) write(w io.Writer) error {
	would := map[bool]string{true: "would be "}[r.DryRun]
	for _, p := range r.Projections {
		fmt.Fprintf(w, "%s: %s %sdeleted from %s, %s of the history %sdropped", p.Projection, records.Counted(p.Deleted, "1 done event", "%d done events"),
			would, p.Table, records.Counted(len(p.Partitions), "1 day", "%d days"), would)
		if p.Outcome != pruneFinished && p.Outcome != pruneDry {
			fmt.Fprintf(w, "; %s", p.Outcome)
		}
		fmt.Fprintln(w)
		if len(p.Partitions) == 0 {
			continue
		}
		t := newTable(w, "  DAY", "FROM", "UNTIL", "MB", "EVENTS")
		for _, d := range p.Partitions {
			t.row("  "+d.Name, d.From.Format(time.RFC3339), d.Until.Format(time.RFC3339), d.Bytes>>20, fmt.Sprintf("~%d", d.Estimate))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
