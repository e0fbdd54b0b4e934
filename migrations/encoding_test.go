package migrations_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// Names of a database in another encoding are those that SQL has there.
func TestNamesOfADatabaseInAnotherEncoding(t *testing.T) {
	t.Parallel()
	dsn := testenv.DatabaseIn(t, "LATIN1")
	pool := testenv.Pool(t, dsn+"&client_encoding=UTF8")
	exec(t, pool, `create table "Café" ("clé" integer primary key)`)
	if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: `"Café"`}, true); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `insert into "Café" values (1)`)
	if got := one[string](t, pool, `select entity_type from caf_outbox_events`); got != "Café" {
		t.Errorf("type of the event: got %q, want the table's name", got)
	}
}
