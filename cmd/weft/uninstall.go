package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/migrations"
)

// uninstalled is the JSON form of weft uninstall. Names and units stay; fields may be added.
type uninstalled struct {
	migrations.UninstallPlan
	Elsewhere []string `json:"stays_elsewhere"` // what weft does not remove outside of the database
	Done      bool     `json:"done"`            // false: it is only the plan
}

func (a *app) uninstallCommand() *cobra.Command {
	var dropData, yes bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove weft from the database, and say what stays behind",
		Long: `Remove all that is weft's own from the schema: its tables, views and functions, its columns
and indexes on the outbox tables of the application, and the triggers that weft outbox create
made. Audit, terms, progress and leases go with them. Prints what goes and what stays; changes
nothing without --yes.

The outbox tables and their histories stay with their rows, unless --drop-data: then they go,
even those that the application writes into. The other tables of the application always stay.
weft migrate up installs it anew, and takes up the events of search_outbox_events and
chronicle_outbox_events again; an outbox that weft made has to be dropped before it is made
anew under its name. Of a shard the columns stay, which all shards share, and --drop-data is
refused.

Run it as the owner of the tables. It refuses while an instance is there; one that was killed
is gone ten seconds later.`,
		Example: `  weft uninstall
  weft uninstall --yes
  weft uninstall --drop-data --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.migrate(cmd, func(ctx context.Context, url string) error {
				plan, err := migrations.Uninstall(ctx, url, dropData, yes, a.progress())
				if err != nil {
					return err
				}
				out := uninstalled{UninstallPlan: *plan, Done: yes && len(plan.Goes) > 0, Elsewhere: []string{
					"the indices and aliases in Elasticsearch",
					"the roles of Postgres, and their rights on the tables that stay",
					"configuration files, systemd units and packages on the hosts",
				}}
				return a.show(out, out.write)
			})
		},
	}
	cmd.Flags().BoolVar(&dropData, "drop-data", false, "drop the outbox tables and their histories, too")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	a.jsonFlags(cmd, "env")
	return cmd
}

func (u uninstalled) write(w io.Writer) error {
	if len(u.Goes) == 0 {
		_, err := fmt.Fprintln(w, "nothing to do: weft is not in this schema")
		return err
	}
	t := newTable(w)
	list := func(head string, items []migrations.UninstallItem) {
		t.row(head)
		for _, i := range items {
			cells := []any{"  " + i.Kind, records.Plain(i.Name), i.Note}
			if i.Note == "" { // else the names are filled up with spaces
				cells = cells[:2]
			}
			t.row(cells...)
		}
	}
	if u.Done {
		list("removed", u.Goes)
	} else {
		list("goes", u.Goes)
	}
	list("stays", u.Stays)
	for _, text := range u.Elsewhere {
		t.row("  elsewhere", text)
	}
	if !u.Done {
		t.row("Nothing was changed: give --yes to do it.")
	}
	return t.Flush()
}
