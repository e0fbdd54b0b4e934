package projections

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
)

// plan looks at how PostgreSQL answers the query for a page of events: what it reads, and
// what makes two answers differ.
func (c *checker) plan(ctx context.Context, shape *declaredShape, events []outbox.Event) (*reading, error) {
	var plan []struct {
		Plan planNode `json:"Plan"`
	}
	err := c.source.ask(ctx, shape, "explain (verbose, format json) "+shape.sql, func(rows pgx.Rows) error {
		for rows.Next() {
			if err := json.Unmarshal(rows.RawValues()[0], &plan); err != nil {
				return fmt.Errorf("plan: %w", err)
			}
		}
		return rows.Err()
	}, shape.key.args(events)...)
	if err != nil {
		return nil, err
	}
	r := &reading{tables: map[string]bool{}, scanned: map[string]string{}, calls: map[string]bool{}, unordered: map[string]bool{}}
	for _, p := range plan {
		r.node(p.Plan, nil)
		if p.Plan.limited() {
			c.find("source.query", "it returns a limited number of rows: documents of the other entities of a batch would be deleted", "leave limit, offset and fetch out; a batch has its own bound")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.unordered)) {
		c.warn("source.query", name+" puts its values in no certain order, so the document of a row may differ each time it is written",
			"order them inside it, as in "+name+"(x order by x.id)")
	}
	if err := c.functions(ctx, slices.Sorted(maps.Keys(r.calls))); err != nil {
		return nil, err
	}
	return r, c.large(ctx, r.scanned)
}

// planNode is a node of a plan as EXPLAIN writes it.
type planNode map[string]any

func (n planNode) text(key string) string {
	s, _ := n[key].(string)
	return s
}

func (n planNode) inner() (out []planNode) {
	plans, _ := n["Plans"].([]any)
	for _, p := range plans {
		if m, ok := p.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// limited reports whether rows of all entities together are cut off.
func (n planNode) limited() bool {
	for inner := n.inner(); n.text("Node Type") != "Limit"; n, inner = inner[0], inner[0].inner() {
		if len(inner) != 1 {
			return false
		}
	}
	return true
}

// named are the keys of a node that hold names, and no expressions.
var named = []string{
	"Node Type", "Schema", "Relation Name", "Alias", "Parent Relationship", "Join Type", "Strategy", "Partial Mode",
	"Index Name", "Scan Direction", "CTE Name", "Subplan Name", "Function Name", "Plans",
}

var quotedText = regexp.MustCompile(`'(?:[^']|'')*'`)

// expressions returns what a node computes, without the texts in it.
func (n planNode) expressions() (out []string) {
	for key, v := range n {
		if slices.Contains(named, key) {
			continue
		}
		switch v := v.(type) {
		case string:
			out = append(out, quotedText.ReplaceAllString(v, "''"))
		case []any:
			for _, e := range v {
				out = append(out, quotedText.ReplaceAllString(fmt.Sprint(e), "''"))
			}
		}
	}
	return out
}

// reading is what a plan tells of a query.
type reading struct {
	tables    map[string]bool   // as SQL names them
	scanned   map[string]string // those read from end to end, with the column that an index is missing on
	calls     map[string]bool   // functions, as SQL names them
	unordered map[string]bool   // aggregates whose result depends on the order of rows
}

const sqlName = `(?:"(?:[^"]|"")+"|[A-Za-z_]\w*)`

var (
	callOf    = regexp.MustCompile(`(` + sqlName + `(?:\.` + sqlName + `)?)\(`)
	clockOf   = regexp.MustCompile(`\b(?:CURRENT_(?:TIMESTAMP|TIME|DATE|USER|ROLE)|LOCALTIME(?:STAMP)?|SESSION_USER)\b`)
	orderedBy = regexp.MustCompile(`(?i)\b((?:jsonb?|array|string|xml|jsonb?_object)_?agg(?:_strict|_unique)?|json_(?:array|object)agg)\(`)
)

// node notes what a node and those below it do; conditions are those of the joins above.
func (r *reading) node(n planNode, conditions []string) {
	kind := n.text("Node Type")
	if relation := n.text("Relation Name"); relation != "" && n.text("Schema") != "pg_catalog" {
		name := pgx.Identifier{n.text("Schema"), relation}.Sanitize()
		r.tables[name] = true
		if kind == "Seq Scan" {
			r.scanned[name] = columnIn(append([]string{n.text("Filter")}, conditions...), n.text("Alias"))
		}
	}
	for _, e := range n.expressions() {
		for _, m := range callOf.FindAllStringSubmatch(e, -1) {
			r.calls[m[1]] = true
		}
		for _, name := range clockOf.FindAllString(e, -1) {
			r.calls[name] = true
		}
		if kind == "Aggregate" && !sorted(n) {
			r.aggregates(e)
		}
	}
	for _, key := range []string{"Hash Cond", "Merge Cond", "Join Filter"} {
		if text := n.text(key); text != "" {
			conditions = append([]string{text}, conditions...)
		}
	}
	for _, inner := range n.inner() {
		r.node(inner, conditions)
	}
}

// sorted reports whether an aggregate over all rows reads them from a sort.
func sorted(n planNode) bool {
	for inner := n.inner(); n.text("Strategy") == "Plain" && len(inner) > 0; inner = inner[0].inner() {
		switch inner[0].text("Node Type") {
		case "Sort", "Incremental Sort":
			return true
		case "Subquery Scan":
		default:
			return false
		}
	}
	return false
}

// aggregates notes those in an expression that neither sort their input nor see each value
// once, which sorts it as well.
func (r *reading) aggregates(e string) {
	for _, at := range orderedBy.FindAllStringSubmatchIndex(e, -1) {
		depth, ordered := 1, strings.HasPrefix(e[at[1]:], "DISTINCT ")
		for i := at[1]; i < len(e) && depth > 0; i++ {
			switch {
			case e[i] == '(':
				depth++
			case e[i] == ')':
				depth--
			case depth == 1 && strings.HasPrefix(e[i:], " ORDER BY "):
				ordered = true
			}
		}
		if !ordered {
			r.unordered[strings.ToLower(e[at[2]:at[3]])] = true
		}
	}
}

// columnIn returns the first column of a table, by its alias, in conditions.
func columnIn(conditions []string, alias string) string {
	column := regexp.MustCompile(`\b` + regexp.QuoteMeta(pgIdentifier(alias)) + `\.(` + sqlName + `)`)
	for _, text := range conditions {
		if m := column.FindStringSubmatch(quotedText.ReplaceAllString(text, "''")); m != nil {
			return m[1]
		}
	}
	return ""
}

// pgIdentifier quotes a name as EXPLAIN does: only where it must.
func pgIdentifier(name string) string {
	if plainIdentifier.MatchString(name) {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}

var plainIdentifier = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// functionQuery reads what is known of functions: whether each result may differ, and whether
// they run statements of their own. Those of extensions do not know the application's tables; a
// plan does not say which of several functions of a name it is.
const functionQuery = `
select f.name, bool_and(p.provolatile = 'v' or n.nspname = 'pg_catalog' and p.proname in ('now', 'transaction_timestamp', 'statement_timestamp')),
       bool_or(l.lanname not in ('internal', 'c')
               and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'))
from unnest($1::text[]) as f(name) cross join parse_ident(f.name) as part
join pg_proc p on p.proname = part[cardinality(part)]
join pg_namespace n on n.oid = p.pronamespace
join pg_language l on l.oid = p.prolang
where case when cardinality(part) = 1 then pg_function_is_visible(p.oid) else n.nspname = part[1] end
group by f.name order by f.name`

// functions names those whose result is another each time, and those that the plan does not
// look into.
func (c *checker) functions(ctx context.Context, calls []string) error {
	differs := func(what string) {
		c.warn("source.query", what+" has another value each time, so the document of a row differs each time it is written",
			"take it out of the query, or keep the value in a column")
	}
	for _, name := range calls {
		if clockOf.MatchString(name) {
			differs(name)
		}
	}
	var name string
	var volatile, opaque bool
	err := each(ctx, c.pool, functionQuery, []any{calls}, []any{&name, &volatile, &opaque}, func() {
		switch {
		case opaque:
			c.warn("source.query", "function "+name+" may read tables that the plan does not show, and changes of these would write no event",
				"write its query out, or make sure that the outbox names with --children what it reads")
		case volatile:
			differs(name + "()")
		}
	})
	if err != nil {
		return fmt.Errorf("functions of source.query: %w", err)
	}
	return nil
}

// largeQuery reads how many rows tables have.
const largeQuery = `
select t.name, c.reltuples::bigint
from unnest($1::text[]) as t(name) join pg_class c on c.oid = to_regclass(t.name)
where c.reltuples > $2
order by t.name`

func (c *checker) large(ctx context.Context, scanned map[string]string) error {
	var name string
	var size int64
	err := each(ctx, c.pool, largeQuery, []any{slices.Sorted(maps.Keys(scanned)), largeTable}, []any{&name, &size}, func() {
		remedy := "make an index on the column by which the query looks its rows up, and analyze the table"
		if column := scanned[name]; column != "" {
			remedy = fmt.Sprintf("make an index: create index concurrently on %s (%s); if it is there, analyze the table", name, column)
		}
		c.find("source.query", fmt.Sprintf("for each batch it reads all %d rows of %s", size, name), remedy)
	})
	if err != nil {
		return fmt.Errorf("sizes of tables: %w", err)
	}
	return nil
}
