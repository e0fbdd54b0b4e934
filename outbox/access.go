package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// calls sends statements. Each call has timeout as its deadline, and its error names what it was for.
type calls struct {
	db      DB
	timeout time.Duration
}

// one scans the one row of an answer.
func (c calls) one(ctx context.Context, what, sql string, args []any, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return noun(what, c.db.QueryRow(ctx, sql, args...).Scan(into...))
}

// each scans every row of an answer and calls f after it.
func (c calls) each(ctx context.Context, what, sql string, args, into []any, f func()) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	rows, err := c.db.Query(ctx, sql, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, into, func() error { f(); return nil })
	}
	return noun(what, err)
}

// exec returns how many rows a statement has changed.
func (c calls) exec(ctx context.Context, what, sql string, args ...any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	tag, err := c.db.Exec(ctx, sql, args...)
	return tag.RowsAffected(), noun(what, err)
}

func noun(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

func wrapped(what, table string, err error) error { return noun(what+" of "+table, err) }

// access sends the statements on one outbox table, which its errors name.
type access struct {
	calls
	table *Table
	sql   statements
}

// openAccess reads the table's shape.
func openAccess(ctx context.Context, db DB, table string, timeout time.Duration) (*access, error) {
	if timeout <= 0 {
		return nil, errors.New("timeout: want more than 0")
	}
	t, err := DescribeTable(ctx, db, table, timeout)
	if err != nil {
		return nil, err
	}
	return &access{calls: calls{db, timeout}, table: t, sql: loadStatements(t)}, nil
}

// Shape returns what is known of the table.
func (a *access) Shape() *Table { return a.table }

func (a *access) one(ctx context.Context, what, sql string, args []any, into ...any) error {
	return a.calls.one(ctx, what+" of "+a.table.Name, sql, args, into...)
}

func (a *access) each(ctx context.Context, what, sql string, args, into []any, f func()) error {
	return a.calls.each(ctx, what+" of "+a.table.Name, sql, args, into, f)
}

func (a *access) exec(ctx context.Context, what, sql string, args ...any) (int64, error) {
	return a.calls.exec(ctx, what+" of "+a.table.Name, sql, args...)
}

// inOrder is each for a list that an index has in its order. Sorting is turned off: with old
// statistics the planner may expect few rows, and sort all there are for each page.
func (a *access) inOrder(ctx context.Context, what, sql string, args, into []any, f func()) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var q pgx.Batch // one transaction
	q.Queue("select set_config('enable_sort', 'off', true)")
	q.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, into, func() error { f(); return nil })
		return err
	})
	return wrapped(what, a.table.Name, a.db.SendBatch(ctx, &q).Close())
}
