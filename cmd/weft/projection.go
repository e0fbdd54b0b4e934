package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/projections"
)

func (a *app) projectionCommand() *cobra.Command {
	return groupOf(&cobra.Command{
		Use:   "projection",
		Short: "Check the projections of the configuration file, and show their documents",
		Long: `Look at the projections that the configuration file declares, before an instance runs them.
Nothing is written.`,
		Example: `  weft projection list
  weft projection check
  weft projection render products --id 17`,
	}, a.projectionList(), a.projectionCheck(), a.projectionRender())
}

// listedProjection is what weft projection list says of one.
type listedProjection struct {
	Name        string `json:"name"`
	Table       string `json:"table"`
	Index       string `json:"index"`                 // empty for a built-in one
	Destination string `json:"destination,omitempty"` // a table instead of an index
	Declared    bool   `json:"declared"`
	Runs        bool   `json:"runs"`
}

func (a *app) projectionList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the projections",
		Long:    `List the built-in projections and those of the configuration file, and which of them run.`,
		Example: "  weft projection list\n  weft projection list --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			var out []listedProjection
			for _, name := range cfg.Registry().Names() {
				p := listedProjection{Name: name, Table: cfg.Registry().Table(name), Runs: slices.Contains(cfg.Projections, name)}
				for _, d := range cfg.Declared {
					if d.Name == name {
						p.Declared, p.Index, p.Destination = true, d.Index, d.Destination
					}
				}
				out = append(out, p)
			}
			return a.show(out, func(w io.Writer) error {
				t := newTable(w, "PROJECTION", "OUTBOX TABLE", "INDEX OR TABLE", "DECLARED", "RUNS")
				for _, p := range out {
					t.row(p.Name, p.Table, records.Dash(cmp.Or(p.Index, p.Destination)), p.Declared, p.Runs)
				}
				return t.Flush()
			})
		},
	}
	a.jsonFlags(cmd, "projections")
	return cmd
}

// checkedProjection is what weft projection check says of one.
type checkedProjection struct {
	Projection string                `json:"projection"`
	Findings   []projections.Finding `json:"findings"`
}

func (a *app) projectionCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [PROJECTION]...",
		Short: "Try declared projections before an instance runs them",
		Long: `Try all projections of the configuration file, or the named ones: the outbox table with its
indexes, rights and triggers, the query with its columns, the tables of its plan for a full
batch and whether their changes write events, documents of 200 entities read twice by
different plans, the fields and values beside the mapping, and what Elasticsearch says of
mapping and settings. Nothing is written. Each instance does the same after its start, looks
at the outbox and its triggers again each hour, and logs what it finds (projection.finding).

Exits 0 when nothing stands in the way, and 1 when something does. Warnings change nothing.`,
		Example: `  weft projection check
  weft projection check products --json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				deps, names, err := declaredDeps(cmd, cfg, pool, names)
				if err != nil {
					return err
				}
				var out []checkedProjection
				bad := 0
				for _, name := range names {
					found, err := cfg.Registry().Check(ctx, name, deps)
					if err != nil {
						return fmt.Errorf("check projection %s: %w", name, err)
					}
					out = append(out, checkedProjection{name, append([]projections.Finding{}, found...)})
					for _, f := range found {
						if !f.Warning {
							bad++
						}
					}
				}
				if err := a.show(out, func(w io.Writer) error { return writeFindings(w, cfg, out) }); err != nil {
					return err
				}
				if bad > 0 {
					return &exitError{exitBad, fmt.Sprintf("errors: %d; each stands in the way of the projection", bad)}
				}
				return nil
			})
		},
	}
	a.jsonFlags(cmd, "elastic.url", "elastic.timeout")
	return cmd
}

// declaredDeps returns what declared projections are built from, and the names of those
// that are meant: all of them when none is named.
func declaredDeps(cmd *cobra.Command, cfg config.Config, pool *pgxpool.Pool, names []string) (projections.Deps, []string, error) {
	var all []string
	for _, d := range cfg.Declared {
		all = append(all, d.Name)
	}
	if len(names) == 0 {
		names = all
	}
	if len(names) == 0 {
		return projections.Deps{}, nil, usage(cmd, "the configuration declares no projection; name its file with --config")
	}
	all = append(all, projections.SearchIndexToElastic) // when it is named
	for _, name := range names {
		if err := known(cmd, "declared projection", name, all); err != nil {
			return projections.Deps{}, nil, err
		}
	}
	target, err := daemon.ElasticConfig(cfg.Elastic)
	return projections.Deps{Pool: pool, Elastic: target}, names, err
}

func writeFindings(w io.Writer, cfg config.Config, checked []checkedProjection) error {
	for _, c := range checked {
		if len(c.Findings) == 0 {
			fmt.Fprintf(w, "%s: nothing stands in the way\n", c.Projection)
			continue
		}
		fmt.Fprintf(w, "%s:\n", c.Projection)
		for _, f := range c.Findings {
			kind := "error"
			if f.Warning {
				kind = "warning"
			}
			fmt.Fprintf(w, "  %s: %s: %s", kind, f.Setting, records.Plain(f.What))
			if f.Remedy != "" {
				fmt.Fprintf(w, "; %s", f.Remedy)
			}
			if place := cfg.PlaceOf(c.Projection, f.Setting); place != "" {
				fmt.Fprintf(w, " (%s)", place)
			}
			fmt.Fprintln(w)
		}
	}
	return nil
}

func (a *app) projectionRender() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "render PROJECTION --id ID",
		Short: "Compare the document of one entity with what would be written",
		Long: `Show the document that a declared projection makes of one entity now, beside the one that
the index has: - for what is there, + for what would be written. Nothing is written.

Exits 0 when they are equal, and 1 when they differ.`,
		Example: `  weft projection render products --id 17
  weft projection render products --id 17 --json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || id == "" {
				return usage(cmd, "want one projection, and an entity with --id")
			}
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				deps, names, err := declaredDeps(cmd, cfg, pool, args)
				if err != nil {
					return err
				}
				r, err := cfg.Registry().Render(ctx, names[0], id, deps)
				if bad, ok := errors.AsType[*projections.EntityError](err); ok {
					return usage(cmd, "--id: "+bad.Error())
				}
				if err != nil {
					return fmt.Errorf("render %s of projection %s: %w", id, names[0], err)
				}
				differ := !equalJSON(r.Document, r.Indexed)
				if err := a.show(r, func(w io.Writer) error { return writeRendered(w, r, differ) }); err != nil {
					return err
				}
				if differ || r.Problem != "" {
					return &exitError{exitBad, "the document of " + r.ID + " is not what would be written"}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "id of the entity, as the outbox table has it; with its type, as in block:17, where the table has several")
	a.jsonFlags(cmd, "elastic.url", "elastic.timeout")
	return cmd
}

func writeRendered(w io.Writer, r *projections.Rendered, differ bool) error {
	fmt.Fprintf(w, "document %s: version %d in the source, %d in the index\n", r.ID, r.Version, r.IndexedVersion)
	if r.NoIndex {
		fmt.Fprintln(w, "there is no index yet, and no alias of its name: an instance makes both when it starts")
	}
	switch {
	case r.Problem != "":
		fmt.Fprintf(w, "it would fail: %s\n", r.Problem)
	case !differ && r.Document == nil && r.Version == 0:
		fmt.Fprintln(w, "the query returns no row of it: a row from before the outbox gets its version when it changes, or from `weft load`")
		fmt.Fprintln(w, "there is no document, and none would be written")
	case !differ && r.Document == nil:
		fmt.Fprintln(w, "the source has it as deleted; there is no document, and none would be written")
	case r.Document == nil:
		fmt.Fprintln(w, "it would be deleted:")
	case r.Indexed == nil:
		fmt.Fprintln(w, "it would be new:")
	}
	have, want := fieldsOf(r.Indexed), fieldsOf(r.Document)
	names := maps.Clone(have)
	maps.Copy(names, want)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, there := have[name]
		after, written := want[name]
		if there && written && equalJSON(before, after) {
			fmt.Fprintf(w, "  %s: %s\n", name, after)
			continue
		}
		if there {
			fmt.Fprintf(w, "- %s: %s\n", name, before)
		}
		if written {
			fmt.Fprintf(w, "+ %s: %s\n", name, after)
		}
	}
	return nil
}

func fieldsOf(document json.RawMessage) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	if len(document) > 0 {
		_ = json.Unmarshal(document, &fields) // it was made here, or by Elasticsearch
	}
	return fields
}

// equalJSON compares values, numbers as they are written.
func equalJSON(a, b json.RawMessage) bool {
	return bytes.Equal(canonical(a), canonical(b))
}

// canonical writes a value with sorted keys and without white space.
func canonical(v json.RawMessage) []byte {
	dec := json.NewDecoder(bytes.NewReader(v))
	dec.UseNumber()
	var value any
	if len(v) == 0 || dec.Decode(&value) != nil {
		return v
	}
	out, err := json.Marshal(value)
	if err != nil {
		return v
	}
	return out
}
