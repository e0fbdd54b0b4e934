package projections

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Declaration is a projection that needs no code: a query that reads the rows of entities,
// and the index that their documents go to.
type Declaration struct {
	Name  string // the value of the projection label
	Table string // the outbox table, of weft's schema

	// Query reads the rows of the entities in $1, an array of their keys; of a key of several
	// columns $1, $2 and so on are the arrays of each column, in the order of the key. It runs read only, with the time zone UTC. These columns have a meaning,
	// the others are the fields of the document, in their order:
	//
	//	entity_id  which entity the row is of; columns of a key of several have their own names
	//	           and are fields as well
	//	version    of the row: a whole number that grows with every change of the document
	//	deleted    boolean, optional: the document goes, though the row is there
	Query string
	// Key names the columns of Query with the key; nil for entity_id, or those that the table
	// has. Those of an outbox that `weft migrate` made are the type and the id of an entity:
	// $1 and $2 are the arrays of both, and both are fields.
	Key []string
	// Source is the table with a row for each entity, with the columns of Key, where the outbox
	// is one that `weft migrate` made. An outbox of `weft outbox create` knows its own.
	Source string
	// DropNulls leaves fields without a value out; otherwise they are null.
	DropNulls bool

	// Load has the leader carry, once, the rows that were there before the outbox.
	Load bool

	Index    string          // alias over Index-vN, or an existing plain index
	Mapping  json.RawMessage // of an index made here; nil leaves the fields to Elasticsearch
	Settings json.RawMessage // of an index made here, beside weft's own
	Pipeline string          // an ingest pipeline, optional
	Routing  string          // the column of Query with the routing, where the outbox records one
	ID       string          // of a document, as in p-{id} or {tenant}:{id}; empty for the entity's

	// Destination is a table of this database that gets the rows, instead of an index.
	Destination string
}

var (
	declaredName  = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)
	declaredTable = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
)

// Validate returns all that is wrong with d and can be told without a server.
func (d Declaration) Validate() error {
	var errs []error
	if !declaredName.MatchString(d.Name) {
		errs = append(errs, fmt.Errorf("name %q: want a lower-case letter and then at most 62 of a-z, 0-9 and _", d.Name))
	}
	if !declaredTable.MatchString(d.Table) {
		errs = append(errs, fmt.Errorf("outbox.table %q: want the plain lower-case name of an outbox table in weft's schema", d.Table))
	}
	if d.Source != "" && (!declaredTable.MatchString(d.Source) || len(d.Key) != 2) {
		errs = append(errs, fmt.Errorf("source table %q with the key %q: want a plain lower-case name, and its columns with the type and the id of an entity", d.Source, strings.Join(d.Key, ", ")))
	}
	switch query := d.query(); {
	case query == "":
		errs = append(errs, errors.New("source.query is empty: want a query that returns entity_id, version and the fields of the document"))
	case !strings.Contains(query, "$1"):
		errs = append(errs, errors.New("source.query does not use $1: filter the rows by it, as in `where p.id = any($1)`"))
	}
	switch {
	case d.Destination == "" && d.Index == "":
		errs = append(errs, errors.New("index.name is empty: want the name of an alias or index, or a table in destination.table"))
	case d.Destination != "" && (d.Index != "" || d.Mapping != nil || d.Settings != nil || d.Pipeline != "" || d.DropNulls || d.Routing != "" || d.ID != ""):
		errs = append(errs, errors.New("destination.table stands beside settings of an index: want a table or an index, and source.nulls with an index alone"))
	}
	if _, err := parseTemplate(d.ID); err != nil {
		errs = append(errs, err)
	}
	for _, part := range []struct {
		what, within string
		json         json.RawMessage
	}{{"index.mapping", "mappings", d.Mapping}, {"index.settings", "settings", d.Settings}} {
		var object map[string]any
		if err := json.Unmarshal(part.json, &object); len(part.json) > 0 && err != nil {
			if at, ok := errors.AsType[*json.SyntaxError](err); ok {
				err = fmt.Errorf("line %d of the file: %w", 1+bytes.Count(part.json[:at.Offset], []byte("\n")), err)
			}
			errs = append(errs, fmt.Errorf("%s: want a JSON object: %w", part.what, err))
		}
		if _, whole := object[part.within]; whole {
			errs = append(errs, fmt.Errorf("%s: the file has all of an index: want the object that is %q there", part.what, part.within))
		}
	}
	return errors.Join(errs...)
}

// query returns the query without the semicolon that shells want.
func (d Declaration) query() string {
	return strings.TrimSpace(strings.TrimRight(strings.TrimSpace(d.Query), ";"))
}

// target returns where the documents go, over the connection of base.
func (d Declaration) target(base elastic.Config) elastic.Config {
	base.Index, base.Pipeline, base.Settings, base.Query = d.Index, d.Pipeline, d.Settings, d.query()
	base.Mapping = json.RawMessage(cmp.Or(string(d.Mapping), "{}"))
	if d.Routing != "" {
		base.Mapping = requireRouting(base.Mapping)
	}
	return base
}

// IndexMapping returns the mapping of an index that is made for the projection.
func (d Declaration) IndexMapping() json.RawMessage { return d.target(elastic.Config{}).Mapping }

// requireRouting has Elasticsearch refuse what names a document without its routing.
func requireRouting(mapping json.RawMessage) json.RawMessage {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(mapping, &fields); err != nil {
		return mapping // Validate names it
	}
	fields["_routing"] = json.RawMessage(`{"required":true}`)
	out, err := json.Marshal(fields)
	if err != nil {
		return mapping
	}
	return out
}

// Overlap returns why documents of two projections would replace one another; nil when they do
// not. Both may share an index whose ids begin differently.
func (d Declaration) Overlap(other Declaration) error {
	a, errA := parseTemplate(d.ID)
	b, errB := parseTemplate(other.ID)
	switch {
	case d.Index != other.Index, d.Index == "":
		return nil
	case errA != nil || errB != nil || !a.disjoint(b):
		return fmt.Errorf("writes to index %s, as %s does: their documents would replace one another; take an index of its own, or ids that begin differently, as with `index.id: %s-{id}` and `index.id: %s-{id}`",
			d.Index, other.Name, d.Name, other.Name)
	case string(d.target(elastic.Config{}).Mapping) != string(other.target(elastic.Config{}).Mapping):
		return fmt.Errorf("writes to index %s, as %s does, with another mapping or routing: name the same mapping file in both, and a routing in both or none", d.Index, other.Name)
	case string(d.Settings) != string(other.Settings):
		return fmt.Errorf("writes to index %s, as %s does, with other settings: name the same settings file in both", d.Index, other.Name)
	}
	return nil
}

// NewDeclared returns the projection that d declares: it reads from pool, writes to sink or to
// the table that d names, and registers its metrics with reg.
func NewDeclared(d Declaration, pool BatchQuerier, sink Documents, log *zap.Logger, reg prometheus.Registerer) (*Index, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	return d.build(pool, sink, log, reg)
}

func (d Declaration) build(pool BatchQuerier, sink Documents, log *zap.Logger, reg prometheus.Registerer) (*Index, error) {
	source, destination := newDeclaredSource(d, pool), "elasticsearch/"+d.Index
	switch {
	case d.Destination != "":
		sink, destination = newTableSink(d, source, pool), "postgres/"+d.Destination
	case d.Name == SearchIndexToElastic:
		destination = "elasticsearch" // as it was called when it was the only one
	}
	i := &Index{
		name: d.Name, table: d.Table, destination: destination, sink: sink, log: log, source: source,
		appendID: func(dst []byte, key *outbox.Key) []byte { return source.naming.Load().appendID(dst, key) },
	}
	if d.Routing != "" {
		i.routing = func(key *outbox.Key) string { return source.naming.Load().routingOf(key) }
	}
	return newIndex(i, pool, reg)
}
