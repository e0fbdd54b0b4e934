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
	"github.com/samuelhu324-dev/weft/internal/replay"
	"github.com/samuelhu324-dev/weft/outbox"
)

// replayed is the JSON form of weft replay. Names and units stay; fields may be added.
type replayed struct {
	DryRun      bool                      `json:"dry_run"`
	By          string                    `json:"by"`
	Why         string                    `json:"why"`
	Projections []replayedByProject       `json:"projections"`
	Groups      []records.DeadLetterGroup `json:"would_replay"` // of a dry run
}

type replayedByProject struct {
	Projection string `json:"projection"`
	Matched    int64  `json:"matched"`
	Replayed   int64  `json:"replayed"`
	Skipped    int64  `json:"skipped"`
	Done       int64  `json:"done"`
	Failed     int64  `json:"failed_again"`
	Open       int64  `json:"open"`
	Outcome    string `json:"outcome"`
	Watched    bool   `json:"watched"` // somebody led when it began
	Reason     string `json:"error_reason"`
	Error      string `json:"error"`
	AuditID    int64  `json:"audit_id"` // 0 when nothing matched
}

type replayFlags struct {
	letterFlags
	limit     int
	rate      int
	wait      time.Duration
	keepGoing bool
}

func (a *app) replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay [ID ...]",
		Short: "Send dead letters again",
		Long: `Send events that ended in failed again: by their ids, by what --entity, --reason, --since
and --until say together, or --all of them. Works from any host, with or without a
leader. Who did it, why and what came of it is kept in weft_audit.

An event only says that its entity has changed. What is written is the source row as it
is when the event is processed, under its own version: a replay brings back neither an
older document nor one that has been deleted. Events that were discarded are sent again only
by their ids, or with --discarded; that undoes the discard.

Lower versions go first, at --rate events a second. When as many as go in two seconds are not
settled yet, it waits for the leader. The first ten go alone; when they all fail again the
replay stops, because the cause is still there. Interrupt it at any time: what was not sent is still in failed.

Exits 0 when all that was sent is done, or nobody leads; 1 when some failed again, or an
ID is not in failed; 3 when some were not settled within --wait; 75 when it was
interrupted.`,
		Example: `  weft replay --reason es_4xx --since 2h --dry-run
  weft replay --reason es_4xx --since 2h --by alice --why "mapping fixed"
  weft replay 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by alice --why "row fixed"
  weft replay --all --limit 1000 --rate 100 --by alice --why "after the restore"`,
		Args: cobra.ArbitraryArgs,
		RunE: a.changing(f.check, func(ctx context.Context, cmd *cobra.Command, cfg config.Config, pool *pgxpool.Pool) error {
			return a.replay(ctx, cmd, cfg, pool, f)
		}),
	}
	f.addFlags(cmd, "replays", "replayed")
	f.sel.addDiscarded(cmd)
	countFlag(cmd, &f.limit, "limit", 0, 0, "at most this many of each projection, the lowest versions first up to 10000; 0 for all")
	countFlag(cmd, &f.rate, "rate", 500, 0, "events per second; 0 makes all of them pending at once")
	durationFlag(cmd, &f.wait, "wait", 30*time.Second, 0, "how long to watch after the last one was sent, until all are settled")
	cmd.Flags().BoolVar(&f.keepGoing, "keep-going", false, "go on although everything fails again")
	a.jsonFlags(cmd, "group", "projections", "env")
	return cmd
}

func (a *app) replay(ctx context.Context, cmd *cobra.Command, cfg config.Config, pool *pgxpool.Pool, f replayFlags) error {
	all, sel, err := f.sel.open(ctx, cmd, pool, cfg)
	if err != nil {
		return err
	}
	out := replayed{DryRun: f.dryRun, By: f.by, Why: f.why, Projections: []replayedByProject{}, Groups: []records.DeadLetterGroup{}}
	if f.dryRun {
		return a.dryRun(ctx, all, sel, f, out)
	}
	for _, d := range all {
		res, failure := a.replayOne(ctx, pool, cfg, d, sel, f)
		out.Projections = append(out.Projections, replayedByProject{
			Projection: d.Projection(), Matched: res.Matched, Replayed: res.Sent, Skipped: res.Skipped, Done: res.Done, Failed: res.Failed,
			Open: res.Open, Outcome: res.Outcome, Watched: res.Watched, Reason: res.Reason, Error: res.Error, AuditID: res.AuditID,
		})
		if err = failure; err != nil {
			break
		}
	}
	interrupted := err != nil && ctx.Err() != nil
	if err != nil && !interrupted {
		if done := out.progress(); done != "" {
			fmt.Fprintf(a.stderr, "weft: %s\n", done)
		}
		return err
	}
	if !interrupted || a.asJSON || out.progress() != "" {
		if err := a.show(out, out.write); err != nil {
			return err
		}
	}
	switch {
	case interrupted:
		return &exitError{exitTryAgain, "interrupted: what was not sent is still in failed; run the command again for the rest"}
	default:
		return out.verdict(len(f.sel.ids))
	}
}

func (a *app) replayOne(ctx context.Context, pool *pgxpool.Pool, cfg config.Config, d *outbox.DeadLetters, sel outbox.Selector, f replayFlags) (replay.Result, error) {
	m := newMeter(a.stderr, d.Projection())
	defer m.close()
	return replay.Run(ctx, d, replay.Config{
		Order: outbox.LetterOrder{By: f.by, Why: f.why, Selector: sel, Limit: f.limit},
		Rate:  f.rate, Wait: f.wait, KeepGoing: f.keepGoing,
		DB: pool, Group: cfg.Group, Timeout: cfg.Database.Timeout,
		Progress: m.replayed, Note: m.note,
	})
}

func (a *app) dryRun(ctx context.Context, all []*outbox.DeadLetters, sel outbox.Selector, f replayFlags, out replayed) error {
	groups, err := records.Summarize(ctx, all, sel)
	if err != nil {
		return err
	}
	out.Groups = groups
	var total, would int64
	for _, d := range all {
		var n int64
		for _, g := range groups {
			if g.Projection == d.Projection() {
				n += g.Rows
			}
		}
		total += n
		if f.limit > 0 {
			n = min(n, int64(f.limit))
		}
		would += n
		out.Projections = append(out.Projections, replayedByProject{Projection: d.Projection(), Matched: n, Outcome: "dry run"})
	}
	if a.asJSON {
		return a.json(out)
	}
	if err := writeGroups(a.stdout, groups); err != nil {
		return err
	}
	if total > 0 {
		_, err = fmt.Fprintf(a.stdout, "would replay %d of %d\n", would, total)
	}
	return err
}

func (r replayed) write(w io.Writer) error {
	_, err := fmt.Fprintln(w, cmp.Or(r.progress(), "no dead letters to replay"))
	return err
}

// progress is one line per projection that had something to replay.
func (r replayed) progress() string {
	var lines []string
	for _, p := range r.Projections {
		if p.Matched == 0 {
			continue
		}
		line := fmt.Sprintf("%s: %d of %d replayed", p.Projection, p.Replayed, p.Matched)
		if p.Skipped > 0 {
			line += fmt.Sprintf(", %d passed over because they changed meanwhile, or nothing can carry them", p.Skipped)
		}
		switch {
		case !p.Watched:
			line += "; nobody leads, so that they wait for an instance"
		default:
			line += fmt.Sprintf(": %d done, %d failed again, %d not settled yet", p.Done, p.Failed, p.Open)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// verdict makes what came of it the exit code. wanted is how many ids were named.
func (r replayed) verdict(wanted int) error {
	var matched, failed, open, skipped int64
	var stopped bool
	var sample string
	for _, p := range r.Projections {
		matched += p.Matched
		failed += p.Failed
		skipped += p.Skipped
		if p.Watched {
			open += p.Open
		}
		stopped = stopped || p.Outcome == replay.Stopped
		if p.Failed > 0 {
			sample = fmt.Sprintf(" (%s: %s)", p.Reason, records.Short(p.Error))
		}
	}
	switch {
	case stopped:
		return &exitError{exitBad, fmt.Sprintf("stopped: all of the last %d failed again%s; fix the cause first, or use --keep-going", replay.Futile, sample)}
	case failed > 0:
		return &exitError{exitBad, fmt.Sprintf("%d failed again%s", failed, sample)}
	case wanted > 0 && matched-skipped < int64(wanted):
		return &exitError{exitBad, lacking(int64(wanted)-matched+skipped, wanted, "was not in failed", "were not in failed")}
	case open > 0:
		return &exitError{exitInconclusive, fmt.Sprintf("%d are not settled yet; see `weft status`", open)}
	default:
		return nil
	}
}
