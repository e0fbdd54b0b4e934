package projections

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// guardQuery makes the rest of a batch, which is one transaction, read only, with a plan for
// the very entities and texts that depend on no setting of the role. The sessions of weft
// avoid sorts and scans and plan once, which suits its own statements alone. The rows of an
// entity are looked up by indexes: at the default cost of that, a batch would read all of a
// table of 200,000 rows.
const guardQuery = `
select set_config('transaction_read_only', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true),
       set_config('enable_sort', 'on', true), set_config('enable_incremental_sort', 'on', true), set_config('enable_seqscan', 'on', true),
       set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true), set_config('IntervalStyle', 'iso_8601', true),
       set_config('bytea_output', 'hex', true), set_config('extra_float_digits', '1', true), set_config('random_page_cost', '1.1', true),
       set_config('row_security', 'off', true)`

// ask runs a query under the guard, and f on its rows. It returns errShape where the source query
// answers with other columns than shape has.
func (s *declaredSource) ask(ctx context.Context, shape *declaredShape, sql string, f func(pgx.Rows) error, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(shape.probe, shape.key.args(nil)...)
	b.Queue(guardQuery + s.plan)
	b.Queue(sql, args...)
	answers := s.pool.SendBatch(ctx, b)
	err := shape.current(answers)
	if err == nil {
		_, err = answers.Exec()
	}
	if err == nil {
		var rows pgx.Rows
		if rows, err = answers.Query(); err == nil {
			err = f(rows)
			if errors.Is(err, elastic.ErrOverBudget) {
				cancel() // the rest is not worth its transfer; the connection goes with it
			}
			rows.Close()
			if err == nil {
				err = rows.Err()
			}
		}
	}
	if closed := answers.Close(); err == nil {
		err = closed
	}
	return err
}

// unhidden has the rest of a batch refuse to read where row security hides rows.
const unhidden = "select set_config('row_security', 'off', true)"

// rows runs a query on the source table, and refuses to run it where row security hides rows: a hidden
// row would count as one that is gone.
func (s *declaredSource) rows(ctx context.Context, sql string, args, into []any, found func()) error {
	b := &pgx.Batch{}
	b.Queue(unhidden)
	b.Queue(sql, args...)
	answers := s.pool.SendBatch(ctx, b)
	_, err := answers.Exec()
	if err == nil {
		var rows pgx.Rows
		if rows, err = answers.Query(); err == nil {
			_, err = pgx.ForEachRow(rows, into, func() error { found(); return nil })
		}
	}
	if closed := answers.Close(); err == nil {
		err = closed
	}
	if stale(err) {
		s.forget() // the outbox was made anew
	}
	return s.refused(err)
}

// visible returns an error where row security hides rows from the query.
func (s *declaredSource) visible(ctx context.Context, shape *declaredShape) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(unhidden)
	b.Queue(shape.probe, shape.key.args(nil)...)
	answers := s.pool.SendBatch(ctx, b)
	_, err := answers.Exec()
	if err == nil {
		err = shape.current(answers)
	}
	if closed := answers.Close(); err == nil {
		err = closed
	}
	return err
}
