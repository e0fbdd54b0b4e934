package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/migrations"
)

func (a *app) migrateGrant() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grant ROLE",
		Short: "Let a role run weft, with the rights that it needs and no others",
		Long: `Grant a role what ` + "`weft run`" + ` needs: to read the source tables, to change an event's state
but not the event, and to write weft's own tables. Run it as the owner of the tables,
after each ` + "`weft migrate up`" + `; it may be repeated. The role must exist.`,
		Example: "  weft migrate grant weft",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usage(cmd, "want the name of one role")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.migrate(cmd, func(ctx context.Context, url string) error {
				err := migrations.Grant(ctx, url, args[0])
				if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42704" {
					return &exitError{exitBad, pg.Message + ": create it first; deploy/postgres/roles.sql shows how"}
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(a.stdout, "granted to "+args[0])
				return err
			})
		},
	}
	databaseFlags(cmd)
	return cmd
}
