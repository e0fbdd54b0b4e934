package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
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
	// ForOlderBuilds marks weft's own that only builds before leases read.
	ForOlderBuilds bool `json:"for_older_builds"`
}

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Name what in the database costs weft throughput",
		Long: `Name the indexes on the outbox tables that are neither the primary key nor read by this
build. PostgreSQL writes into each of them with every settle. Those of the application that
are never read can go; the counts of reads begin anew when the server's statistics do, and
are those of this server alone. Those of weft that only builds before leases read can go
once no such build runs, and none is to come back. Nothing is changed.`,
		Example: `  weft doctor
  weft doctor --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				ctx, cancel := context.WithTimeout(ctx, cfg.Database.Timeout)
				defer cancel()
				found, err := migrations.FindCostly(ctx, pool)
				if err != nil {
					return err
				}
				return a.show(asJSON, doctorIndexes(found), func(w io.Writer) error { return writeDoctor(w, found) })
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	databaseFlags(cmd)
	return cmd
}

func doctorIndexes(found []migrations.CostlyIndex) []doctorIndex {
	out := make([]doctorIndex, len(found))
	for i, c := range found {
		out[i] = doctorIndex{c.Table, c.Name, c.Definition, c.Constraint, c.Bytes, c.Scans, "", c.Older}
		if !c.Constraint {
			out[i].Remedy = c.Drop()
		}
	}
	return out
}

func writeDoctor(w io.Writer, found []migrations.CostlyIndex) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(w, "no index to drop: the outbox tables have their primary key and the indexes that weft reads")
		return err
	}
	fmt.Fprintf(w, "Indexes that weft does not read: %d. Every settle writes into each of them.\n\n", len(found))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TABLE\tINDEX\tON\tKB\tREADS")
	for _, c := range found {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\n", c.Table, c.Name, c.On(), c.Bytes/1024, c.Scans)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var unread, older []migrations.CostlyIndex
	others := 0
	for _, c := range found {
		switch {
		case c.Older:
			older = append(older, c)
		case c.Scans == 0 && !c.Constraint:
			unread = append(unread, c)
		default:
			others++
		}
	}
	if others > 0 && len(unread) == 0 {
		fmt.Fprintln(w, "\nEach of the application's is read, or holds a constraint.")
	}
	writeDrops(w, "Your application never reads these; they can go:", unread)
	writeDrops(w, "weft's own, only for builds before leases; drop them once no such build runs (weft status lists the versions):", older)
	return nil
}

func writeDrops(w io.Writer, what string, drop []migrations.CostlyIndex) {
	if len(drop) == 0 {
		return
	}
	fmt.Fprintln(w, "\n"+what)
	for _, c := range drop {
		fmt.Fprintln(w, "  "+c.Drop())
	}
}
