package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/migrations"
)

func (a *app) outboxCommand() *cobra.Command {
	return groupOf(&cobra.Command{
		Use:   "outbox",
		Short: "Make and drop the outbox of a table of your own",
		Long: `Give a table of the application an outbox: a table of events that triggers fill, in the
transaction that changes the row.`,
		Example: `  weft outbox create --table shop.product --children shop.variant:product_id
  weft outbox list
  weft outbox drop --table shop.product`,
	}, a.outboxCreate(), a.outboxDrop(), a.outboxList())
}

func (a *app) outboxCreate() *cobra.Command {
	var spec migrations.OutboxSpec
	var key, children []string
	var apply bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an outbox for a table, and the triggers that fill it",
		Long: `Print the SQL that gives a table an outbox, or run it with --apply. Run it as the owner of
the table, who may also create tables in weft's schema; weft's schema is the first one of
search_path in the database URL. It makes there

  NAME_outbox_events    the events, one row for each change that is to be carried
  NAME_outbox_versions  the version of each entity, which outlives the entity
  triggers              on the table and its children, with their functions

One event is written for each entity that a statement touches, in its transaction: a bulk
update of many children is one insert. Writers need no right on the outbox. Moving a child
to another parent touches both. An update that changes no column writes nothing.

What writers notice: two transactions that change one entity, or its children, wait for
each other until they commit. A transaction that touches several entities in an order of
its own may get 40P01 (deadlock), and under repeatable read or serializable 40001: retry it.
TRUNCATE of the table or its children is refused. Nothing fires, and nothing is carried,
under session_replication_role = replica and for rows that logical replication applies.
Writes fail once the table, its key, or the column of a child has another name or type: drop
the outbox before, and make it again.

Events carry the trace context that the application sets in its transaction:
  select set_config('weft.traceparent', '00-…', true), set_config('weft.tracestate', '…', true)
The triggers write an event for each change that they see. For another one the application
calls weft_enqueue(table, type, id, op), without a version: the outbox gives that out itself.
The owner of the tables grants execute on the function to the application's role first.

A key of several columns makes ids of one text, such as acme:17, which NAME_outbox_id writes.
With --routing each event has the place of its document, routing and key; a row whose routing
changes gets two events, a delete at the old place and an upsert at the new one. A table may
have several outboxes, one for each index: create each with a --name of its own.

After --apply: weft migrate grant gives weft's role its rights on the outbox. After the
printed SQL: weft migrate up makes the history and the views, then weft migrate grant.`,
		Example: `  weft outbox create --table shop.product > product_outbox.sql
  weft outbox create --table shop.product --children shop.variant:product_id --apply
  weft outbox create --table shop.product --key tenant,id --children shop.variant:tenant,product_id
  weft outbox create --table shop.product --routing tenant --name product_search_outbox_events
  weft outbox create --table '"Shop"."Order Line"' --key 'Line No' --name order_line_outbox_events`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if spec.Table == "" {
				return usage(cmd, "want the table, with --table")
			}
			spec.Key = parseColumns(strings.Join(key, ","))
			if spec.Children, err = parseChildren(strings.Join(children, ",")); err != nil {
				return usage(cmd, err.Error())
			}
			return a.migrate(cmd, func(ctx context.Context, url string) error {
				plan, err := migrations.CreateOutbox(ctx, url, spec, apply, a.progress(), migrations.WithWait(wait))
				return a.outboxDone(plan, err, apply, "created ")
			})
		},
	}
	cmd.Flags().StringVar(&spec.Table, "table", "", "`table` whose changes are to be carried, as SQL names it")
	cmd.Flags().StringArrayVar(&key, "key", nil, "unique `columns` that are the entity's key, separated by commas (default the primary key)")
	cmd.Flags().StringVar(&spec.Routing, "routing", "", "not-null `column` whose value decides the shard of a document, as a tenant does")
	cmd.Flags().StringVar(&spec.EntityType, "type", "", "entity `type` of the events (default the table's name)")
	cmd.Flags().StringVar(&spec.Name, "name", "", "`name` of the outbox table (default TABLE_outbox_events)")
	cmd.Flags().StringArrayVar(&children, "children", nil, "tables whose rows are part of an entity, as `TABLE:COLUMN` pairs separated by commas, or each with a flag of its own; COLUMN has the entity's key (TABLE:A,B for a key of two columns)")
	cmd.Flags().BoolVar(&apply, "apply", false, "run the SQL instead of printing it")
	lockWait(cmd, &wait)
	databaseFlags(cmd)
	return cmd
}

func (a *app) outboxDrop() *cobra.Command {
	var spec migrations.DropSpec
	var apply bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "drop",
		Short: "Take back what weft outbox create has made",
		Long: `Print the SQL that takes an outbox back, or run it with --apply: triggers, functions,
versions, events, history and views. Take its projection out of the configuration of every
instance first.

It refuses while events are not done, or the history has some, unless --force is given.
Versions are lost with it. An outbox that is made again for the table begins at a higher one,
taken from the clock, so that documents written before do not refuse it.`,
		Example: `  weft outbox drop --table shop.product
  weft outbox drop --name product_outbox_events --apply`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (spec.Table == "") == (spec.Name == "") {
				return usage(cmd, "want either --table or --name")
			}
			return a.migrate(cmd, func(ctx context.Context, url string) error {
				plan, err := migrations.DropOutbox(ctx, url, spec, apply, a.progress(), migrations.WithWait(wait))
				return a.outboxDone(plan, err, apply, "dropped ")
			})
		},
	}
	cmd.Flags().StringVar(&spec.Table, "table", "", "`table` whose outbox is to go, as SQL names it")
	cmd.Flags().StringVar(&spec.Name, "name", "", "`name` of the outbox table")
	cmd.Flags().BoolVar(&apply, "apply", false, "run the SQL instead of printing it")
	cmd.Flags().BoolVar(&spec.Force, "force", false, "throw away events that are not done, and the history")
	lockWait(cmd, &wait)
	databaseFlags(cmd)
	return cmd
}

// outboxDone prints the plan that was asked for, or what was done.
func (a *app) outboxDone(plan *migrations.OutboxPlan, err error, apply bool, verb string) error {
	if plan != nil {
		for _, w := range plan.Warnings {
			fmt.Fprintln(a.stderr, "weft: warning: "+w)
		}
	}
	switch {
	case err != nil:
		return err
	case apply:
		_, err = fmt.Fprintln(a.stdout, verb+plan.Name)
	default:
		_, err = fmt.Fprint(a.stdout, plan.SQL())
	}
	return err
}

// parseColumns reads names of columns. A comma between double quotes belongs to a name.
func parseColumns(text string) (columns []string) {
	for _, name := range splitNames(text, ',') {
		if name != "" {
			columns = append(columns, unquoted(name))
		}
	}
	return columns
}

// unquoted returns the name of a column, which may be quoted as in SQL.
func unquoted(name string) string {
	if len(name) > 2 && name[0] == '"' && name[len(name)-1] == '"' {
		return strings.ReplaceAll(name[1:len(name)-1], `""`, `"`)
	}
	return name
}

// parseChildren reads TABLE:COLUMN pairs; what has no colon is one more column of the pair
// before. A comma or colon between double quotes belongs to a name.
func parseChildren(text string) (children []migrations.Child, err error) {
	if text == "" {
		return nil, nil
	}
	for _, pair := range splitNames(text, ',') {
		parts := splitNames(pair, ':')
		switch last := len(children) - 1; {
		case len(parts) == 1 && parts[0] != "" && last >= 0:
			children[last].Columns = append(children[last].Columns, unquoted(parts[0]))
		case len(parts) != 2 || parts[0] == "" || parts[1] == "":
			return nil, errors.New("--children: want TABLE:COLUMN pairs, not " + fmt.Sprintf("%q", pair))
		default:
			children = append(children, migrations.Child{Table: parts[0], Columns: []string{unquoted(parts[1])}})
		}
	}
	return children, nil
}

func splitNames(text string, at rune) []string {
	quoted := false
	parts := []string{""}
	for _, r := range text {
		if r == '"' {
			quoted = !quoted
		}
		if r == at && !quoted {
			parts = append(parts, "")
			continue
		}
		parts[len(parts)-1] += string(r)
	}
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// outboxRow is the JSON form of an outbox table. Names and units stay; fields may be added.
type outboxRow struct {
	Name       string `json:"name"`
	EntityType string `json:"entity_type"`
	Source     string `json:"source"`
	Open       int64  `json:"open"` // pending or processing
}

func (a *app) outboxList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the outboxes that weft outbox create has made",
		Long:  `List the outboxes that weft outbox create has made, with the events that are still to be carried.`,
		Example: `  weft outbox list
  weft outbox list --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg, err := a.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = postgres.In(cfg.Database.URL.Reveal(), err) }()
			ctx, cancel := context.WithTimeout(cmd.Context(), cfg.Database.Timeout)
			defer cancel()
			conn, err := postgres.Connect(ctx, cfg.Database.URL.Reveal(), postgres.Options{AppName: "weft/outbox", Statement: cfg.Database.Timeout})
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(ctx) }()
			found, err := migrations.ListOutboxes(ctx, conn)
			if err == nil && len(found) == 0 { // perhaps it is another database
				if err = migrations.Check(ctx, conn); is[*migrations.AheadError](err) {
					err = nil
				}
			}
			if err != nil {
				return err
			}
			rows := make([]outboxRow, len(found))
			for i, o := range found {
				rows[i] = outboxRow{Name: o.Name, EntityType: o.EntityType, Source: o.Source}
				err := conn.QueryRow(ctx, "select count(*) from "+pgx.Identifier{o.Name}.Sanitize()+" where status in ('pending', 'processing')").Scan(&rows[i].Open)
				if err != nil {
					return fmt.Errorf("open events of %s: %w", o.Name, err)
				}
			}
			return a.show(rows, func(w io.Writer) error { return writeOutboxes(w, rows) })
		},
	}
	cmd.Flags().BoolVar(&a.asJSON, "json", false, "print JSON")
	config.AddFlags(cmd.Flags(), "database.url", "database.password", "database.timeout")
	return cmd
}

func writeOutboxes(w io.Writer, rows []outboxRow) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "no outbox: weft outbox create makes one")
		return err
	}
	t := newTable(w, "NAME", "ENTITY TYPE", "SOURCE", "OPEN")
	for _, r := range rows {
		t.row(r.Name, r.EntityType, r.Source, r.Open)
	}
	return t.Flush()
}
