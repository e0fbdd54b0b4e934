package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/migrations"
)

func (a *app) migrateGrant() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grant ROLE",
		Short: "Let a role run weft, with the rights that it needs and no others",
		Long: `Grant a role what ` + "`weft run`" + ` needs: to read the source tables, to change an event's state
but not the event, and to write weft's own tables. Run it as the owner of the tables,
after each ` + "`weft migrate up`" + `; it may be repeated. The role must exist.

What becomes of finished events takes rights of its own, so give it the settings that the
instances have: with outbox.finished archive the role may also delete events, write the
history and make its days; with delete, delete events; with outbox.retention, delete events
and drop days of the history that are over. It takes no right away: to go back to fewer,
revoke them.`,
		Example: `  weft migrate grant weft
  weft migrate grant weft --finished archive --retention 30d`,
		Args: one("the name of one role"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			return a.migrate(cmd, func(ctx context.Context, url string) error {
				err := migrations.Grant(ctx, url, args[0], modes(cfg)...)
				if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42704" {
					return &exitError{exitBad, pg.Message + ": create it first; deploy/postgres/roles.sql shows how"}
				}
				if err != nil {
					return err
				}
				owners, err := migrations.GrantSources(ctx, url, args[0])
				if err != nil {
					return err
				}
				for _, statement := range owners {
					fmt.Fprintln(a.stderr, "weft: warning: this is its owner's to grant: "+statement)
				}
				_, err = fmt.Fprintln(a.stdout, "granted to "+args[0])
				return err
			})
		},
	}
	databaseFlags(cmd, "env", "projections", "outbox.finished", "outbox.retention", "verify.repair")
	return cmd
}

// modes are what the instances of a configuration do with finished events.
func modes(cfg config.Config) []migrations.Mode {
	var out []migrations.Mode
	for _, name := range cfg.Projections {
		out = append(out, migrations.Mode{
			Table: cfg.Registry().Table(name), Finished: cfg.Outbox.FinishedOf(name), Retention: cfg.Outbox.Retention > 0,
			Repair: cfg.Verify.Repairs(),
		})
	}
	return out
}
