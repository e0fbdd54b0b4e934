package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// quarantined is the JSON form of what weft quarantine and weft release did in one projection.
// Names and units stay; fields may be added.
type quarantined struct {
	Projection string              `json:"projection"`
	EntityType string              `json:"entity_type"`
	EntityID   string              `json:"entity_id"`
	Changed    bool                `json:"changed"`    // false when it was so before
	Quarantine *records.Quarantine `json:"quarantine"` // null after weft release

	idle bool // nothing of the entity is open: it may be another one that was meant
}

func (a *app) quarantineCommand() *cobra.Command {
	return a.quarantineOrRelease(&cobra.Command{
		Use:   "quarantine TYPE:ID",
		Short: "Hold back the events of one entity until weft release",
		Long: `Have the leader lease no more events of one entity; all others go on. It obeys within a
second; what is in flight settles. The quarantine is kept in Postgres, so it outlives
restarts and takeovers, until weft release. Works from any host, with or without a leader.

Meanwhile the entity's events wait in their order, and none is lost: they count as lag.
weft status, weft event and the metric weft_quarantined_entities show the quarantine, and
WeftQuarantineLong fires after a day.

Without --projection it is in quarantine for every configured projection whose entities have
such ids. A projection takes ` + fmt.Sprint(outbox.MaxQuarantined) + ` entities at most.

Instances of an older build do not know of it. Exits 0, also when the entity was in
quarantine before; the first quarantine then stays as it is.`,
		Example: `  weft quarantine block:7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by alice --why "bad text, INC-7"
  weft quarantine order:4711 --projection orders --by alice --why "being fixed"
  weft release order:4711 --by alice --why "fixed"`,
	}, func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config, o outbox.HoldOrder) (quarantined, error) {
		now, begun, err := outbox.BeginHold(ctx, pool, o, cfg.Database.Timeout)
		if errors.Is(err, outbox.ErrQuarantineFull) {
			err = &exitError{exitRefused, err.Error()}
		}
		return quarantined{Changed: begun, Quarantine: records.DescribeQuarantine(now), idle: err == nil && begun && idle(ctx, pool, cfg, o)}, err
	})
}

// idle reports whether nothing of an entity is open, as far as that can be read: it is a hint alone.
func idle(ctx context.Context, pool *pgxpool.Pool, cfg config.Config, o outbox.HoldOrder) bool {
	events, err := outbox.OpenMender(ctx, pool, cfg.Registry().Table(o.Projection), o.Projection, cfg.Database.Timeout)
	if err != nil {
		return false
	}
	standing, err := events.Standing(ctx, []outbox.Key{o.Entity})
	return err == nil && !standing[0].Open
}

func (a *app) releaseCommand() *cobra.Command {
	return a.quarantineOrRelease(&cobra.Command{
		Use:   "release TYPE:ID",
		Short: "End the quarantine of an entity",
		Long: `End what weft quarantine has begun: the leader goes on with the entity's events within a
second or so, in their order. Without --projection the quarantine ends for every configured
projection. Exits 0, also when the entity was in no quarantine.`,
		Example: `  weft release block:7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by alice --why "text fixed"`,
	}, func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config, o outbox.HoldOrder) (quarantined, error) {
		ended, err := outbox.EndHold(ctx, pool, o, cfg.Database.Timeout)
		return quarantined{Changed: ended}, err
	})
}

func (a *app) quarantineOrRelease(cmd *cobra.Command, do func(context.Context, *pgxpool.Pool, config.Config, outbox.HoldOrder) (quarantined, error)) *cobra.Command {
	var (
		who        signature
		projection string
	)
	cmd.Args = one("one entity, as TYPE:ID")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if kind, id, err := records.Entity(args[0]); err != nil || kind == "" || id.IsZero() || len([]rune(kind)) > outbox.MaxType {
			return usage(cmd, fmt.Sprintf("%q is no entity: want TYPE:ID, with a type of at most %d characters and an id that is not empty", args[0], outbox.MaxType))
		}
		if err := who.check(cmd); err != nil {
			return err
		}
		return a.writing(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
			names := cfg.Projections
			if projection != "" {
				if err := known(cmd, "projection that runs", projection, names); err != nil {
					return err
				}
				names = []string{projection}
			}
			entities, err := entityOf(ctx, cmd, pool, cfg, names, args[0])
			if err != nil {
				return err
			}
			out := []quarantined{}
			for _, name := range names {
				entity, ok := entities[name]
				if !ok {
					continue
				}
				q, err := do(ctx, pool, cfg, outbox.HoldOrder{
					Group: cfg.Group, Projection: name, By: who.by, Why: who.why, Kind: outbox.Quarantine, Entity: entity,
				})
				if err != nil {
					return err
				}
				q.Projection, q.EntityType, q.EntityID = name, entity.Type, entity.ID.String()
				out = append(out, q)
			}
			return a.show(out, func(w io.Writer) error { return writeQuarantined(w, out) })
		})
	}
	cmd.Flags().StringVar(&projection, "projection", "", "only for this projection")
	who.add(cmd, "who does it")
	a.jsonFlags(cmd, "group", "projections", "env")
	return cmd
}

// entityOf reads TYPE:ID for each projection whose table has entities with such ids.
func entityOf(ctx context.Context, cmd *cobra.Command, pool *pgxpool.Pool, cfg config.Config, names []string, text string) (map[string]outbox.Key, error) {
	out := map[string]outbox.Key{}
	var kinds []string
	kind, raw, _ := records.Entity(text)
	for _, name := range names {
		t, err := outbox.DescribeTable(ctx, pool, cfg.Registry().Table(name), cfg.Database.Timeout)
		if err != nil {
			return nil, err
		}
		if id, err := outbox.ParseID(t.Entity, raw.String()); err == nil {
			out[name] = outbox.Key{Type: kind, ID: id}
		} else if !slices.Contains(kinds, t.Entity.String()) {
			kinds = append(kinds, t.Entity.String())
		}
	}
	if len(out) == 0 {
		return nil, usage(cmd, fmt.Sprintf("%q is no id of an entity here: want a %s", raw, strings.Join(kinds, " or a ")))
	}
	return out, nil
}

func writeQuarantined(w io.Writer, all []quarantined) error {
	doubt := slices.ContainsFunc(all, func(q quarantined) bool { return q.idle }) &&
		!slices.ContainsFunc(all, func(q quarantined) bool { return q.Changed && !q.idle })
	for _, q := range all {
		var text string
		switch {
		case q.Quarantine == nil && q.Changed:
			text = "released: the leader goes on with its events within a second"
		case q.Quarantine == nil:
			text = "was not in quarantine"
		case q.Changed:
			text = "in quarantine: the leader leases no more of its events within a second; weft status shows it"
		default:
			text = "was " + q.Quarantine.Line()
		}
		if _, err := fmt.Fprintf(w, "%s: %s %s\n", q.Projection, records.Plain(q.EntityType+":"+q.EntityID), text); err != nil {
			return err
		}
	}
	if doubt {
		_, err := fmt.Fprintln(w, "no event of it is open now: look at type and id if you expected some")
		return err
	}
	return nil
}
