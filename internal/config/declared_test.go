package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/projections"
)

var anyFile = regexp.MustCompile(`\(/\S*weft\.yaml:`)

const declaredYAML = `projections:
  products:
    outbox: {table: product_outbox_events}
    source:
      query: |
        select id as entity_id, version, name
        from product where id = any($1)
      nulls: drop
    index: {name: products, mapping: MAPPING, pipeline: tidy}
  search_index_to_elastic:
outbox:
  finished: {products: archive}
`

func TestDeclaredProjection(t *testing.T) {
	t.Parallel()
	mapping := filepath.Join(t.TempDir(), "products.json")
	if err := os.WriteFile(mapping, []byte(`{"dynamic": "strict"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, strings.Replace(declaredYAML, "MAPPING", mapping, 1), []string{dsn})
	if err != nil {
		t.Fatal(err)
	}
	want := []projections.Declaration{{
		Name: "products", Table: "product_outbox_events", Query: "select id as entity_id, version, name\nfrom product where id = any($1)\n",
		DropNulls: true, Index: "products", Mapping: []byte(`{"dynamic": "strict"}`), Pipeline: "tidy",
	}}
	if d := cmp.Diff(want, c.Declared); d != "" {
		t.Errorf("declared (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"products", "search_index_to_elastic"}, c.Projections); d != "" {
		t.Errorf("projections (-want +got):\n%s", d)
	}
	if got := c.Outbox.FinishedOf("products"); got != "archive" {
		t.Errorf("finished: got %s", got)
	}
	if got := c.Registry().Table("products"); got != "product_outbox_events" {
		t.Errorf("table: got %q", got)
	}

	// Another layer chooses among those that are declared.
	c, err = load(t, strings.Replace(declaredYAML, "MAPPING", mapping, 1), []string{dsn, "WEFT_PROJECTIONS=products"})
	if err != nil || len(c.Projections) != 1 || c.Projections[0] != "products" {
		t.Errorf("chosen: got %v, %v", c.Projections, err)
	}
	// A change of a declaration is one of the setting.
	next, err := load(t, strings.NewReplacer("MAPPING", mapping, "version, name", "version, name, price").Replace(declaredYAML), []string{dsn, "WEFT_PROJECTIONS=products"})
	if err != nil || !cmp.Equal(c.Changed(next), []string{"projections"}) {
		t.Errorf("changed: got %v, %v", c.Changed(next), err)
	}
}

// shared declares two projections on one index, with these ids.
func shared(a, b string) string {
	const declared = "  %s: {outbox: {table: %s_outbox}, source: {query: 'select $1'}, index: {name: a, id: '%s'}}\n"
	return "projections:\n" + fmt.Sprintf(declared, "a", "a", a) + fmt.Sprintf(declared, "b", "b", b)
}

func TestDeclaredKeysAndSharedIndex(t *testing.T) {
	t.Parallel()
	c, err := load(t, strings.Replace(shared("a:{tenant}:{id}", "b:{tenant}:{id}"), "select $1'", "select $1, $2', key: [tenant, id]", 1), []string{dsn})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Declared[0]; !cmp.Equal(got.Key, []string{"tenant", "id"}) || got.ID != "a:{tenant}:{id}" {
		t.Errorf("declared: got %+v", got)
	}
}

// A program lists the projections that it registers beside the declared ones, without a value.
func TestRegisteredProjectionsBesideDeclaredOnes(t *testing.T) {
	t.Parallel()
	const declared = "projections:\n  a: {outbox: {table: a_outbox}, source: {query: 'select $1'}, index: {name: a}}\n"
	read := func(yaml string) (config.Config, string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "weft.yaml")
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Options{File: file, Environ: []string{dsn}, Registered: []string{"balances", "mine"}})
		if err == nil {
			return c, ""
		}
		return c, anyFile.ReplaceAllString(err.Error(), "(F:")
	}
	c, problem := read(declared + "  mine:\noutbox: {finished: {mine: archive}}\n")
	if problem != "" || !cmp.Equal(c.Projections, []string{"a", "mine"}) || len(c.Declared) != 1 || c.Outbox.FinishedOf("mine") != "archive" {
		t.Errorf("got projections %v, %d declared, %s", c.Projections, len(c.Declared), problem)
	}
	for yaml, want := range map[string]string{
		declared + "  min:\n": `projections.min: want a declaration with outbox.table, source.query and index.name; did you mean "mine"? (F:3)`,
		declared + "  mine: {outbox: {table: b_outbox}, source: {query: 'select $1'}, index: {name: b}}\n": "projections.mine: is registered by the program: leave its declaration out, or take another name (F:3)",
		declared + "  mine:\n  mine:\n": "projections.mine: is declared twice (F:4)",
	} {
		if _, problem := read(yaml); !strings.Contains(problem, want) {
			t.Errorf("%s: got %q, want %q", yaml, problem, want)
		}
	}
}

func TestDeclaredProblems(t *testing.T) {
	t.Parallel()
	const good = "outbox: {table: a_outbox}, source: {query: 'select $1'}, index: {name: a}"
	for _, tc := range []struct{ name, yaml, want string }{
		{"NoDeclaration", "projections:\n  products:\n", "projections.products: want a declaration with outbox.table, source.query and index.name (F:2)"},
		{"Misspelt", "projections:\n  search_index_to_elasic:\n", `did you mean "search_index_to_elastic"? (F:2)`},
		{"BuiltIn", "projections:\n  search_index_to_elastic: {" + good + "}\n", "projections.search_index_to_elastic: is built in"},
		{"Twice", "projections:\n  a: {" + good + "}\n  a: {" + good + "}\n", "projections.a: is declared twice (F:3)"},
		{"UnknownKey", "projections:\n  a: {" + good + ", sauce: 1}\n", "projections.a.sauce: unknown setting; want one of destination.table, index.id, index.mapping, index.name, index.pipeline, index.routing, index.settings, load, outbox.table, source.key, source.nulls, source.query (F:2)"},
		{"UnknownInner", "projections:\n  a: {outbox: {tabel: x}}\n", `projections.a.outbox.tabel: unknown setting; did you mean "outbox.table"? (F:2)`},
		{"Columns", "projections:\n  a: {outbox: {table: x, columns: {entity_id: product_id}}}\n", "projections.a.outbox.columns: cannot be set: weft works on an outbox table of its own column names; rename the columns of that table, or make one with `weft outbox create`"},
		{"NotAMapping", "projections:\n  a: {outbox: x}\n", "projections.a.outbox: want a mapping of settings here (F:2)"},
		{"NotAValue", "projections:\n  a: {outbox: {table: [x]}}\n", "projections.a.outbox.table: want a single value here (F:2)"},
		{"Nulls", "projections:\n  a: {source: {nulls: no}}\n", `projections.a.source.nulls: value "no": want one of keep, drop`},
		{"IndexName", "projections:\n  a: {index: {name: Upper}}\n", `projections.a.index.name: value "Upper"`},
		{"NoMapping", "projections:\n  a: {index: {mapping: /nowhere.json}}\n", `projections.a.index.mapping: value "/nowhere.json": file /nowhere.json: no such file or directory (F:2)`},
		{"Incomplete", "projections:\n  a: {outbox: {table: x}}\n", "projections.a: source.query is empty: want a query that returns entity_id, version and the fields of the document (F:2)"},
		{"SameIndex", "projections:\n  a: {" + good + "}\n  b: {outbox: {table: b_outbox}, source: {query: 'select $1'}, index: {name: a}}\n", "projections.b: writes to index a, as a does: their documents would replace one another; take an index of its own, or ids that begin differently, as with `index.id: b-{id}` and `index.id: a-{id}`"},
		{"IndexOfABuiltIn", "projections:\n  search_index_to_elastic:\n  a: {" + strings.Replace(good, "{name: a}", "{name: wordloom-search-index}", 1) + "}\n", "projections.a: writes to index wordloom-search-index, as search_index_to_elastic does"},
		{"PrefixOfAPrefix", shared("p-{id}", "p-x-{id}"), "projections.b: writes to index a, as a does"},
		{"SharedWithOtherRouting", shared("p-{id}", "q-{id}', routing: 't"), "projections.b: writes to index a, as a does, with another mapping or routing"},
		{"AmbiguousID", shared("p-{a}{b}", "q-{id}"), `projections.a: index.id "p-{a}{b}": nothing separates {a} from {b}, so two keys could make one id`},
		{"NoColumnInID", shared("p", "q-{id}"), `index.id "p" names no column`},
		{"UnclosedID", shared("p-{id", "q-{id}"), `index.id "p-{id": want the name of a column in braces`},
		{"SameTable", "projections:\n  a: {" + good + "}\n  b: {outbox: {table: a_outbox}, source: {query: 'select $1'}, index: {name: b}}\n", "projections.b: reads outbox table a_outbox, as a does"},
		{"None", "projections: {}\n", "projections: names no projection"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, tc.yaml, []string{dsn})
			if err == nil {
				t.Fatal("got no error")
			}
			if text := anyFile.ReplaceAllString(err.Error(), "(F:"); !strings.Contains(text, tc.want) || strings.Contains(text, "unknown name") {
				t.Errorf("got %s, want %q", text, tc.want)
			}
		})
	}
}
