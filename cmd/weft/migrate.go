package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/migrations"
)

// preflightTimeout bounds the look at the server before a migration.
const preflightTimeout = 15 * time.Second

func (a *app) migrateCommand() *cobra.Command {
	return groupOf(&cobra.Command{
		Use:   "migrate",
		Short: "Bring the database to the schema of this build",
		Long: `Create the tables that weft needs, or adopt the ones of a running Wordloom deployment:
rows stay, no table is rewritten, and writers keep writing.`,
		Example: `  weft migrate up
  weft migrate status
  weft migrate grant weft
  weft migrate down --all`,
	}, a.migrateUp(), a.migrateStatus(), a.migrateGrant(), a.migrateDown())
}

func (a *app) migrateUp() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Apply every pending migration",
		Long: `Apply every pending migration. On a schema that is up to date it checks whether the columns
of the outbox tables have changed since, and updates what depends on them: the views
TABLE_live and weft_inflight, and the history tables. A schema that a newer build has made
stays as it is: this build works on it, and the newer one maintains it.

The views pin the columns that they show: PostgreSQL refuses to drop a column of an outbox
table, or to change its type, while they are there. Drop them, change the table, and run
this command again; instances do without them meanwhile.`,
		Example: "  weft migrate up",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.migrate(cmd, func(ctx context.Context, url string) error {
				done, err := migrations.Up(ctx, url, a.progress(), migrations.WithWait(wait))
				a.steps("applied", done)
				if err == nil && len(done) == 0 {
					err = a.nothingToApply(ctx, url)
				}
				return err
			})
		},
	}
	lockWait(cmd, &wait)
	databaseFlags(cmd, "env")
	return cmd
}

// nothingToApply says whether the schema is that of this build, or newer.
func (a *app) nothingToApply(ctx context.Context, url string) error {
	list, err := migrations.Status(ctx, url)
	if err != nil {
		return err
	}
	what := "the schema is up to date"
	if newest := list[len(list)-1].Version; newest > migrations.Latest {
		what = (&migrations.AheadError{Have: newest, Knows: migrations.Latest}).Error()
	}
	fmt.Fprintln(a.stdout, "nothing to do: "+what)
	return nil
}

func (a *app) migrateDown() *cobra.Command {
	var all, force bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take back the newest migration",
		Long: `Take back the newest migration, or all of them. The tables, columns and rows of the
application stay; only what is weft's own goes.`,
		Example: `  weft migrate down
  weft migrate down --all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.migrate(cmd, func(ctx context.Context, url string) error {
				opts := []migrations.Option{a.progress()}
				if all {
					opts = append(opts, migrations.ToZero())
				}
				if force {
					opts = append(opts, migrations.Force())
				}
				done, err := migrations.Down(ctx, url, opts...)
				a.steps("taken back", done)
				if err == nil && len(done) == 0 {
					fmt.Fprintln(a.stdout, "nothing to do: no migration is applied")
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "take back all migrations")
	cmd.Flags().BoolVar(&force, "force", false, "go ahead although an instance leads")
	databaseFlags(cmd, "env")
	return cmd
}

// migrate runs f on each shard in turn, after a look at the server that gives the plain errors:
// away, wrong password, read-only, another environment, another number of shards.
func (a *app) migrate(cmd *cobra.Command, f func(ctx context.Context, url string) error) error {
	return a.eachShard(cmd, func(cfg config.Config) error { return migrateOn(cmd, cfg, f) })
}

func migrateOn(cmd *cobra.Command, cfg config.Config, f func(ctx context.Context, url string) error) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	url, err := postgres.Normalize(cfg.Database.URL.Reveal())
	if err != nil {
		return err
	}
	if err = preflight(ctx, cfg); err == nil {
		err = f(ctx, url)
	}
	return postgres.In(url, unlessInterrupted(ctx, err))
}

func preflight(ctx context.Context, cfg config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	conn, err := postgres.Connect(ctx, cfg.Database.URL.Reveal(), postgres.Options{AppName: "weft/migrate", Statement: cfg.Database.Timeout})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := postgres.CheckWritable(ctx, conn); err != nil {
		return err
	}
	if err := postgres.CheckEnvironment(ctx, conn, cfg.Env); err != nil {
		return err
	}
	if cfg.Shards.Count > 1 { // they are about to be made
		return nil
	}
	return migrations.CheckShards(ctx, conn, cfg.Shards.Of)
}

func (a *app) progress() migrations.Option {
	return migrations.WithProgress(func(p migrations.Progress) { fmt.Fprintln(a.stderr, p) })
}

func (a *app) steps(verb string, done []migrations.Step) {
	for _, s := range done {
		fmt.Fprintf(a.stdout, "%s %d %s (%s)\n", verb, s.Version, s.Name, s.Duration.Round(time.Millisecond))
	}
}

type migrationState struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	State     string     `json:"state"` // applied, pending
	AppliedAt *time.Time `json:"applied_at"`
}

func (a *app) migrateStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "List migrations; exit 1 when some are pending",
		Example: "  weft migrate status --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.connected(cmd, 1, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				url, err := postgres.Normalize(cfg.Database.URL.Reveal())
				if err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
				defer cancel()
				if err := migrations.CheckShards(ctx, pool, cfg.Shards.Of); err != nil {
					return err
				}
				list, err := migrations.Status(ctx, url)
				if err != nil {
					return err
				}
				return a.showMigrations(list)
			})
		},
	}
	a.jsonFlags(cmd, "env")
	return cmd
}

func (a *app) showMigrations(list []migrations.State) error {
	pending, rows := 0, []migrationState{}
	for _, m := range list {
		r := migrationState{Version: m.Version, Name: m.Name, State: "applied"}
		if m.Pending {
			pending++
			r.State = "pending"
		} else if !m.AppliedAt.IsZero() {
			r.AppliedAt = records.UTC(&m.AppliedAt)
		}
		rows = append(rows, r)
	}
	err := a.show(rows, func(w io.Writer) error {
		t := newTable(w, "VERSION", "STATE", "APPLIED AT", "NAME")
		for _, r := range rows {
			t.row(r.Version, r.State, records.Clock(r.AppliedAt), r.Name)
		}
		return t.Flush()
	})
	if err == nil && pending > 0 {
		err = &exitError{exitBad, fmt.Sprintf("%d pending: run `weft migrate up`", pending)}
	}
	return err
}
