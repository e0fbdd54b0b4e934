package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// selection is what the flags say about dead letters.
type selection struct {
	ids           []outbox.ID
	entity        string
	entityType    string
	entityID      outbox.ID
	reason        string
	since, before records.Moment
	discarded     bool
}

func (s *selection) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.entity, "entity", "", "only this entity: `TYPE:ID`, ID, or TYPE for all of one type")
	cmd.Flags().StringVar(&s.reason, "reason", "", "only this `reason`: one of docs/runbooks/reasons.md, or none")
	cmd.Flags().Var(&s.since, "since", "only what has failed since then: a time, or a duration ago")
	cmd.Flags().Var(&s.before, "until", "only what failed before then")
}

// addDiscarded adds a flag that selects what was discarded.
func (s *selection) addDiscarded(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.discarded, "discarded", false, "only those that were discarded, instead of the others")
}

// parse reads ids and flags, or says what is wrong with them.
func (s *selection) parse(cmd *cobra.Command, ids []string) error {
	for _, text := range ids {
		id, err := eventID(cmd, text)
		if err != nil {
			return err
		}
		if !slices.Contains(s.ids, id) {
			s.ids = append(s.ids, id)
		}
	}
	if s.reason != "" {
		if err := known(cmd, "reason", outbox.Reason(s.reason), append(outbox.Reasons(), outbox.NoReason)); err != nil {
			return err
		}
	}
	if s.entity == "" {
		return nil
	}
	kind, id, err := records.Entity(s.entity)
	if err != nil {
		return usage(cmd, fmt.Sprintf("--entity %q: %v", s.entity, err))
	}
	s.entityType, s.entityID = kind, id
	return nil
}

// oneWay wants the dead letters to be named in one way: by ids, by filters, or all of them.
func (s *selection) oneWay(cmd *cobra.Command, ids []string, all bool) error {
	ways := 0
	for _, used := range []bool{len(ids) > 0, s.filtered(), all} {
		if used {
			ways++
		}
	}
	switch {
	case ways == 0:
		return usage(cmd, "say which dead letters: ids, --entity, --reason, --since, --until, or --all")
	case ways > 1:
		return usage(cmd, "ids, filters and --all exclude each other")
	default:
		return nil
	}
}

// fits says what is wrong with an id that no table can have.
func (s *selection) fits(cmd *cobra.Command, all []*outbox.DeadLetters) error {
	check := func(what string, id outbox.ID, kindOf func(*outbox.Table) outbox.IDKind) error {
		var kinds []string
		for _, d := range all {
			kind := kindOf(d.Shape())
			if _, err := outbox.ParseID(kind, id.String()); err == nil {
				return nil
			}
			if !slices.Contains(kinds, kind.String()) {
				kinds = append(kinds, kind.String())
			}
		}
		return usage(cmd, fmt.Sprintf("%q is no id of %s here: want a %s", id, what, strings.Join(kinds, " or a ")))
	}
	for _, id := range s.ids {
		if err := check("an event", id, func(t *outbox.Table) outbox.IDKind { return t.ID }); err != nil {
			return err
		}
	}
	if s.entityID.IsZero() {
		return nil
	}
	return check("an entity", s.entityID, func(t *outbox.Table) outbox.IDKind { return t.Entity })
}

// lacking says of how many ids that were named there was nothing to do, and why: of one, or of several.
func lacking(n int64, named int, one, many string) string {
	text := fmt.Sprintf("%d of the %d ids %s", n, named, many)
	switch {
	case named == 1:
		text = "the event " + one
	case n == 1:
		text = fmt.Sprintf("1 of the %d ids %s", named, one)
	}
	return text + "; `weft event` says where an event is"
}

// letterFlags are the flags of a command that changes dead letters.
type letterFlags struct {
	sel selection
	all bool
	signature
	dryRun bool
}

// addFlags gets what the command does, as "replays" and "replayed".
func (f *letterFlags) addFlags(cmd *cobra.Command, does, done string) {
	f.sel.addFlags(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "all dead letters of the projections")
	f.add(cmd, "who "+does)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be "+done+", and change nothing")
}

func (f *letterFlags) check(cmd *cobra.Command, ids []string) error {
	if err := f.sel.parse(cmd, ids); err != nil {
		return err
	}
	if err := f.sel.oneWay(cmd, ids, f.all); err != nil {
		return err
	}
	if f.dryRun {
		return nil
	}
	return f.signature.check(cmd)
}

// changing makes the RunE of a command that changes dead letters.
func (a *app) changing(check func(*cobra.Command, []string) error,
	change func(context.Context, *cobra.Command, config.Config, *pgxpool.Pool) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return err
		}
		return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
			return change(ctx, cmd, cfg, pool)
		})
	}
}

func joined[S ~string](all []S) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = string(s)
	}
	return strings.Join(texts, ", ")
}

// filtered reports whether anything but ids narrows the selection.
func (s *selection) filtered() bool {
	return s.entity != "" || s.reason != "" || s.since.Given() || s.before.Given() || s.discarded
}

// open returns the dead letters of the configured projections, which the selection must fit,
// and the selection with its times in the database's clock.
func (s *selection) open(ctx context.Context, cmd *cobra.Command, pool *pgxpool.Pool, cfg config.Config) ([]*outbox.DeadLetters, outbox.Selector, error) {
	sel := outbox.Selector{IDs: s.ids, EntityType: s.entityType, EntityID: s.entityID, Reason: s.reason, Discarded: s.discarded}
	now, err := records.Now(ctx, pool, preflightTimeout)
	if err != nil {
		return nil, sel, err
	}
	sel.Since, sel.Until = s.since.Resolve(now), s.before.Resolve(now)
	if s.since.Given() && s.before.Given() && !sel.Since.Before(sel.Until) {
		return nil, sel, usage(cmd, "--since must be earlier than --until")
	}
	var all []*outbox.DeadLetters
	for _, name := range cfg.Projections {
		d, err := outbox.OpenDeadLetters(ctx, pool, cfg.Registry().Table(name), name, cfg.Database.Timeout)
		if err != nil {
			return nil, sel, err
		}
		all = append(all, d)
	}
	return all, sel, s.fits(cmd, all)
}
