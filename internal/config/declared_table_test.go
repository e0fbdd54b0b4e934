package config_test

import (
	"strings"
	"testing"
)

func TestDeclaredTable(t *testing.T) {
	t.Parallel()
	const a = "projections:\n  a: {outbox: {table: a_outbox}, source: {query: 'select $1'}, destination: {table: shop.card}}\n"
	c, err := load(t, a, []string{dsn})
	if err != nil || len(c.Declared) != 1 || c.Declared[0].Destination != "shop.card" || c.Declared[0].Index != "" {
		t.Errorf("declared %+v, %v, want a table and no index", c.Declared, err)
	}
	const b = "  b: {outbox: {table: b_outbox}, source: {query: 'select $1'}, destination: {table: %}}\n"
	if c, err = load(t, a+strings.Replace(b, "%", "shop.other", 1), []string{dsn}); err != nil || len(c.Declared) != 2 {
		t.Errorf("two tables: %+v, %v, want both", c.Declared, err)
	}
	for what, tc := range map[string]struct{ yaml, want string }{
		"SameTable": {a + strings.Replace(b, "%", "shop.card", 1), "projections.b: writes to table shop.card, as a does"},
		"Both":      {strings.Replace(a, "destination:", "index: {name: a}, destination:", 1), "want a table or an index"},
	} {
		if _, err := load(t, tc.yaml, []string{dsn}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want it to say %q", what, err, tc.want)
		}
	}
}
