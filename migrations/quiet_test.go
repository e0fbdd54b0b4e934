package migrations_test

import (
	"testing"
)

// Producers pay for nothing that weft adds to their commits: no trigger, no rule, no
// foreign key, and no notification, which would queue all commits behind one lock.
func TestUpAddsNothingToTheProducersCommit(t *testing.T) {
	t.Parallel()
	dsn, pool := setup(t)
	up(t, dsn)
	tables := query[string](t, pool, "select relname::text from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relname like '%_outbox_events'")
	if len(tables) != 2 {
		t.Fatalf("outbox tables %v, want two", tables)
	}
	for what, sql := range map[string]string{
		"triggers": `select tgname::text from pg_trigger t join pg_class c on c.oid = t.tgrelid
			where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relname <> 'weft_leader'`,
		"rules":        "select rulename::text from pg_rules where schemaname = current_schema()",
		"foreign keys": "select conname::text from pg_constraint where contype = 'f' and connamespace = quote_ident(current_schema())::regnamespace",
	} {
		if got := query[string](t, pool, sql); len(got) != 0 {
			t.Errorf("%s: got %v, want none", what, got)
		}
	}
}
