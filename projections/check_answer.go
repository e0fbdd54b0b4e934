package projections

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// answerPage is how many entities are read, so that their documents can be looked at.
const answerPage = 200

// otherPlan follows guardQuery and turns off what the planner likes best, so that rows come by
// another way and in another order.
const otherPlan = `,
       set_config('enable_nestloop', 'off', true), set_config('enable_indexscan', 'off', true), set_config('enable_indexonlyscan', 'off', true),
       set_config('enable_hashagg', 'off', true)`

// answers reads documents of some entities twice, by different plans, and looks at them.
// ofEvents says that the entities come from events, so that some of them have rows.
func (c *checker) answers(ctx context.Context, shape *declaredShape, events []outbox.Event, ofEvents bool) error {
	events = events[:min(len(events), answerPage)]
	declaration := c.declaration
	if !ofEvents && !shape.key.typed { // the application gives out the versions of those
		declaration.Query = shape.key.numbered(declaration)
	}
	first, err := c.documents(ctx, newDeclaredSource(declaration, c.pool), events)
	if err != nil {
		return err
	}
	backwards := slices.Clone(events)
	slices.Reverse(backwards)
	other := newDeclaredSource(declaration, c.pool)
	other.plan = otherPlan
	second, err := c.documents(ctx, other, backwards)
	if err != nil {
		return err
	}
	slices.Reverse(second)
	rows, failing, differing := 0, "", ""
	for i := range first {
		id, a, b := events[i].Key.ID.String(), first[i], second[i]
		if a.found {
			rows++
		}
		if a.bad != nil && failing == "" {
			failing = fmt.Sprintf("entity %s: %s", id, a.bad)
		}
		if a.found && a.bad == nil && a.version < events[i].Version && c.older == "" {
			c.older = id
		}
		if a.found && b.found && a.bad == nil && b.bad == nil && a.version == b.version && differing == "" && !bytes.Equal(a.body, b.body) {
			differing = id
		}
	}
	none := fmt.Sprintf("it returns no row for any of %d entities", len(events))
	deleted, unseen := " that have events: their documents would be deleted", ", so their documents were not looked at"
	if len(events) == 1 {
		none, deleted, unseen = "it returns no row for the one entity", " that has events: its document would be deleted", ", so its document was not looked at"
	}
	switch {
	case rows == 0 && ofEvents:
		c.warn("source.query", none+deleted, "correct its joins and conditions")
	case rows == 0:
		c.warn("source.query", none+unseen,
			"correct its joins and conditions; where it names the versions with their schema, check again after `weft load "+c.declaration.Name+"`")
	}
	if failing != "" {
		c.warn("source.query", "some events would end in failed, as of "+failing, "correct the query or the row")
	}
	if differing != "" {
		c.find("source.query", "read twice by different plans, the document of entity "+differing+" was not the same though its version was",
			"order what it gathers, and leave out what differs each time")
	}
	c.values(events, first)
	return nil
}

// numbered returns the query of d with a version for each entity that is asked for, in place of the table with the
// versions: before the first load that has none, and the query would find no row.
func (k *entityKey) numbered(d Declaration) string {
	base, query := strings.TrimSuffix(d.Table, "_events"), d.query()
	columns, arrays := make([]string, len(k.types)), make([]string, len(k.types))
	for i, typ := range k.types {
		columns[i], arrays[i] = fmt.Sprintf("k%d", i+1), fmt.Sprintf("$%d::%s[]", i+1, typ)
	}
	id, routing := columns[0], ""
	if len(columns) > 1 {
		id = base + "_id(" + strings.Join(columns, ", ") + ")"
	}
	if k.placed {
		routing = "null::text as routing, "
	}
	return fmt.Sprintf("with %s_versions as (select %s as entity_id, 1::bigint as version, %sfalse as deleted, null::timestamptz as updated_at from unnest(%s) as k(%s))\nselect * from (\n%s\n) as q",
		base, id, routing, strings.Join(arrays, ", "), strings.Join(columns, ", "), query)
}

// answer is a source row with its document.
type answer struct {
	placed
	body []byte
}

// documents reads the rows of events. Rows beyond the budget of one round are left out.
func (c *checker) documents(ctx context.Context, source *declaredSource, events []outbox.Event) ([]answer, error) {
	a := &arena{}
	n, err := source.read(ctx, a, events)
	if err != nil {
		return nil, err
	}
	out := make([]answer, len(events))
	for i, row := range a.rows[:n] {
		out[i] = answer{placed: row}
		if row.to > row.from && row.bad == nil {
			out[i].body = a.json[row.from:row.to]
		}
	}
	return out, nil
}

// strangers tells of documents whose ids begin differently, as before index.id was changed: a comparison takes them for
// those of another projection. It looks at the page of those that were written first, and says nothing where it cannot.
func (c *checker) strangers(ctx context.Context, sink *elastic.Sink) {
	named := c.source.naming.Load()
	if named == nil || c.shared || named.template.prefix() == "" {
		return
	}
	prefix := named.template.prefix()
	page, next, err := sink.Scan(ctx, "")
	for err == nil && len(page) == 0 && next != "" {
		page, next, err = sink.Scan(ctx, next)
	}
	if i := slices.IndexFunc(page, func(d elastic.Document) bool { return !strings.HasPrefix(d.ID, prefix) }); i >= 0 {
		c.warn("index.id", fmt.Sprintf("the index has documents whose ids do not begin with %q, as %q: searches find them, and no event changes or deletes them", prefix, page[i].ID),
			"`weft rebuild "+c.declaration.Name+"` makes a new index without them, and moves the alias; or share the index in one configuration with what writes them")
	}
}
