package main

import (
	"cmp"
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
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// rebuildLook is the pause between two looks at a rebuild.
const rebuildLook = 250 * time.Millisecond

func writeRebuild(w io.Writer, s records.Rebuild) error {
	_, err := fmt.Fprintf(w, "%s\nasked for by %s at %s: %s\n", s.Line(), records.Plain(s.By), s.BeganAt.Format(time.RFC3339), records.Plain(s.Why))
	return err
}

type rebuildFlags struct {
	signature
	replacePlain, detach bool
	wait                 time.Duration
}

func (a *app) rebuildCommand() *cobra.Command {
	var f rebuildFlags
	cmd := &cobra.Command{
		Use:   "rebuild PROJECTION",
		Short: "Make a new index, fill it while the pair works, and move the alias",
		Long: `Have the leader make a new index with the mapping and settings of the configuration, fill it
from the source while live events go to both, compare it with the source, and move the alias.
Searches through the alias go on all the time. The command asks and then follows; interrupt it,
and the rebuild goes on, whoever leads. The old index is kept until "weft rebuild drop-old".

A projection whose destination is a table is written again in place: of the chronicle, all
entries get the configured projection version.

An index that has the configured name itself, and is no alias, takes --replace-plain: it is
deleted in the moment when the alias of its name is made.

With several shards it goes from one to the next, where each has an index of its own
(shards.indexes: own); one that all share is refused.

Before it makes anything, the leader asks Elasticsearch whether its credentials have the privileges
that a rebuild needs, and ends the rebuild when they lack one.

Exits 0 when the alias has moved, 1 when the rebuild failed or was ended, 3 when the command
was interrupted, 77 when one goes on already, when the old index of the last one is still kept,
when several shards share the index, and when the leader's credentials lack a privilege.`,
		Example: `  weft rebuild products --why "new analyzer"
  weft rebuild products --by deploy --why "release 12" --detach
  weft rebuild status products
  weft rebuild drop-old products --why "release 12 is good"`,
		Args: one("the name of one projection"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.rebuilding(cmd, args, &f, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, name string) error {
				return a.rebuild(ctx, cfg, pool, name, f)
			})
		},
	}
	cmd.Flags().BoolVar(&f.replacePlain, "replace-plain", false, "delete an index of the configured name for the alias")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "ask, and do not wait")
	f.addFlags(cmd)
	a.jsonFlags(cmd, "group", "projections", "env")
	cmd.AddCommand(a.rebuildStatusCommand())
	for _, ask := range []rebuildAsk{
		{outbox.RebuildPause, "pause", "Stop filling and comparing; live events still go to both indexes", "products --why \"peak hours\"", "no rebuild of it goes on"},
		{outbox.RebuildResume, "resume", "Go on with a paused rebuild", "products --by alice --why \"peak hours are over\"", "no rebuild of it goes on"},
		{outbox.RebuildAbort, "abort", "End a rebuild and delete the new index, unless the alias has moved to it; the old one stays in use", "products --why \"wrong analyzer\" --json",
			"no rebuild of it goes on"},
		{outbox.RebuildDropOld, "drop-old", "Delete the index that the alias led to before the last rebuild, or let it be where the alias leads to it again", "products --why \"release 12 is good\" --wait 2m",
			"no finished rebuild of it has left an old index: one goes on, it was dropped before, a plain index was replaced, or a table is the destination and was written again in place"},
	} {
		cmd.AddCommand(a.rebuildAskCommand(ask))
	}
	return cmd
}

func (f *rebuildFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.by, "by", "", "who asks (default user@host)")
	cmd.Flags().StringVar(&f.why, "why", "", "the reason (required)")
}

// rebuilding runs q for a command that asks for something of the named projection.
func (a *app) rebuilding(cmd *cobra.Command, args []string, f *rebuildFlags, q func(context.Context, config.Config, *pgxpool.Pool, string) error) error {
	f.by = cmp.Or(f.by, person())
	if err := f.check(cmd); err != nil {
		return err
	}
	return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
		if err := known(cmd, "projection that runs", args[0], cfg.Projections); err != nil {
			return err
		}
		return q(ctx, cfg, pool, args[0])
	})
}

func (a *app) rebuild(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, name string, f rebuildFlags) error {
	shard, err := outbox.IsShard(ctx, pool, cfg.Database.Timeout)
	switch {
	case err != nil:
		return err
	case shard && name == projections.SearchIndexToElastic && cfg.Elastic.SearchAlias == "":
		return &exitError{exitRefused, "other shards write to the same index, and a rebuild of one would leave their documents out: `weft verify --repair` has what differs written anew, and with shards.indexes=own each shard has an index that can be rebuilt"}
	}
	ok, err := outbox.RequestRebuild(ctx, pool, name, f.replacePlain, f.by, f.why, cfg.Database.Timeout)
	if err != nil {
		return err
	}
	if !ok {
		return &exitError{exitRefused, "a rebuild or load of " + name + " goes on, or the old index of the last one is kept: see `weft rebuild status " + name + "`, and then abort or drop-old"}
	}
	r, ended, err := a.follow(ctx, cfg, pool, name, "does what is asked", f.detach)
	if err != nil {
		return err
	}
	s := records.DescribeRebuild(name, r)
	if err := a.show(s, func(w io.Writer) error { return writeRebuild(w, s) }); err != nil {
		return err
	}
	switch {
	case !ended && r.Phase == outbox.RebuildRequested:
		return &exitError{exitInconclusive, "no leader has begun the rebuild yet, and the request stands: see `weft status`"}
	case !ended:
		return &exitError{exitInconclusive, "the rebuild goes on without this command: see `weft rebuild status " + name + "`"}
	case f.detach || r.Phase == outbox.RebuildDone:
		return nil
	}
	code := exitBad
	if r.Failure == outbox.RebuildRefused || r.Failure == "" && strings.HasPrefix(r.Note, elastic.ErrRefused.Error()) { // a leader of schema version 6 has this text alone
		code = exitRefused
	}
	return &exitError{code, unfinished("rebuild", r)}
}

// unfinished says why a rebuild or load has ended before it was done.
func unfinished(what string, r outbox.Rebuild) string {
	return "the " + what + " has " + strings.Replace(string(r.Phase), "aborted", "been aborted", 1) + ": " +
		cmp.Or(records.Plain(r.Note), "`weft audit` says by whom and why")
}

// follow shows the progress of a rebuild until it ends, or ctx does; with detach it looks once. While nobody can do it,
// it says so in place of the progress; does is what a leader would do.
func (a *app) follow(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, name, does string, detach bool) (outbox.Rebuild, bool, error) {
	meter, shown, asked := newMeter(a.stderr, name), "", time.Now()
	defer meter.close()
	vacant := a.vacancy(ctx, cfg, pool, name, does)
	if vacant != "" {
		meter.note(vacant)
	}
	return a.awaitRebuild(ctx, cfg, pool, name, meter.note, func(r outbox.Rebuild) bool {
		s := records.DescribeRebuild(name, r)
		if now := s.Phase + s.Note; now != shown {
			shown = now
			meter.note(s.Line())
		} else if r.Phase == outbox.RebuildFilling && vacant == "" {
			meter.rebuilt(s)
		}
		if !r.Phase.Ended() && time.Since(asked) >= meterEvery {
			if asked, vacant = time.Now(), a.vacancy(ctx, cfg, pool, name, does); vacant != "" {
				meter.note(vacant)
			}
		}
		return detach || r.Phase.Ended()
	})
}

// awaitRebuild looks at a rebuild until f is content, or ctx ends; then it looks once more, so that it tells how far it is.
// It waits for a server that is away, and has note say so once.
func (a *app) awaitRebuild(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, name string, note func(string), f func(outbox.Rebuild) bool) (r outbox.Rebuild, content bool, err error) {
	away := false
	tick := time.NewTicker(rebuildLook)
	defer tick.Stop()
	for {
		last := ctx.Err() != nil
		now, err := outbox.ReadRebuild(context.WithoutCancel(ctx), pool, name, cfg.Database.Timeout)
		if err == nil && now.Phase == "" { // removed, as where its shard moves away
			return r, false, errors.New("weft_rebuild has no row for " + name + " any more")
		}
		if err == nil {
			r, away = now, false
			if f(r) {
				return r, true, nil
			}
		} else if code, why := diagnose(err); code != exitUnavailable {
			return r, false, err
		} else if !away {
			away = true
			note("waiting, since it may come back: " + why)
		}
		if last {
			return r, false, nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (a *app) rebuildStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status PROJECTION",
		Short:   "Show how far the newest rebuild is",
		Example: "  weft rebuild status products --json",
		Args:    one("the name of one projection"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				r, err := outbox.ReadRebuild(ctx, pool, args[0], cfg.Database.Timeout)
				if err != nil {
					return err
				}
				if r.Phase == "" {
					if err := known(cmd, "projection", args[0], cfg.Registry().Names()); err != nil {
						return err
					}
					return &exitError{exitBad, "projection " + args[0] + " was never rebuilt"}
				}
				s := records.DescribeRebuild(args[0], r)
				return a.show(s, func(w io.Writer) error { return writeRebuild(w, s) })
			})
		},
	}
	a.jsonFlags(cmd)
	return cmd
}

// rebuildAsk is a request to the leader about a rebuild.
type rebuildAsk struct {
	ask                  outbox.RebuildAsk
	name, short, example string
	not                  string // why it is refused
}

func (a *app) rebuildAskCommand(ask rebuildAsk) *cobra.Command {
	var f rebuildFlags
	cmd := &cobra.Command{
		Use:   ask.name + " PROJECTION",
		Short: ask.short,
		Long: ask.short + `. The leader does it. Who asked and why is kept in weft_audit.

Exits 3 when it was not seen to be done within --wait (the request stands), 77 when the rebuild
is in no phase for it.`,
		Example: "  weft rebuild " + ask.name + " " + ask.example,
		Args:    one("the name of one projection"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.rebuilding(cmd, args, &f, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, name string) error {
				ok, err := outbox.AskRebuild(ctx, pool, name, ask.ask, f.by, f.why, cfg.Database.Timeout)
				if err != nil {
					return err
				}
				if !ok {
					return &exitError{exitRefused, "projection " + name + ": " + ask.not}
				}
				ctx, cancel := context.WithTimeout(ctx, f.wait)
				defer cancel()
				r, done, err := a.awaitRebuild(ctx, cfg, pool, name, func(string) {}, func(r outbox.Rebuild) bool { return r.Asked == "" })
				if err != nil {
					return err
				}
				s := records.DescribeRebuild(name, r)
				if err := a.show(s, func(w io.Writer) error { return writeRebuild(w, s) }); err != nil || done {
					return err
				}
				return &exitError{exitInconclusive, "the leader has not done it yet, and the request stands: see `weft status`"}
			})
		},
	}
	durationFlag(cmd, &f.wait, "wait", 30*time.Second, 0, "how long to wait until the leader has done it")
	f.addFlags(cmd)
	a.jsonFlags(cmd, "group", "projections", "env")
	return cmd
}
