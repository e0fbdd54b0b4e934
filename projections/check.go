package projections

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
	c, err := r.checked(ctx, name, deps)
	if err != nil || c.declaration.Destination != "" {
		return c.findings, err
	}
	sink, err := r.Sink(name, deps.Elastic, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	c.index(ctx, sink)
	return c.findings, nil
}

// CheckDatabase is [Registry.Check] without Elasticsearch.
func (r Registry) CheckDatabase(ctx context.Context, name string, deps Deps) ([]Finding, error) {
	c, err := r.checked(ctx, name, deps)
	return c.findings, err
}

// CheckOutbox is the part of [Registry.Check] that is about the outbox table and the triggers that fill it, which may
// change while an instance runs. It reads catalogs alone, and its findings say the same each time.
func (r Registry) CheckOutbox(ctx context.Context, name string, deps Deps) ([]Finding, error) {
	c, err := r.checker(name, deps)
	if err == nil {
		_, err = c.outbox(ctx)
	}
	if err == nil {
		err = c.changes(ctx, nil)
	}
	return c.findings, err
}

// checked returns the checker of a declared projection that has looked at the database.
func (r Registry) checked(ctx context.Context, name string, deps Deps) (*checker, error) {
	c, err := r.checker(name, deps)
	if err == nil {
		err = c.database(ctx)
	}
	return c, err
}

// checker returns the checker of a declared projection.
func (r Registry) checker(name string, deps Deps) (*checker, error) {
	d, ok := r.declared(name, deps.Elastic)
	if !ok {
		return &checker{}, fmt.Errorf("projection %s is not declared: want one of %s", name, strings.Join(r.declaredNames(), ", "))
	}
	c := &checker{declaration: d, source: newDeclaredSource(d, deps.Pool), pool: deps.Pool}
	for _, name := range r.Names() {
		c.tables = append(c.tables, r.Table(name))
	}
	c.shared = slices.ContainsFunc(r.Declared, func(o Declaration) bool { return o.Name != d.Name && o.Index == d.Index })
	return c, nil
}

type checker struct {
	declaration Declaration
	source      *declaredSource
	pool        BatchQuerier
	tables      []string // of all projections
	shared      bool     // another projection writes to the index
	older       string   // an entity whose row has a lower version than its event
	findings    []Finding
}

// database looks at the outbox table, the query and its answer.
func (c *checker) database(ctx context.Context) error {
	ok, err := c.outbox(ctx)
	if err != nil || !ok {
		return err
	}
	shape, err := c.source.known(ctx)
	if err != nil {
		return errors.Join(c.refused(ctx, err), c.changes(ctx, nil)) // a changed table may be the cause
	}
	if c.declaration.Destination != "" {
		if err := c.destination(ctx, shape); err != nil {
			return err
		}
	} else {
		c.fields(shape)
	}
	events, ofEvents, err := c.entities(ctx, shape)
	if err != nil {
		return fmt.Errorf("entities of %s: %w", c.declaration.Table, err)
	}
	if len(events) == 0 {
		c.warn("source.query", "there is no entity yet: the plan and the documents were not looked at", "check again when there are some")
		return c.changes(ctx, nil)
	}
	plan, err := c.plan(ctx, shape, events)
	if err == nil {
		err = c.answers(ctx, shape, events, ofEvents)
	}
	if err != nil {
		if err := c.refused(ctx, err); err != nil {
			return err
		}
	}
	return c.changes(ctx, plan)
}

// refused turns what the server says against the query into a finding, and returns every
// other error.
func (c *checker) refused(ctx context.Context, err error) error {
	pg, answered := errors.AsType[*pgconn.PgError](err)
	fault, ok := errors.AsType[*outbox.Fault](err)
	switch {
	case ctx.Err() != nil:
		return err
	case errors.Is(err, context.DeadlineExceeded), answered && pg.Code == pgerrcode.QueryCanceled:
		c.find("source.query", fmt.Sprintf("it takes too long for %d entities, and was cancelled", answerPage), "see by its plan what it reads, and make the missing index")
		return nil
	case ok && fault.Reason == outbox.ReasonDBUnavailable, !ok && !answered:
		return err
	case ok:
		err = fault.Err
	}
	setting, remedy := "source.query", ""
	if e, ok := errors.AsType[*settingError](err); ok {
		setting = e.setting
	}
	if answered && !ok && pg.Code == pgerrcode.InsufficientPrivilege {
		remedy = remedyOf(pg)
	}
	c.find(setting, strings.TrimPrefix(err.Error(), ofProjection(setting, c.declaration.Name)), remedy)
	return nil
}

func (c *checker) find(setting, what, remedy string) {
	c.findings = append(c.findings, Finding{Setting: setting, What: what, Remedy: remedy})
}

func (c *checker) warn(setting, what, remedy string) {
	c.findings = append(c.findings, Finding{Setting: setting, What: what, Remedy: remedy, Warning: true})
}

// metadata are the names of fields that Elasticsearch and OpenSearch take in no document.
var metadata = []string{"_field_names", "_id", "_ignored", "_index", "_nested_path", "_routing", "_seq_no", "_source", "_version"}

// fields looks at the names of the fields, and compares them with the mapping.
func (c *checker) fields(shape *declaredShape) {
	for _, f := range shape.fields {
		blank := func(part string) bool { return strings.TrimSpace(part) == "" }
		if slices.Contains(metadata, f.name) || slices.ContainsFunc(strings.Split(f.name, "."), blank) {
			c.find("source.query", fmt.Sprintf("Elasticsearch takes no field with the name %q: every document would be refused", f.name), "give its column another name with `as`")
		}
	}
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

// entities returns events of entities for which the query is tried, one of each: of the outbox,
// or, without versions, of the table whose changes it will have.
func (c *checker) entities(ctx context.Context, shape *declaredShape) (events []outbox.Event, ofEvents bool, err error) {
	column := "entity_id"
	if shape.key.typed {
		column = "(entity_type || ':' || entity_id)"
	}
	var text string
	var version int64
	err = each(ctx, c.pool, "select t.id, max(t.version) from (select "+column+"::text as id, coalesce(event_version, 0) as version from "+
		pgx.Identifier{c.declaration.Table}.Sanitize()+" limit $1) t group by 1 order by 1",
		[]any{checkPage}, []any{&text, &version}, func() {
			if key, err := shape.key.parse(text); err == nil { // not an empty one
				events = append(events, outbox.Event{Row: outbox.Row{Key: key, Version: version}})
			}
		})
	if ofEvents = len(events) > 0; err == nil && !ofEvents && shape.key.source != "" {
		var keys []outbox.Key
		keys, err = c.source.entities(ctx, outbox.Key{}, checkPage)
		for _, key := range keys {
			events = append(events, outbox.Event{Row: outbox.Row{Key: key}})
		}
	}
	return events, ofEvents, err
}

func isDefinition(err error) bool {
	_, ok := errors.AsType[*elastic.DefinitionError](err)
	return ok
}

// index asks Elasticsearch about the definition of the index, and about the index.
func (c *checker) index(ctx context.Context, sink *elastic.Sink) {
	err := sink.CheckDefinition(ctx)
	if silent, ok := errors.AsType[*elastic.UnansweredError](err); ok {
		c.find("index", silent.Error(), silent.Remedy())
		return
	}
	switch {
	case errors.Is(err, elastic.ErrProduct), errors.Is(err, elastic.ErrRefused) && errors.Is(sink.Ready(ctx), elastic.ErrRefused):
		c.find("index", err.Error(), "")
		return
	case errors.Is(err, elastic.ErrUnchecked):
		c.warn("index.mapping", "Elasticsearch was not asked about it: that takes the privilege manage_index_templates", "check as a user that has it")
	case errors.Is(err, elastic.ErrRefused):
		c.warn("index.mapping", "Elasticsearch was not asked about it: it, or a proxy before it, takes the credentials for the index, and for templates not", templatesRemedy)
	case isDefinition(err):
		c.find("index.mapping", "Elasticsearch refuses it: "+err.Error(), "correct the mapping or the settings")
	case err != nil:
		c.find("index", err.Error(), "")
	default:
		c.template(ctx, sink)
	}
	for _, name := range sink.MissingPipelines(ctx) {
		remedy := "make it, or correct the name"
		if name != c.declaration.Pipeline {
			remedy = "make it, or take it out of the settings of the index"
		}
		c.find("index.pipeline", fmt.Sprintf("there is no ingest pipeline %q: no document would be written", name), remedy)
	}
	switch err := sink.Ready(ctx); {
	case elastic.IsMissing(err):
		// It is made at the first start.
	case errors.Is(err, elastic.ErrMapping):
		c.otherMapping(ctx, sink, err)
	case err != nil:
		c.find("index.name", err.Error(), "")
	default:
		c.unrouted(ctx, sink)
		c.foreign(ctx, sink)
		c.strangers(ctx, sink)
	}
}

// templatesRemedy is what to do where only templates are refused.
const templatesRemedy = "check with access to _index_template"

// template tells of an index template of the server that spoils an index of a definition that is right by itself.
func (c *checker) template(ctx context.Context, sink *elastic.Sink) {
	found, err := sink.Template(ctx)
	if errors.Is(err, elastic.ErrUnchecked) {
		return // as the definition, which has been told of
	}
	if errors.Is(err, elastic.ErrRefused) {
		c.warn("index.name", "the index templates of the server are not checked: it, or a proxy before it, does not take the credentials for them", templatesRemedy)
		return
	}
	if err != nil {
		c.warn("index.name", "the index templates of the server are not checked: "+err.Error(), "")
		return
	}
	applies := fmt.Sprintf("the index template %q of the server applies to %s-v1", found.Name, sink.Index())
	if found.Refusal != "" {
		c.find("index.name", applies+", and Elasticsearch then refuses to make the index: "+found.Refusal, "give it other index_patterns, or the index another name")
	}
	if found.Harm != "" {
		c.find("index.name", applies+", and "+found.Harm+": a new index, as of a rebuild, is of no use", "take that out of the template")
	}
	if found.Routed && c.declaration.Routing == "" {
		c.find("index.name", applies+", and has it take no document without a routing: every event would end in failed", "take _routing out of the template")
	}
	if found.IgnoreMalformed {
		c.warn("index.settings", applies+", and turns index.mapping.ignore_malformed on: searches do not find values that do not fit their field, and no event fails",
			"set it to false in the settings of the index, or change the template")
	}
}

// foreign tells of fields that have another type in the index. Of an index that weft has not made, or whose fields somebody
// has changed since, Ready does not know.
func (c *checker) foreign(ctx context.Context, sink *elastic.Sink) {
	if _, conflicts, err := sink.Difference(ctx); err == nil && len(conflicts) > 0 {
		c.find("index.mapping", "the index has another one: "+strings.Join(conflicts, "; "), "`weft rebuild "+c.declaration.Name+"` makes a new index with this one, and moves the alias")
	}
}

// unrouted tells of an index that takes no document without a routing, where the declaration has none.
func (c *checker) unrouted(ctx context.Context, sink *elastic.Sink) {
	if at, err := sink.Place(ctx); err == nil && at.Routed && c.declaration.Routing == "" {
		c.find("index.name", "index "+at.Index+" takes no document without a routing, and the projection has none: every event would end in failed",
			"name another index, or make the outbox anew with --routing and set index.routing")
	}
}

// otherMapping looks at what an instance does with an index that was made for another mapping: it makes the changes
// that Elasticsearch accepts.
func (c *checker) otherMapping(ctx context.Context, sink *elastic.Sink, mismatch error) {
	const setting = "index.mapping"
	rebuild := "`weft rebuild " + c.declaration.Name + "`"
	added, conflicts, err := sink.Difference(ctx)
	switch {
	case err != nil:
		c.find(setting, mismatch.Error(), "")
	case len(conflicts) > 0:
		c.find(setting, "the index was made for another one: "+strings.Join(conflicts, "; "), rebuild+" makes a new index with this one, and moves the alias")
	case len(added) > 0:
		c.warn(setting, "the index lacks fields: "+strings.Join(added, ", ")+"; an instance adds them when it starts, and documents have them from their next event on",
			rebuild+" fills them in for all")
	default:
		c.warn(setting, "the index was made for another one; an instance changes it when it starts", "if readiness then names a change that Elasticsearch refuses, "+rebuild)
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
	NoIndex        bool            `json:"no_index,omitempty"` // an instance makes it at its first start
}

// EntityError says why a text is no id of an entity of a projection.
type EntityError struct{ error }

// Unwrap returns what is wrong with it.
func (e *EntityError) Unwrap() error { return e.error }

// Render returns the document of one entity, whose id is written as in the outbox table, after
// its type and a colon where the table has entities of several types; an [*EntityError] for a text
// that is none.
func (r Registry) Render(ctx context.Context, name, id string, deps Deps) (*Rendered, error) {
	d, ok := r.declared(name, deps.Elastic)
	if !ok {
		return nil, fmt.Errorf("projection %s is not declared: want one of %s", name, strings.Join(r.declaredNames(), ", "))
	}
	source := newDeclaredSource(d, deps.Pool)
	shape, err := source.known(ctx)
	if err != nil {
		return nil, err
	}
	key, err := shape.key.parse(id)
	if err == nil {
		err = shape.key.valid(key.ID)
	}
	if err != nil {
		return nil, &EntityError{err}
	}
	a := &arena{}
	if _, err := source.read(ctx, a, []outbox.Event{{Row: outbox.Row{Key: key}}}); err != nil {
		return nil, err
	}
	out := &Rendered{ID: id}
	switch row := a.rows[0]; {
	case row.bad != nil:
		out.Problem = row.bad.Error()
	case row.found:
		out.Version = row.version
		if !row.deleted {
			out.Document = a.json[row.from:row.to]
		}
	}
	if d.Destination != "" {
		return out, newTableSink(d, source, deps.Pool).render(ctx, out)
	}
	sink, err := r.Sink(name, deps.Elastic, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	found, err := sink.Get(ctx, source.naming.Load().doc(key))
	switch {
	case elastic.IsMissing(err):
		out.NoIndex = true
	case err != nil:
		return nil, err
	case found != nil:
		out.Indexed, out.IndexedVersion = found.Source, found.Version
	}
	return out, nil
}
