package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/migrations"
)

// doctorIndex is the JSON form of a finding. Names and units stay; fields may be added.
type doctorIndex struct {
	Table      string `json:"table"`
	Index      string `json:"index"`
	Definition string `json:"definition"`
	Constraint bool   `json:"constraint"`
	Bytes      int64  `json:"bytes"`
	Scans      int64  `json:"scans"`
	Remedy     string `json:"remedy"` // empty for a constraint
}

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Name what in the database costs weft throughput",
		Long: `Name the indexes on the outbox tables that are neither weft's nor the primary key.
PostgreSQL writes into each of them with every claim and every settle. Those that are
never read can go; the counts of reads begin anew when the server's statistics do, and
are those of this server alone. Nothing is changed.`,
		Example: `  weft doctor
  weft doctor --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), cfg.Database.Timeout)
			defer cancel()
			conn, err := postgres.Connect(ctx, cfg.Database.URL.Reveal(), postgres.Options{AppName: "weft/doctor", Statement: cfg.Database.Timeout})
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(ctx) }()
			found, err := migrations.FindCostly(ctx, conn)
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(doctorIndexes(found))
			}
			return writeDoctor(a.stdout, found)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	config.AddFlags(cmd.Flags(), "database.url", "database.password", "database.timeout")
	return cmd
}

func doctorIndexes(found []migrations.CostlyIndex) []doctorIndex {
	out := make([]doctorIndex, len(found))
	for i, c := range found {
		out[i] = doctorIndex{c.Table, c.Name, c.Definition, c.Constraint, c.Bytes, c.Scans, ""}
		if !c.Constraint {
			out[i].Remedy = c.Drop()
		}
	}
	return out
}

func writeDoctor(w io.Writer, found []migrations.CostlyIndex) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(w, "nothing: the outbox tables have no index but the primary key and weft's own")
		return err
	}
	fmt.Fprintf(w, "Indexes that are not weft's: %d. Every claim and every settle writes into each of them.\n\n", len(found))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TABLE\tINDEX\tON\tKB\tREADS")
	for _, c := range found {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\n", c.Table, c.Name, c.On(), c.Bytes/1024, c.Scans)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	unread := slices.DeleteFunc(slices.Clone(found), func(c migrations.CostlyIndex) bool { return c.Scans > 0 || c.Constraint })
	if len(unread) == 0 {
		_, err := fmt.Fprintln(w, "\nEach of them is read, or holds a constraint.")
		return err
	}
	fmt.Fprintln(w, "\nThose that your application never reads can go:")
	for _, c := range unread {
		fmt.Fprintln(w, "  "+c.Drop())
	}
	return nil
}
