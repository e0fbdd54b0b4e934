package projections

import (
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
// and the index that their documents go to. The document's id is the entity's.
type Declaration struct {
	Name  string // the value of the projection label
	Table string // the outbox table, of weft's schema

	// Query reads the rows of the entities in $1, an array of the type of entity_id in the
	// outbox table. It runs read only, with the time zone UTC. These columns have a meaning,
	// the others are the fields of the document, in their order:
	//
	//	entity_id  which entity the row is of
	//	version    of the row: a whole number that grows with every change of the document
	//	deleted    boolean, optional: the document goes, though the row is there
	Query string
	// DropNulls leaves fields without a value out; otherwise they are null.
	DropNulls bool

	Index    string          // alias over Index-vN, or an existing plain index
	Mapping  json.RawMessage // of an index made here; nil leaves the fields to Elasticsearch
	Settings json.RawMessage // of an index made here, beside weft's own
	Pipeline string          // an ingest pipeline, optional

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
	switch query := d.query(); {
	case query == "":
		errs = append(errs, errors.New("source.query is empty: want a query that returns entity_id, version and the fields of the document"))
	case !strings.Contains(query, "$1"):
		errs = append(errs, errors.New("source.query does not use $1: filter the rows by it, as in `where p.id = any($1)`"))
	}
	switch {
	case d.Destination == "" && d.Index == "":
		errs = append(errs, errors.New("index.name is empty: want the name of an alias or index, or a table in destination.table"))
	case d.Destination != "" && (d.Index != "" || d.Mapping != nil || d.Settings != nil || d.Pipeline != "" || d.DropNulls):
		errs = append(errs, errors.New("destination.table stands beside settings of an index: want a table or an index, and source.nulls with an index alone"))
	}
	for _, part := range []struct {
		what string
		json json.RawMessage
	}{{"index.mapping", d.Mapping}, {"index.settings", d.Settings}} {
		var object map[string]any
		if err := json.Unmarshal(part.json, &object); len(part.json) > 0 && err != nil {
			errs = append(errs, fmt.Errorf("%s: want a JSON object: %w", part.what, err))
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
	base.Index, base.Pipeline, base.Settings = d.Index, d.Pipeline, d.Settings
	base.Mapping = json.RawMessage(cmp.Or(string(d.Mapping), "{}"))
	return base
}

// NewDeclared returns the projection that d declares: it reads from pool, writes to sink or to
// the table that d names, and registers its metrics with reg.
func NewDeclared(d Declaration, pool BatchQuerier, sink Documents, log *zap.Logger, reg prometheus.Registerer) (*Index, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	source, destination := newDeclaredSource(d, pool), "elasticsearch/"+d.Index
	if d.Destination != "" {
		sink, destination = newTableSink(d, source, pool), "postgres/"+d.Destination
	}
	return newIndex(&Index{
		name: d.Name, table: d.Table, destination: destination, sink: sink, log: log,
		source:   source,
		appendID: func(dst []byte, key *outbox.Key) []byte { return key.ID.AppendTo(dst) },
	}, pool, reg)
}
