package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/shards"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
)

const shardFlag = "shard"

// ofOneShard are the commands that are about one thing, which is in one shard, or that draw a screen
// or write a file.
var ofOneShard = []string{"discard", "event", "quarantine", "release", "show", "support-bundle", "top", "wait"}

// notOfShards are the commands whose outboxes are not dealt out.
var notOfShards = []string{"load", "outbox", "projection"}

// belongs reports whether cmd, or a group that it is in, has one of these names.
func belongs(cmd *cobra.Command, names []string) bool {
	return slices.ContainsFunc(strings.Fields(cmd.CommandPath())[1:], func(word string) bool { return slices.Contains(names, word) })
}

// describeShard gives --shard of cmd, and of the commands below it, the words for what it does there.
func describeShard(cmd *cobra.Command) {
	if f := cmd.Flags().Lookup(shardFlag); f != nil {
		switch {
		case belongs(cmd, notOfShards):
			f.Usage = "no use here: a `shard` has no outbox that weft outbox create makes"
		case belongs(cmd, ofOneShard):
			f.Usage = "the `shard`, counted from 0; required where WEFT_SHARDS says that there are several"
		default:
			f.Usage = "only this `shard`, counted from 0; default all that WEFT_SHARDS says"
		}
	}
	for _, sub := range cmd.Commands() {
		describeShard(sub)
	}
}

func (a *app) shardsCommand() *cobra.Command {
	return groupOf(&cobra.Command{
		Use:     "shards",
		Short:   "Deal entities out to shards, each with a leader of its own",
		Long:    "Deal entities out to shards. A shard is a schema with tables of its own, and a group with a\nlock, an epoch and a leader of its own.",
		Example: "  weft shards create 8\n  weft shards list\n  weft shards move 3 --to postgres://owner@db2/shop",
	}, a.shardsCreate(), a.shardsList(), a.shardsMove())
}

func (a *app) shardsCreate() *cobra.Command {
	var by string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "create N",
		Short: "Make N shards, and the tables that deal rows out to them",
		Long: `Make N schemas, ` + "`shard_0`" + ` and so on, with weft's tables in each, and in the schema of the database
URL the tables search_outbox_events, search_index, chronicle_outbox_events, chronicle_events
and chronicle_entries. These are partitioned by a hash of the entity's id: the application
reads and writes them as before, and PostgreSQL puts each row into the table of its entity's
shard, in the application's transaction. weft_shard_of(id) returns the number of an entity's
shard. Who made the shards is kept in the weft_audit of each.

It refuses tables of these names that are there already, and shards of another number: that
does not change, because entities would change their shard. It may be interrupted and
repeated. Run it as the owner of the schema, with the right to create schemas.

Then set WEFT_SHARDS=N for every command and instance, grant the role of the instances what
it needs with ` + "`weft migrate grant ROLE`" + `, and the application what it needs on the tables that
deal out: it needs no right on a shard.`,
		Example: `  weft shards create 8
  weft shards create 4 --shards-prefix search_ --by alice`,
		Args: one("the number of shards"),
		RunE: func(cmd *cobra.Command, args []string) error {
			count, err := strconv.Atoi(args[0])
			if err != nil || count < 2 {
				return usage(cmd, fmt.Sprintf("%q: want a number of shards, 2 or more", args[0]))
			}
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			cfg.Shards.Count = count
			spec := migrations.ShardsSpec{By: cmp.Or(by, person()), Why: strings.Join([]string{cmd.CommandPath(), args[0]}, " ")}
			for n := range count {
				one, err := shards.Config(cfg, n)
				if err != nil {
					return err
				}
				spec.Shards = append(spec.Shards, migrations.Shard{Schema: shards.Schema(cfg, n), URL: one.Database.URL.Reveal()})
			}
			return migrateOn(cmd, cfg, func(ctx context.Context, url string) error {
				created, err := migrations.CreateShards(ctx, url, spec, a.progress(), migrations.WithWait(wait))
				if err == nil && !created {
					fmt.Fprintf(a.stdout, "nothing to do: the %d shards are there\n", count)
				} else if err == nil {
					fmt.Fprintf(a.stdout, "created %d shards, %s to %s; set WEFT_SHARDS=%d\n", count, spec.Shards[0].Schema, spec.Shards[count-1].Schema, count)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&by, "by", "", "who makes them (default user@host)")
	lockWait(cmd, &wait)
	config.AddFlags(cmd.Flags(), "database.url", "database.password", "database.timeout", "shards.prefix", "env")
	return cmd
}

// shardRow is the JSON form of a shard. Names stay; fields may be added.
type shardRow struct {
	Shard  int    `json:"shard"`
	Schema string `json:"schema"`
	Group  string `json:"group"`
	Leader string `json:"leader"` // empty when nobody leads
	Epoch  int64  `json:"epoch"`
	Server string `json:"server"`
	Home   string `json:"home"`  // the server that it is on, when that is not the one of the settings; else empty
	Error  string `json:"error"` // why there is no more to say of it; empty when it could be read

	away *migrations.Away
}

func (a *app) shardsList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the shards, and who leads each",
		Long:  "List the shards, where they are, and who leads each. Exits 1 when nobody leads one of them, and\nwhen one is on another server than the settings say. A shard that cannot be read is listed\nwith an unknown leader; the exit code is then that of the first such fault.",
		Example: `  weft shards list
  weft shards list --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			if cfg.Shards.Count <= 1 {
				return oneShard(cmd)
			}
			rows, vacant, code := []shardRow{}, 0, exitOK
			for n := range cfg.Shards.Count {
				row, err := readShard(cmd.Context(), cfg, n)
				if err != nil {
					failed, lines := explain(err)
					code, row.Error = cmp.Or(code, failed), lines[0]
					fmt.Fprintf(a.stderr, "weft: shard %d: %s\n", n, row.Error)
				} else if row.Leader == "" {
					vacant++
				}
				rows = append(rows, row)
			}
			err = a.show(rows, func(w io.Writer) error { return writeShards(w, rows) })
			if err == nil && code != exitOK {
				err = &exitError{code, "not all shards could be read: see above"}
			}
			if err == nil {
				err = misplaced(rows)
			}
			if err == nil && vacant > 0 {
				err = &exitError{exitBad, fmt.Sprintf("nobody leads %d of %d shards", vacant, len(rows))}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&a.asJSON, "json", false, "print JSON")
	config.AddFlags(cmd.Flags(), "database.url", "database.password", "database.timeout", "group", "shards.count", "shards.prefix", "shards.servers")
	return cmd
}

func readShard(ctx context.Context, cfg config.Config, n int) (row shardRow, err error) {
	one, err := shards.Config(cfg, n)
	if err != nil {
		return row, err
	}
	at, err := postgres.ParseURL(one.Database.URL.Reveal())
	if err != nil {
		return row, err
	}
	defer func() { err = faultOf(one, err) }()
	row = shardRow{Shard: n, Schema: shards.Schema(cfg, n), Group: one.Group, Server: postgres.Address(&at.ConnConfig.Config)}
	defer func() { err = postgres.In(one.Database.URL.Reveal(), err) }()
	conn, err := postgres.Connect(ctx, one.Database.URL.Reveal(), postgres.Options{AppName: "weft/shards", Statement: cfg.Database.Timeout})
	if err != nil {
		return row, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := migrations.CheckShards(ctx, conn, one.Shards.Of); err != nil {
		return row, err
	}
	st, err := leader.ReadState(ctx, conn, one.Group)
	if err != nil {
		return row, err
	}
	row.Epoch = st.Epoch
	if st.Led() {
		row.Leader = st.Instance
	}
	if row.away, err = migrations.ReadAway(ctx, conn, row.Schema); err == nil && row.away != nil {
		row.Home = row.away.Server
	}
	return row, err
}

// misplaced is an error when a shard is not where the settings have it.
func misplaced(rows []shardRow) error {
	for _, r := range rows {
		if r.away != nil {
			return elsewhere(fmt.Sprintf("shard %d", r.Shard), r.away)
		}
	}
	return nil
}

// oneShard is the error of a command about shards where the settings have one.
func oneShard(cmd *cobra.Command) error {
	return usage(cmd, "there is one shard: set WEFT_SHARDS to as many as weft shards create has made")
}

// elsewhere is the error of a shard that is at home in another database.
func elsewhere(shard string, away *migrations.Away) error {
	return &exitError{exitBad, fmt.Sprintf("%s %s; %s", shard, away, away.Remedy())}
}

func writeShards(w io.Writer, rows []shardRow) error {
	t := newTable(w, "SHARD", "LEADER", "EPOCH", "SCHEMA", "GROUP", "SERVER")
	for _, r := range rows {
		if r.Error != "" {
			r.Leader = "unknown"
		}
		t.row(r.Shard, records.Dash(r.Leader), r.Epoch, r.Schema, r.Group, r.Server)
	}
	return t.Flush()
}

// eachShard runs f with the settings of each shard in turn, or of the one that --shard names; without
// shards it runs f with the settings as they are. What fails in one shard does not keep f from the
// others, unless the command is wrong or is stopped: each failure is told, and the first decides
// the exit code. SIGTERM and SIGINT end the context of cmd.
func (a *app) eachShard(cmd *cobra.Command, f func(config.Config) error) error {
	cfg, err := a.load(cmd)
	if err != nil {
		return err
	}
	chosen, err := chosenShards(cmd, cfg)
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd.Context()) // what f is interrupted by ends the loop, too
	defer stop()
	cmd.SetContext(ctx)
	if cfg.Shards.Count <= 1 {
		return unlessInterrupted(ctx, f(cfg))
	}
	code, last := exitOK, chosen[len(chosen)-1]
	for _, n := range chosen {
		one, err := shards.Config(cfg, n)
		if err != nil {
			return err
		}
		if len(chosen) > 1 && !a.asJSON {
			fmt.Fprintf(a.stdout, "shard %d: schema %s, group %s\n", n, shards.Schema(cfg, n), one.Group)
		}
		if err = f(one); ctx.Err() == nil {
			err = faultOf(one, err)
		}
		e, said := errors.AsType[*exitError](err)
		switch {
		case len(chosen) == 1, said && (e.code == exitUsage || ctx.Err() != nil):
			return unlessInterrupted(ctx, err)
		case ctx.Err() != nil && err == nil && n < last:
			return interruptedAt(n+1, last)
		case ctx.Err() != nil && err != nil:
			return interruptedAt(n, last)
		case err != nil:
			failed, lines := explain(err)
			code = cmp.Or(code, failed)
			for _, l := range lines {
				fmt.Fprintf(a.stderr, "weft: shard %d: %s\n", n, l)
			}
		}
	}
	if code != exitOK {
		return &exitError{code, "not all shards are well: see above"}
	}
	return nil
}

// faultOf returns the error of a shard, in words that name the setting that has its address.
func faultOf(one config.Config, err error) error {
	if err == nil || !one.Shards.Away {
		return err
	}
	code, lines := explain(err)
	return &exitError{code, shards.Remedy(one, strings.Join(lines, "\n"))}
}

func interruptedAt(n, last int) error {
	return &exitError{exitTryAgain, fmt.Sprintf("interrupted: shards %d to %d are left; repeat the command, with --shard for one of them", n, last)}
}

// chosenShards returns the shards that a command is for.
func chosenShards(cmd *cobra.Command, cfg config.Config) (chosen []int, err error) {
	n, given := -1, false
	if f := cmd.Flags().Lookup(shardFlag); f != nil && f.Changed {
		if n, err = strconv.Atoi(f.Value.String()); err != nil {
			return nil, usage(cmd, fmt.Sprintf("--shard %q: want the number of a shard, counted from 0", f.Value))
		}
		given = true
	}
	switch {
	case given && cfg.Shards.Count <= 1:
		return nil, usage(cmd, "--shard is for several shards, and there is one: set WEFT_SHARDS to as many as weft shards create has made")
	case cfg.Shards.Count <= 1:
		return nil, nil
	case belongs(cmd, notOfShards):
		return nil, &exitError{exitConfig, "outboxes of the application are not dealt out to shards: unset WEFT_SHARDS for this command, and give a database URL with the search_path of another schema"}
	case given && (n < 0 || n >= cfg.Shards.Count):
		return nil, usage(cmd, fmt.Sprintf("--shard %d: want 0 to %d", n, cfg.Shards.Count-1))
	case given:
		return []int{n}, nil
	case belongs(cmd, ofOneShard):
		return nil, usage(cmd, "name the shard with --shard; in SQL, weft_shard_of(id) returns that of an entity")
	}
	for n := range cfg.Shards.Count {
		chosen = append(chosen, n)
	}
	return chosen, nil
}
