package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
)

// takeoverLook is the pause between two looks for the successor; what is reported is
// the database's time, not ours.
const takeoverLook = 25 * time.Millisecond

// resignation is the JSON form of weft resign. Names and units stay; fields may be added.
type resignation struct {
	Group   string     `json:"group"`
	By      string     `json:"by"`
	Why     string     `json:"why"`
	From    termOf     `json:"from"`
	AskedAt time.Time  `json:"asked_at"`
	To      *termOf    `json:"to"`           // null when nobody was seen to take over
	Secs    *float64   `json:"took_seconds"` // from the request to the new term, database clock
	Since   *time.Time `json:"acquired_at"`
}

type termOf struct {
	Instance string `json:"instance"`
	Epoch    int64  `json:"epoch"`
}

type resignFlags struct {
	by, why string
	wait    time.Duration
	force   bool
	own     bool
	began   time.Time // a term that is younger is not the one that the caller means
}

func (a *app) resignCommand() *cobra.Command {
	var f resignFlags
	cmd := &cobra.Command{
		Use:   "resign",
		Short: "Ask the leader to hand over to a standby",
		Long: `Ask the leader to hand over: it claims nothing more, finishes what is in flight within
its shutdown grace, frees the lock, and stays as a standby. Works from any host. Who
asked and why is kept in weft_audit.

Exits 1 when nobody leads or nobody else took over, 3 when the hand-over was not seen
within --wait, or until it was interrupted (the request stands), 75 when another instance
has taken over since the command began, so that nobody is asked, 77 when no standby is there
to take over.

With --own it asks only if the instance of this configuration leads (WEFT_INSTANCE, or
--instance), and does nothing otherwise. Use it in a script that runs before a stop, on leader
and standby alike.`,
		Example: `  weft resign --why "kernel update on host a"
  weft resign --why drill --by alice --wait 5s --json
  WEFT_INSTANCE=a weft resign --own --by deploy --why "new version"`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.by = cmp.Or(f.by, person())
			if err := f.check(cmd); err != nil {
				return err
			}
			f.began = time.Now()
			return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				defer func() { f.began = time.Now() }() // for the next shard
				if f.own && !cfg.Given("instance") {
					return usage(cmd, "--own needs the name of the instance: set WEFT_INSTANCE as it is set for `weft run`, or --instance")
				}
				return a.resign(ctx, cfg, pool, f)
			})
		},
	}
	cmd.Flags().StringVar(&f.by, "by", "", "who asks (default user@host)")
	cmd.Flags().StringVar(&f.why, "why", "", "the reason (required)")
	durationFlag(cmd, &f.wait, "wait", 30*time.Second, 0, "how long to wait until another instance leads; 0 asks and returns")
	cmd.Flags().BoolVar(&f.force, "force", false, "ask although no standby was seen")
	cmd.Flags().BoolVar(&f.own, "own", false, "ask only if the instance of this configuration leads")
	a.jsonFlags(cmd, "group", "instance", "env")
	return cmd
}

func (f resignFlags) check(cmd *cobra.Command) error {
	if f.why == "" {
		return usage(cmd, "--why is missing: say why the leader is to hand over")
	}
	if err := (leader.Resignation{By: f.by, Why: f.why}).Validate(); err != nil {
		return usage(cmd, err.Error())
	}
	return nil
}

func (a *app) resign(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, f resignFlags) error {
	st, err := mayResign(ctx, pool, cfg, f)
	if err != nil {
		return err
	}
	if st.Epoch == 0 {
		_, err := fmt.Fprintf(a.stderr, "weft: %s does not lead: there is nothing to hand over\n", cfg.Instance)
		return err
	}
	asked, err := leader.Resign(ctx, pool, cfg.Group, leader.Resignation{Epoch: st.Epoch, By: f.by, Why: f.why})
	if errors.Is(err, leader.ErrNoTerm) {
		return &exitError{exitTryAgain, fmt.Sprintf("the term of %s, epoch %d, has ended in the meantime; see `weft status`", st.Instance, st.Epoch)}
	}
	if err != nil {
		return err
	}
	r := resignation{Group: cfg.Group, By: f.by, Why: f.why, From: termOf{st.Instance, st.Epoch}, AskedAt: asked.AskedAt.UTC()}
	var outcome error
	if f.wait > 0 {
		outcome = awaitTakeover(ctx, pool, cfg.Group, f.wait, &r)
	}
	if err := a.showResignation(r); err != nil {
		return err
	}
	return outcome
}

// mayResign returns the running term, or why there is nothing to ask for; no term and no
// error when that is as it should be.
func mayResign(ctx context.Context, pool *pgxpool.Pool, cfg config.Config, f resignFlags) (leader.State, error) {
	var none leader.State
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	before := time.Since(f.began)
	now, err := records.Now(ctx, pool, preflightTimeout)
	if err != nil {
		return none, err
	}
	st, err := leader.ReadState(ctx, pool, cfg.Group)
	if err != nil {
		return none, err
	}
	if f.own && (!st.Led() || st.Instance != cfg.Instance) {
		return none, nil
	}
	if !st.Led() {
		return none, &exitError{exitBad, "nobody leads group " + cfg.Group + ": there is nothing to hand over"}
	}
	if !f.own && st.AcquiredAt.After(now.Add(-before)) {
		return none, &exitError{exitTryAgain, fmt.Sprintf(
			"%s has taken over since this command began, and leads in epoch %d: nobody was asked to hand over; see `weft status`", st.Instance, st.Epoch)}
	}
	seen, err := leader.Instances(ctx, pool, cfg.Group)
	if err != nil {
		return none, err
	}
	if !f.force && !records.HasStandby(seen, st.Instance) {
		return none, &exitError{exitRefused, fmt.Sprintf(
			"no standby of group %s was seen in the last %v to take over from %s: start another `weft run`, or use --force (%s leads again when nobody else does)",
			cfg.Group, records.GoneAfter, st.Instance, st.Instance)}
	}
	return st, nil
}

// awaitTakeover fills in who leads the next term, or says why nobody was seen to.
func awaitTakeover(command context.Context, pool *pgxpool.Pool, group string, wait time.Duration, r *resignation) error {
	ctx, cancel := context.WithTimeout(command, wait)
	defer cancel()
	tick := time.NewTicker(takeoverLook)
	defer tick.Stop()
	var last leader.State
	var trouble error
	for {
		st, err := leader.ReadState(ctx, pool, group)
		switch {
		case err != nil && ctx.Err() == nil:
			trouble = err // the server may come back in time
		case err == nil && st.Epoch > r.From.Epoch:
			took, since := st.AcquiredAt.Sub(r.AskedAt).Seconds(), st.AcquiredAt.UTC()
			r.To, r.Secs, r.Since = &termOf{st.Instance, st.Epoch}, &took, &since
			if st.Instance == r.From.Instance {
				return &exitError{exitBad, fmt.Sprintf("nobody else took the lock: %s leads again, in epoch %d", st.Instance, st.Epoch)}
			}
			return nil
		case err == nil:
			last, trouble = st, nil
		}
		select {
		case <-ctx.Done():
			if command.Err() != nil {
				return &exitError{exitInconclusive, "interrupted: " + r.From.Instance + " was asked to hand over, and the request stands; see `weft status`"}
			}
			return notSeen(context.WithoutCancel(ctx), pool, *r, wait, last, trouble)
		case <-tick.C:
		}
	}
}

// notSeen says how far the hand-over had come.
func notSeen(ctx context.Context, pool *pgxpool.Pool, r resignation, wait time.Duration, last leader.State, trouble error) error {
	from := r.From
	if trouble != nil {
		_, text := diagnose(trouble)
		return &exitError{exitInconclusive, fmt.Sprintf("%s was asked to hand over, and then the database could not be read: %s", from.Instance, text)}
	}
	if last.ReleasedAt != nil {
		return &exitError{exitInconclusive, fmt.Sprintf("%s has handed over, and nobody has taken the lock within %v; see `weft status`", from.Instance, wait)}
	}
	seen, err := leader.Instances(ctx, pool, r.Group)
	if err != nil {
		return err
	}
	for _, i := range seen {
		if i.Name == from.Instance && i.Role == leader.RoleDraining {
			return &exitError{exitInconclusive, fmt.Sprintf("%s still finishes what is in flight after %v; it hands over within its shutdown grace", from.Instance, wait)}
		}
	}
	return &exitError{exitInconclusive, fmt.Sprintf(
		"%s has not answered within %v and still leads in epoch %d: a build older than this command does not know the request; stop that process instead (the request stands, for this epoch only)",
		from.Instance, wait, from.Epoch)}
}

func (a *app) showResignation(r resignation) error {
	if a.asJSON {
		return a.json(r)
	}
	line := fmt.Sprintf("%s, epoch %d, was asked to hand over", r.From.Instance, r.From.Epoch)
	if r.To != nil {
		line = fmt.Sprintf("%s leads in epoch %d, %s after %s, epoch %d, was asked to hand over",
			r.To.Instance, r.To.Epoch, records.Span(*r.Secs), r.From.Instance, r.From.Epoch)
	}
	_, err := fmt.Fprintln(a.stdout, line)
	return err
}
