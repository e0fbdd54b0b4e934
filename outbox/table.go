package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Table is an outbox table as the catalog has it.
type Table struct {
	Name       string
	ID, Entity IDKind
	Columns    []string // in their order
}

// ShapeError means that weft cannot work on a table.
type ShapeError struct{ Table, Why, Remedy string }

// Error implements error.
func (e *ShapeError) Error() string {
	return fmt.Sprintf("table %s %s: %s", e.Table, e.Why, e.Remedy)
}

const (
	// The table of a shard is a partition whose rows nobody but its leader works on.
	tableShape = `
select c.relkind::text, exists (select from pg_inherits where inhparent = c.oid),
       exists (select from pg_inherits where inhrelid = c.oid) and not (` + isShard + `)
from pg_class c where c.oid = to_regclass($1)`

	tableColumns = `
select attname, format_type(atttypid, null)
from pg_attribute
where attrelid = to_regclass($1) and attnum > 0 and not attisdropped
order by attnum`
)

// DescribeTable reads the shape of an outbox table. It returns a [*ShapeError] for a table
// that weft cannot work on.
func DescribeTable(ctx context.Context, db DB, name string, timeout time.Duration) (*Table, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	t := &Table{Name: name}
	var kind string
	var parent, child bool
	err := db.QueryRow(ctx, tableShape, name).Scan(&kind, &parent, &child)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, &ShapeError{name, "does not exist", "run `weft migrate up`, or `weft outbox create` for a table of your own, or correct search_path"}
	case err != nil:
		return nil, fmt.Errorf("shape of %s: %w", name, err)
	case kind != "r" || child:
		return nil, &ShapeError{name, "is not an ordinary table", "weft works on tables that are neither partitioned nor a partition"}
	case parent:
		return nil, &ShapeError{name, "has inheritance children", "weft would not see their rows; move the rows into one table"}
	}
	rows, err := db.Query(ctx, tableColumns, name)
	if err != nil {
		return nil, fmt.Errorf("columns of %s: %w", name, err)
	}
	var column, typ string
	types := map[string]string{}
	_, err = pgx.ForEachRow(rows, []any{&column, &typ}, func() error {
		t.Columns = append(t.Columns, column)
		types[column] = typ
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("columns of %s: %w", name, err)
	}
	kinds := map[string]IDKind{"uuid": KindUUID, "bigint": KindNumber, "text": KindText, "character varying": KindText}
	t.ID, t.Entity = kinds[types["id"]], kinds[types["entity_id"]]
	switch {
	case t.ID != KindUUID && t.ID != KindNumber:
		return nil, &ShapeError{name, fmt.Sprintf("has an id of type %q", types["id"]), "events need a uuid or a bigint"}
	case t.Entity == 0:
		return nil, &ShapeError{name, fmt.Sprintf("has an entity_id of type %q", types["entity_id"]), "entities need a uuid, a bigint or a text"}
	case types["behind"] == "" || types["discarded_at"] == "":
		return nil, &ShapeError{name, "lacks columns of this build", "run `weft migrate up`"}
	}
	return t, nil
}

// History returns the name of the table that finished events are moved to.
func (t *Table) History() string { return HistoryTable(t.Name) }

// HistoryTable returns the name of the history of an outbox table.
func HistoryTable(table string) string { return strings.TrimSuffix(table, "_events") + "_history" }

// leaseColumn returns the column of weft_lease that has the ids of the table's events.
func (t *Table) leaseColumn() string {
	if t.ID == KindNumber {
		return "numbers"
	}
	return "uuids"
}

// correlation returns the expression for the id that the producer's logs have, if the table has it.
func (t *Table) correlation() string {
	if slices.Contains(t.Columns, "correlation_id") {
		return "coalesce(left(o.correlation_id::text, 128), '')"
	}
	return "''"
}

// archived returns the values of an event's columns in the history.
func (t *Table) archived() string {
	as := map[string]string{
		"status": "'done'", "processed_at": "now()", "updated_at": "now()", "processing_started_at": "$5",
		"owner": "null", "lease_until": "null", "next_retry_at": "null", "behind": "null", "error_reason": "null", "error": "null", "reclaims": "0",
	}
	values := slices.Clone(t.Columns)
	for i, c := range values {
		if v, ok := as[c]; ok {
			values[i] = v
		} else {
			values[i] = "o." + pgx.Identifier{c}.Sanitize()
		}
	}
	return strings.Join(values, ", ")
}
