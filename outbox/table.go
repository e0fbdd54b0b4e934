package outbox

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
)

// Table is an outbox table as the catalog has it.
type Table struct {
	Name       string
	ID, Entity IDKind
	Columns    []string // in their order

	unicode bool // the database holds every character
}

// ShapeError means that weft cannot work on a table.
type ShapeError struct{ Table, Why, Remedy string }

// Error implements error.
func (e *ShapeError) Error() string {
	return fmt.Sprintf("table %s %s: %s", e.Table, e.Why, e.Remedy)
}

// DescribeTable reads the shape of an outbox table. It returns a [*ShapeError] for a table
// that weft cannot work on.
func DescribeTable(ctx context.Context, db DB, name string, timeout time.Duration) (*Table, error) {
	t := &Table{Name: name}
	var kind string
	var parent, child bool
	var columns []string
	err := calls{db, timeout, name}.one(ctx, "shape", statement("shape"), []any{name}, &kind, &parent, &child, &t.Columns, &columns, &t.unicode)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, &ShapeError{name, "does not exist", "run `weft migrate up`, or `weft outbox create` for a table of your own, or correct search_path"}
	case err != nil:
		return nil, err
	case kind != "r" || child:
		return nil, &ShapeError{name, "is not an ordinary table", "weft works on tables that are neither partitioned nor a partition"}
	case parent:
		return nil, &ShapeError{name, "has inheritance children", "weft would not see their rows; move the rows into one table"}
	}
	types := map[string]string{}
	for i, c := range t.Columns {
		types[c] = columns[i]
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

// text returns a text with a question mark for each character that the database may not hold. It is for what
// servers say: a settle must not be refused for it.
func (t *Table) text(s string) string {
	if t.unicode {
		return s
	}
	return onlyASCII(s)
}

func onlyASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, s)
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

// list names the columns, after a prefix; those in own have another value.
func (t *Table) list(prefix string, own map[string]string) string {
	out := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		out[i] = cmp.Or(own[c], prefix+pgx.Identifier{c}.Sanitize())
	}
	return strings.Join(out, ", ")
}

// filedAt is the time by which a done row is filed in the history. A row without a plausible
// time, or with one in the future, is filed under now.
const filedAt = `case when o.processed_at >= '2000-01-02' and o.processed_at <= now() then o.processed_at else now() end`

// gaps are what the statements leave open, and what fills it for the table.
func (t *Table) gaps() *strings.Replacer {
	return strings.NewReplacer(
		"{table}", t.Name, "{history}", t.History(), "{id}", t.ID.String(), "{entity}", t.Entity.String(), "{ids}", t.leaseColumn(),
		"{columns}", t.list("", nil), "{width}", strconv.Itoa(len(t.Columns)), "{correlation}", t.correlation(), "{filed}", filedAt,
		"{moved}", t.list("o.", map[string]string{"processed_at": filedAt}),
		"{archived}", t.list("o.", map[string]string{ // as done_keep.sql sets them
			"status": "'done'", "processed_at": "now()", "updated_at": "now()", "processing_started_at": "$5", "reclaims": "0",
			"owner": "null", "lease_until": "null", "next_retry_at": "null", "behind": "null", "error_reason": "null", "error": "null",
		}),
	)
}

// Each statement on outbox tables is whole in a file, with its parameters described.
//
//go:embed sql/*.sql
var files embed.FS

// statements are the texts with a table's names filled in, so that each call sends the
// same string and meets the same prepared statement.
type statements map[string]string

// loadStatements returns the statements for t, by the names of their files.
func loadStatements(t *Table) statements {
	out := statements{}
	entries, err := files.ReadDir("sql")
	if err != nil {
		panic("outbox: embedded statements: " + err.Error()) // a broken build
	}
	fill := t.gaps()
	parts := strings.NewReplacer("{fence}", statement("fence"), "{record}", statement("record"), "{reclaimed}", statement("reclaimed"), "{suspect}", statement("suspect"))
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".sql")
		out[name] = fill.Replace(parts.Replace(statement(name)))
	}
	return out
}

// statement returns a file without its comments.
func statement(name string) string {
	raw, err := files.ReadFile(path.Join("sql", name+".sql"))
	if err != nil {
		panic("outbox: embedded statements: " + err.Error()) // a broken build
	}
	var lines []string
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}

// get returns the statement of a file; a name without one is a mistake in this package.
func (s statements) get(name string) string {
	text, ok := s[name]
	if !ok {
		panic(fmt.Sprintf("outbox: no statement is named %q", name))
	}
	return text
}
