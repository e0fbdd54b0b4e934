package projections

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Finding is something about a declaration that does not work, or that may surprise.
type Finding struct {
	Setting string `json:"setting"` // below the projection's name, such as source.query
	What    string `json:"what"`
	Remedy  string `json:"remedy"`
	Warning bool   `json:"warning"` // it works
}

// largeTable is from how many rows on a scan of all of a table for each batch is a finding.
const largeTable = 10_000

// checkPage is how many entities the plan is made for: a full batch.
const checkPage = 2000

// Check tries a declared projection without writing anything: its outbox table, its query
// and the plan of it, the fields beside the mapping, and what Elasticsearch says of that.
func (r Registry) Check(ctx context.Context, name string, deps Deps) ([]Finding, error) {
	d, ok := r.declared(name)
	if !ok {
		return nil, fmt.Errorf("projection %s is not declared: want one of %s", name, strings.Join(r.declaredNames(), ", "))
	}
	c := &checker{declaration: d, source: newDeclaredSource(d, deps.Pool), pool: deps.Pool}
	shape, err := c.source.known(ctx)
	if err != nil {
		fault, ok := errors.AsType[*outbox.Fault](err)
		if !ok || fault.Reason != outbox.ReasonUnknown {
			return nil, err
		}
		setting := "source.query"
		if e, ok := errors.AsType[*settingError](err); ok {
			setting = e.setting
		}
		c.find(setting, fault.Err.Error(), "")
	} else {
		c.fields(shape)
		if err := c.plan(ctx, shape); err != nil {
			return nil, err
		}
	}
	sink, err := r.Sink(name, deps.Elastic, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	c.index(ctx, sink)
	return c.findings, nil
}

func (r Registry) declared(name string) (Declaration, bool) {
	i := slices.IndexFunc(r.Declared, func(d Declaration) bool { return d.Name == name })
	if i < 0 {
		return Declaration{}, false
	}
	return r.Declared[i], true
}

func (r Registry) declaredNames() []string {
	names := make([]string, len(r.Declared))
	for i, d := range r.Declared {
		names[i] = d.Name
	}
	return names
}

type checker struct {
	declaration Declaration
	source      *declaredSource
	pool        BatchQuerier
	findings    []Finding
}

func (c *checker) find(setting, what, remedy string) {
	c.findings = append(c.findings, Finding{Setting: setting, What: what, Remedy: remedy})
}

func (c *checker) warn(setting, what, remedy string) {
	c.findings = append(c.findings, Finding{Setting: setting, What: what, Remedy: remedy, Warning: true})
}

// fields compares the fields of the documents with the mapping.
func (c *checker) fields(shape *declaredShape) {
	if len(c.declaration.Mapping) == 0 {
		c.warn("index.mapping", "there is none: Elasticsearch guesses the type of each field from the first document that has it",
			"write a mapping with the fields of the query")
		return
	}
	var mapping struct {
		Dynamic    any                        `json:"dynamic"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(c.declaration.Mapping, &mapping); err != nil {
		c.find("index.mapping", err.Error(), "correct the JSON")
		return
	}
	strict := fmt.Sprint(mapping.Dynamic) == "strict"
	for _, f := range shape.fields {
		if _, ok := mapping.Properties[f.name]; ok || strings.Contains(f.name, ".") {
			delete(mapping.Properties, f.name)
			continue
		}
		if strict {
			c.find("index.mapping", fmt.Sprintf("the mapping is strict and lacks field %s: every document would be refused", f.name),
				"add the field to properties, or leave its column out of the query")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(mapping.Properties)) {
		c.warn("source.query", fmt.Sprintf("nothing fills field %s of the mapping", name), "return a column of that name, or take the field out of the mapping")
	}
}

// plan looks for tables that the query reads from end to end for each batch.
func (c *checker) plan(ctx context.Context, shape *declaredShape) error {
	texts, err := c.entities(ctx)
	if err != nil {
		return fmt.Errorf("entities of %s: %w", c.declaration.Table, err)
	}
	var events []outbox.Event
	for _, text := range texts {
		id, err := outbox.ParseID(shape.key.kind, text)
		if err != nil {
			return err
		}
		events = append(events, outbox.Event{Row: outbox.Row{Key: outbox.Key{ID: id}}})
	}
	if len(events) == 0 {
		c.warn("source.query", "there is no entity yet: the plan was not looked at", "check again when there are some")
		return nil
	}
	var plan []struct {
		Plan planNode `json:"Plan"`
	}
	err = c.source.ask(ctx, "explain (verbose, format json) "+shape.sql, func(rows pgx.Rows) error {
		for rows.Next() {
			if err := json.Unmarshal(rows.RawValues()[0], &plan); err != nil {
				return fmt.Errorf("plan: %w", err)
			}
		}
		return rows.Err()
	}, shape.key.args(events)...)
	if err != nil {
		return fmt.Errorf("plan of source.query: %w", err)
	}
	scanned := map[string]bool{}
	for _, p := range plan {
		p.Plan.scans(scanned)
	}
	return c.large(ctx, slices.Sorted(maps.Keys(scanned)))
}

// sourceOf reads the table that an outbox has the changes of, and how an id of it is written.
const sourceOf = `
select source, base || case when routing <> all (key_columns) then format('_place(%I, %s)', routing, keys)
                            when cardinality(key_columns) > 1 then format('_id(%s)', keys) end, keys
from weft_outbox cross join lateral (select regexp_replace(table_name, '_events$', '') as base, (select string_agg(quote_ident(k), ', ' order by n) from unnest(key_columns) with ordinality as c(k, n)) as keys) b
where table_name = $1`

// entities returns ids for which a plan is made: of events, or of the table they will be of.
func (c *checker) entities(ctx context.Context) ([]string, error) {
	rows, err := c.pool.Query(ctx, "select entity_id::text from "+pgx.Identifier{c.declaration.Table}.Sanitize()+" limit $1", checkPage)
	if err != nil {
		return nil, err
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(texts) > 0 {
		return texts, err
	}
	var source, key string
	var id *string
	if rows, err = c.pool.Query(ctx, sourceOf, c.declaration.Table); err != nil {
		return nil, err
	}
	if _, err = pgx.ForEachRow(rows, []any{&source, &id, &key}, func() error { return nil }); err != nil || source == "" {
		return nil, err // an outbox that the application has made
	}
	if id != nil {
		key = *id
	}
	if rows, err = c.pool.Query(ctx, "select ("+key+")::text from "+source+" limit $1", checkPage); err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// planNode is the part of a plan that is looked at.
type planNode struct {
	NodeType string     `json:"Node Type"`
	Schema   string     `json:"Schema"`
	Relation string     `json:"Relation Name"`
	Plans    []planNode `json:"Plans"`
}

// scans notes the tables that are read from end to end.
func (n planNode) scans(into map[string]bool) {
	if n.NodeType == "Seq Scan" {
		into[pgx.Identifier{n.Schema, n.Relation}.Sanitize()] = true
	}
	for _, inner := range n.Plans {
		inner.scans(into)
	}
}

// largeQuery reads how many rows tables have.
const largeQuery = `
select t.name, c.reltuples::bigint
from unnest($1::text[]) as t(name) join pg_class c on c.oid = to_regclass(t.name)
where c.reltuples > $2`

func (c *checker) large(ctx context.Context, tables []string) error {
	rows, err := c.pool.Query(ctx, largeQuery, tables, largeTable)
	if err != nil {
		return fmt.Errorf("sizes of tables: %w", err)
	}
	var name string
	var size int64
	_, err = pgx.ForEachRow(rows, []any{&name, &size}, func() error {
		c.find("source.query", fmt.Sprintf("for each batch it reads all %d rows of %s", size, name),
			"make an index on the column by which the query looks its rows up, and analyze the table")
		return nil
	})
	if err != nil {
		return fmt.Errorf("sizes of tables: %w", err)
	}
	return nil
}

// index asks Elasticsearch about the definition of the index, and about the index.
func (c *checker) index(ctx context.Context, sink *elastic.Sink) {
	switch err := sink.CheckDefinition(ctx); {
	case errors.Is(err, elastic.ErrUnchecked):
		c.warn("index.mapping", "Elasticsearch was not asked about it: that takes the privilege manage_index_templates", "check as a user that has it")
	case err != nil:
		c.find("index.mapping", "Elasticsearch refuses it: "+err.Error(), "correct the mapping or the settings")
	}
	switch err := sink.Ready(ctx); {
	case elastic.IsMissing(err):
		// It is made at the first start.
	case errors.Is(err, elastic.ErrMapping):
		c.find("index.mapping", err.Error(), "")
	case err != nil:
		c.find("index.name", err.Error(), "")
	}
}

// Rendered is a document as it would be written, and as it is.
type Rendered struct {
	ID       string          `json:"id"`
	Version  int64           `json:"version"`  // of the source row; 0 without one
	Document json.RawMessage `json:"document"` // null when it would be deleted
	Problem  string          `json:"problem,omitempty"`

	Indexed        json.RawMessage `json:"indexed"` // null when there is none
	IndexedVersion int64           `json:"indexed_version"`
}

// Render returns the document of one entity, whose id is written as in the outbox table.
func (r Registry) Render(ctx context.Context, name, id string, deps Deps) (*Rendered, error) {
	d, ok := r.declared(name)
	if !ok {
		return nil, fmt.Errorf("projection %s is not declared: want one of %s", name, strings.Join(r.declaredNames(), ", "))
	}
	source := newDeclaredSource(d, deps.Pool)
	shape, err := source.known(ctx)
	if err != nil {
		return nil, err
	}
	key, err := outbox.ParseID(shape.key.kind, id)
	if err == nil {
		err = shape.key.valid(key)
	}
	if err != nil {
		return nil, err
	}
	a := &arena{}
	if _, err := source.read(ctx, a, []outbox.Event{{Row: outbox.Row{Key: outbox.Key{ID: key}}}}); err != nil {
		return nil, err
	}
	out := &Rendered{ID: key.String()}
	switch row := a.rows[0]; {
	case row.bad != nil:
		out.Problem = row.bad.Error()
	case row.found:
		out.Version = row.version
		if !row.deleted {
			out.Document = a.json[row.from:row.to]
		}
	}
	sink, err := r.Sink(name, deps.Elastic, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	found, err := sink.Get(ctx, source.naming.Load().doc(key))
	if err != nil {
		return nil, err
	}
	if found != nil {
		out.Indexed, out.IndexedVersion = found.Source, found.Version
	}
	return out, nil
}
