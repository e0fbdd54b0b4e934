package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
)

// calls sends statements. Each call has timeout as its deadline, and its error names what it was
// for, and of which table or projection.
type calls struct {
	db      DB
	timeout time.Duration
	of      string
}

func (c calls) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// one scans the one row of an answer.
func (c calls) one(ctx context.Context, what, sql string, args []any, into ...any) error {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	return wrapped(what, c.of, c.db.QueryRow(ctx, sql, args...).Scan(into...))
}

// each scans every row of an answer and calls f after it.
func (c calls) each(ctx context.Context, what, sql string, args, into []any, f func()) error {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	rows, err := c.db.Query(ctx, sql, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, into, func() error { f(); return nil })
	}
	return wrapped(what, c.of, err)
}

// inOrder is each for a list that an index has in its order. Sorting is turned off: with old
// statistics the planner may expect few rows, and sort all there are for each page.
func (c calls) inOrder(ctx context.Context, what, sql string, args, into []any, f func()) error {
	var q pgx.Batch
	q.Queue("select set_config('enable_sort', 'off', true)")
	q.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, into, func() error { f(); return nil })
		return err
	})
	return c.batch(ctx, what, &q)
}

// batch sends statements as one transaction.
func (c calls) batch(ctx context.Context, what string, q *pgx.Batch) error {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	return wrapped(what, c.of, c.db.SendBatch(ctx, q).Close())
}

// all returns every row of an answer.
func all[T any](ctx context.Context, c calls, what, sql string, as pgx.RowToFunc[T], args ...any) (out []T, err error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	rows, err := c.db.Query(ctx, sql, args...)
	if err == nil {
		out, err = pgx.CollectRows(rows, as)
	}
	return out, wrapped(what, c.of, err)
}

// first returns the first row of an answer; ok is false without one.
func first[T any](ctx context.Context, c calls, what, sql string, as pgx.RowToFunc[T], args ...any) (row T, ok bool, err error) {
	found, err := all(ctx, c, what, sql, as, args...)
	if err != nil || len(found) == 0 {
		return row, false, err
	}
	return found[0], true, nil
}

// rawRow takes the values of a row as they are on the wire: it is scanned into instead of columns.
type rawRow func([][]byte) error

// ScanRow implements [pgx.RowScanner].
func (f rawRow) ScanRow(rows pgx.Rows) error { return f(rows.RawValues()) }

// exec returns how many rows a statement has changed.
func (c calls) exec(ctx context.Context, what, sql string, args ...any) (int64, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	tag, err := c.db.Exec(ctx, sql, args...)
	return tag.RowsAffected(), wrapped(what, c.of, known(err))
}

// withLetters calls f with a JSON text, and where the database lacks a character of it once more, with question marks.
// What servers say, and the ids of their documents, may have any.
func withLetters(text []byte, f func([]byte) error) error {
	err := f(text)
	if sqlState(err) == pgerrcode.UntranslatableCharacter {
		err = f([]byte(onlyASCII(escapes.Replace(string(text)))))
	}
	return err
}

// escapes finds the characters that [json.Marshal] escapes and a database may lack; no database has the first.
var escapes = strings.NewReplacer(`\\`, `\\`, `\u0000`, "?", `\u2028`, "?", `\u2029`, "?", `\ufffd`, "?")

func wrapped(what, of string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of %s: %w", what, of, err)
}

// access sends the statements on one outbox table.
type access struct {
	calls
	table *Table
	sql   statements
}

// openAccess reads the table's shape.
func openAccess(ctx context.Context, db DB, table string, timeout time.Duration) (*access, error) {
	switch {
	case !tableName.MatchString(table):
		return nil, fmt.Errorf("table %q: want a plain lower-case name", table)
	case timeout <= 0:
		return nil, errors.New("timeout: want more than 0")
	}
	t, err := DescribeTable(ctx, db, table, timeout)
	if err != nil {
		return nil, err
	}
	return &access{calls{db, timeout, table}, t, loadStatements(t)}, nil
}

// Shape returns what is known of the table.
func (a *access) Shape() *Table { return a.table }
