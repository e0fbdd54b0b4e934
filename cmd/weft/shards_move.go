package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/shards"
	"github.com/samuelhu324-dev/weft/internal/shards/move"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
)

// movedShard is the JSON form of weft shards move. Names and units stay; fields may be added.
type movedShard struct {
	Shard  int          `json:"shard"`
	Schema string       `json:"schema"`
	Group  string       `json:"group"`
	State  string       `json:"state"` // planned, moved, opened, or there when there was nothing to do
	From   movedServer  `json:"from"`
	To     movedServer  `json:"to"`
	Tables []movedTable `json:"tables"`
	Rows   int64        `json:"rows"` // about, while it is planned
	Bytes  int64        `json:"bytes"`
	Epoch  int64        `json:"epoch"` // the terms of the target come after it
	Copied float64      `json:"copy_seconds"`
	Waited float64      `json:"wait_seconds"` // of the writes of the shard
}

type movedServer struct {
	Server  string `json:"server"`
	Version string `json:"version"` // of PostgreSQL
}

type movedTable struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"` // with indexes, where it is now
}

type moveFlags struct {
	to, toFile, by, why string
	wait                time.Duration
	dryRun              bool
}

const longShardsMove = `Move shard N to another PostgreSQL server, or to another database: all rows of its schema, its
outboxes and its history, and what weft knows of it. What is missing there is made first: the
schemas of all shards, and the tables that deal rows out, under the same names. In each database
the tables of a shard that is elsewhere are empty and refuse writes (SQLSTATE WF005); the error
says which shard it is, and the address to write to.

It checks both servers, prints what it will do, and changes nothing with --dry-run. The leader of
the shard hands over, and nobody leads it until the end. Then writes of the shard wait: its rows
are copied, counted and compared, the copy is committed, the source is emptied and says where the
shard is, and the target opens. Other shards go on. At no time can two databases be written.
Interrupted, it is finished by the same command: a copy that the source has not let go of is made
anew. Exits 75 when a lock could not be had within --wait; nothing has moved then.

Run it as the owner of the schemas on both servers. Then set WEFT_SHARD_SERVERS for every command
and instance, restart one instance after the other, and grant on the target what the roles of the
instances and of the application have: the output says how.`

func (a *app) shardsMove() *cobra.Command {
	var f moveFlags
	cmd := &cobra.Command{
		Use:   "move N --to URL",
		Short: "Move a shard to another PostgreSQL server",
		Long:  longShardsMove,
		Example: `  weft shards move 3 --to postgres://owner@db2/shop --dry-run
  weft shards move 3 --to-file /etc/weft/db2.url --by alice --why "db1 is full"`,
		Args: one("the number of the shard, counted from 0"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.by = cmp.Or(f.by, person())
			f.why = cmp.Or(f.why, cmd.CommandPath()+" "+args[0])
			cfg, o, err := a.moveOptions(cmd, args[0], f)
			if err != nil {
				return err
			}
			return a.moveShard(cmd, cfg, o, f)
		},
	}
	cmd.Flags().StringVar(&f.to, "to", "", "`URL` of the database that the shard goes to (or --to-file)")
	cmd.Flags().StringVar(&f.toFile, "to-file", "", "`file` that holds that URL")
	cmd.Flags().StringVar(&f.by, "by", "", "who moves it (default user@host)")
	cmd.Flags().StringVar(&f.why, "why", "", "the reason (default the command)")
	durationFlag(cmd, &f.wait, "wait", 5*time.Minute, 0, "longest wait for a lock that another session holds, and for the leader to hand over")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "check everything, print the plan, and change nothing")
	cmd.Flags().BoolVar(&a.asJSON, "json", false, "print JSON")
	config.AddFlags(cmd.Flags(), "database.url", "database.password", "database.timeout", "group", "shards.count", "shards.prefix", "shards.servers", "env")
	return cmd
}

// target returns the address that --to or --to-file gives.
func (f moveFlags) target(cmd *cobra.Command) (config.URL, error) {
	text := f.to
	switch {
	case (f.to == "") == (f.toFile == ""):
		return "", usage(cmd, "want --to or --to-file, the database that the shard goes to")
	case f.toFile != "":
		var err error
		if text, err = config.ReadSecret(f.toFile); err != nil {
			return "", usage(cmd, fmt.Sprintf("--to-file %s: %v", f.toFile, err))
		}
	}
	if _, err := postgres.ParseURL(text); err != nil {
		return "", usage(cmd, fmt.Sprintf("--to %q: %v", config.URL(text), err))
	}
	return config.URL(text), nil
}

func (a *app) moveOptions(cmd *cobra.Command, number string, f moveFlags) (cfg config.Config, o move.Options, err error) {
	if cfg, err = a.load(cmd); err != nil {
		return cfg, o, err
	}
	n, err := strconv.Atoi(number)
	switch {
	case cfg.Shards.Count <= 1:
		return cfg, o, oneShard(cmd)
	case err != nil || n < 0 || n >= cfg.Shards.Count:
		return cfg, o, usage(cmd, fmt.Sprintf("%q: want the number of a shard, 0 to %d", number, cfg.Shards.Count-1))
	}
	if err := (leader.Resignation{By: f.by, Why: f.why}).Validate(); err != nil {
		return cfg, o, usage(cmd, err.Error())
	}
	to, err := f.target(cmd)
	if err != nil {
		return cfg, o, err
	}
	dealt, err := dealtSchema(cmd.Context(), cfg)
	if err != nil {
		return cfg, o, err
	}
	there := cfg.WithServer(n, to)
	o = move.Options{Shard: n, Schema: shards.Schema(cfg, n), Group: shards.Group(cfg, n), Dealt: dealt, Env: cfg.Env, Wait: f.wait, By: f.by, Why: f.why}
	if o.From, err = place(cfg, shards.Server(cfg, n), dealt, n, o); err != nil {
		return cfg, o, err
	}
	o.To, err = place(cfg, shards.Server(there, n), dealt, n, o)
	return there, o, err
}

// dealtSchema returns the schema of the tables that deal out: all servers have it under this name.
func dealtSchema(ctx context.Context, cfg config.Config) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	conn, err := postgres.Connect(ctx, cfg.Database.URL.Reveal(), postgres.Options{AppName: "weft/shards", Statement: cfg.Database.Timeout})
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var schema *string
	if err := conn.QueryRow(ctx, "select current_schema()").Scan(&schema); err != nil {
		return "", fmt.Errorf("schema of the tables that deal out: %w", err)
	}
	if schema == nil {
		return "", &exitError{exitConfig, "the search_path of DATABASE_URL names no schema that exists: it is that of the tables which deal rows out"}
	}
	return *schema, nil
}

// place describes the database at url, where all shards are away when it is made.
func place(cfg config.Config, url config.URL, dealt string, n int, o move.Options) (p move.Place, err error) {
	if p.Dealt, err = postgres.InSchema(url.Reveal(), quoted(dealt)); err != nil {
		return p, err
	}
	p.Spec = migrations.ShardsSpec{By: o.By, Why: o.Why}
	for i := range cfg.Shards.Count {
		home, err := postgres.ParseURL(shards.Server(cfg, i).Reveal())
		if err != nil {
			return p, err
		}
		s := migrations.Shard{Schema: shards.Schema(cfg, i), Away: postgres.Address(&home.ConnConfig.Config)}
		if s.URL, err = postgres.InSchema(url.Reveal(), s.Schema); err != nil {
			return p, err
		}
		p.Spec.Shards = append(p.Spec.Shards, s)
	}
	p.URL = p.Spec.Shards[n].URL
	return p, nil
}

// quoted is a name as search_path has it.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func (a *app) moveShard(cmd *cobra.Command, there config.Config, o move.Options, f moveFlags) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	plan, err := move.Check(ctx, o)
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	row := movedShard{Shard: o.Shard, Schema: o.Schema, Group: o.Group, State: "planned",
		From: movedServer{plan.From.Address, plan.From.Version}, To: movedServer{plan.To.Address, plan.To.Version}}
	row.fill(plan.Tables)
	if !a.asJSON {
		if err := writePlan(a.stdout, o, plan); err != nil {
			return err
		}
	}
	if f.dryRun || plan.Done {
		if plan.Done {
			row.State = "there"
		}
		return a.showMoved(row, there, o)
	}
	m := newMeter(a.stderr, fmt.Sprintf("shard %d", o.Shard))
	o.Progress = func(p move.Progress) {
		if p.Of == 0 {
			m.note(p.What)
			return
		}
		m.show(p.Bytes, max(p.Of, p.Bytes+1), p.What, "%s, table %d of %d, %s of about %s", p.What, p.Table, p.Last, megabytes(p.Bytes), megabytes(p.Of))
	}
	result, err := move.Run(ctx, o, plan)
	m.close()
	if err != nil {
		return moveFailed(ctx, err)
	}
	row.State = "moved"
	if plan.Open {
		row.State = "opened"
	}
	row.fill(result.Tables)
	row.Epoch, row.Copied, row.Waited, row.Bytes = result.Epoch, result.Copied.Seconds(), result.Waited.Seconds(), result.Bytes
	return a.showMoved(row, there, o)
}

// moveFailed says how a move ended that did not.
func moveFailed(ctx context.Context, err error) error {
	var lock *move.LockError
	switch {
	case errors.Is(err, move.ErrUnknown), errors.Is(err, move.ErrClosed):
		return &exitError{exitInconclusive, err.Error()}
	case errors.As(err, &lock):
		return &exitError{exitTryAgain, err.Error()}
	case errors.Is(err, move.ErrSilent):
		return &exitError{exitTryAgain, err.Error() + "; nothing has moved"}
	case ctx.Err() != nil:
		return &exitError{exitTryAgain, "interrupted, and nothing has moved; repeat the command"}
	case errors.As(err, new(*migrations.OutboxError)): // it has a remedy of its own
		return err
	}
	code, lines := explain(err)
	return &exitError{code, lines[0] + "; nothing has moved"}
}

func (r *movedShard) fill(tables []move.Table) {
	r.Tables, r.Rows, r.Bytes = []movedTable{}, 0, 0
	for _, t := range tables {
		r.Tables = append(r.Tables, movedTable{t.Name, t.Rows, t.Bytes})
		r.Rows += t.Rows
		r.Bytes += t.Bytes
	}
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

func writePlan(w io.Writer, o move.Options, p *move.Plan) error {
	fmt.Fprintf(w, "shard %d: schema %s, group %s\n", o.Shard, o.Schema, o.Group)
	fmt.Fprintf(w, "from %s, PostgreSQL %s\nto   %s, PostgreSQL %s\n", p.From.Address, p.From.Version, p.To.Address, p.To.Version)
	switch {
	case p.Done:
		_, err := fmt.Fprintf(w, "nothing to do: it is there since %s\n", p.Since.UTC().Format(time.RFC3339))
		return err
	case p.Open:
		_, err := fmt.Fprintf(w, "it has left at %s, and all of it is there: what is left is to open it\n", p.Since.UTC().Format(time.RFC3339))
		return err
	case p.Structure:
		fmt.Fprintf(w, "the %d schemas and the tables that deal out are made there first\n", len(o.To.Spec.Shards))
	case p.Again:
		fmt.Fprintln(w, "an interrupted move has left a copy there: it is made anew")
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "ABOUT ROWS\tSIZE\t  TABLE")
	for _, t := range p.Tables {
		fmt.Fprintf(tw, "%d\t%s\t  %s\n", t.Rows, megabytes(t.Bytes), t.Name)
	}
	return tw.Flush()
}

func (a *app) showMoved(row movedShard, there config.Config, o move.Options) error {
	if a.asJSON {
		return a.json(row)
	}
	w := a.stdout
	switch row.State {
	case "planned":
		_, err := fmt.Fprintln(w, "nothing was changed")
		return err
	case "moved":
		fmt.Fprintf(w, "moved shard %d to %s: %s, %s; its writes waited %.1f s\n", row.Shard, row.To.Server, records.Counted(row.Rows, "1 row", "%d rows"), megabytes(row.Bytes), row.Waited)
	case "opened":
		fmt.Fprintf(w, "opened shard %d in %s\n", row.Shard, row.To.Server)
	}
	servers := there.Shards.Servers
	fmt.Fprintf(w, "next:\n  1. in %s, grant the application what it has on the tables of schema %s\n", row.To.Server, o.Dealt)
	fmt.Fprintf(w, "  2. set WEFT_SHARD_SERVERS='%s' for every command and instance\n     (with its passwords; a shard that is on DATABASE_URL again needs no entry)\n", servers)
	_, err := fmt.Fprintf(w, "  3. weft migrate grant ROLE --shard %d, for the role of the instances\n  4. restart one instance after the other\n", row.Shard)
	return err
}
