package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/doctor"
	"github.com/samuelhu324-dev/weft/internal/records"
)

// doctorFinding is the JSON form of a finding. Names and units stay; fields may be added.
type doctorFinding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"` // error, warning, note
	On       string `json:"on"`
	Finding  string `json:"finding"`
	// Of an index that weft does not read.
	Table      string `json:"table"`
	Index      string `json:"index"`
	Definition string `json:"definition"`
	Constraint bool   `json:"constraint"`
	Bytes      int64  `json:"bytes"`
	Scans      int64  `json:"scans"`
	Remedy     string `json:"remedy"` // empty when there is none
	// ForOlderBuilds marks weft's own that only builds before leases read.
	ForOlderBuilds bool `json:"for_older_builds"`
}

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with configuration, servers and tables, and name the fix",
		Long: `Examine the configuration, PostgreSQL, the outbox tables and Elasticsearch, with the role
and the credentials of the configuration, and name what is wrong: how bad it is, what it is
about, and the statement, request or command that fixes it. Nothing is changed.

    error    weft does not work, or will stop soon
    warning  it works, and is slow or unsafe, or will be
    note     good to know, such as an index that costs throughput

PostgreSQL writes each settle into every index of the table, also into those that weft does not
read. Drop an index of the application that nobody reads; the counts of reads are those of this
server, since its statistics began. Drop an index that only builds before leases read once no such
build runs and none is to come back.

docs/operations.md has the list of all checks. Exits 1 when there is an error or a warning.`,
		Example: `  weft doctor
  weft doctor --json | jq '.[] | select(.severity == "error")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.connected(cmd, doctorConnections, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				target, err := daemon.ElasticConfig(cfg.Elastic)
				if err != nil {
					return err
				}
				found, err := doctor.Examine(ctx, doctor.Options{Config: cfg, Pool: pool, Modes: modes(cfg), Elastic: target})
				if err != nil {
					return err
				}
				if err := a.show(doctorFindings(found), func(w io.Writer) error { return writeDoctor(w, found) }); err != nil {
					return err
				}
				return diagnosis(found)
			})
		},
	}
	a.jsonFlags(cmd, "projections", "outbox.finished", "outbox.retention", "verify.repair", "elastic.url", "elastic.timeout")
	return cmd
}

// doctorConnections are for a check that holds one and asks with another.
const doctorConnections = 2

func doctorFindings(found []doctor.Finding) []doctorFinding {
	out := make([]doctorFinding, len(found))
	for i, f := range found {
		out[i] = doctorFinding{Check: f.Check, Severity: string(f.Severity), On: f.On, Finding: f.Text, Remedy: f.Remedy}
		if c := f.Index; c != nil {
			out[i].Table, out[i].Index, out[i].Definition, out[i].Constraint = c.Table, c.Name, c.Definition, c.Constraint
			out[i].Bytes, out[i].Scans, out[i].ForOlderBuilds = c.Bytes, c.Scans, c.Older
		}
	}
	return out
}

// countFindings returns how many there are of each severity.
func countFindings(found []doctor.Finding) map[doctor.Severity]int {
	n := map[doctor.Severity]int{}
	for _, f := range found {
		n[f.Severity]++
	}
	return n
}

// diagnosis is nil unless something is wrong.
func diagnosis(found []doctor.Finding) error {
	if n := countFindings(found); n[doctor.Error]+n[doctor.Warning] > 0 {
		return &exitError{exitBad, fmt.Sprintf("errors: %d, warnings: %d", n[doctor.Error], n[doctor.Warning])}
	}
	return nil
}

func writeDoctor(w io.Writer, found []doctor.Finding) error {
	for _, f := range found {
		head := strings.TrimRight(fmt.Sprintf("%-8s %s  %s", f.Severity, f.Check, records.Plain(f.On)), " ")
		if _, err := fmt.Fprintf(w, "%s\n         %s\n", head, records.Plain(f.Text)); err != nil {
			return err
		}
		if f.Remedy != "" {
			fmt.Fprintf(w, "         fix: %s\n", records.Plain(f.Remedy))
		}
	}
	n := countFindings(found)
	_, err := fmt.Fprintf(w, "errors: %d, warnings: %d, notes: %d\n", n[doctor.Error], n[doctor.Warning], n[doctor.Note])
	return err
}
