package projections

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Querier is the part of a pgxpool.Pool that projections use.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// each runs a query, puts the columns of each row into into, and calls found, if any.
func each(ctx context.Context, q Querier, sql string, args, into []any, found func()) error {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if found != nil {
			found()
		}
		return nil
	})
	return err
}

// queryTimeout bounds every statement of a projection.
const queryTimeout = 15 * time.Second

// DatabaseFault turns an error of the database into a Fault, so that an outage of Postgres ends
// no event in failed: it is for projections that an embedding program brings.
func DatabaseFault(ctx context.Context, what string, err error) error {
	return databaseFault(ctx, what, err)
}

// databaseFault turns an error of the database into a Fault, or returns the cause
// of ctx when that was cancelled:
//
//	no connection, shutdown, out of resources, read-only, I/O   db_unavailable, shared
//	no answer within the deadline                               db_unavailable, shared
//	serialization, deadlock, lock or statement timeout          db_contention
//	missing table or column, missing privilege                  unknown_exception, shared
//	anything else                                               unknown_exception
func databaseFault(ctx context.Context, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	if _, ok := errors.AsType[*outbox.Fault](err); ok || errors.Is(err, outbox.ErrFenced) {
		return err
	}
	f := &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("%s: %w", what, err)}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		// An error without a SQLSTATE is one of the connection.
		f.Reason, f.Shared = outbox.ReasonDBUnavailable, true
		return f
	}
	switch {
	case pg.Code == "40001", pg.Code == "40P01", pg.Code == "55P03", pg.Code == "57014":
		f.Reason = outbox.ReasonDBContention
	case pg.Code == "25006", strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "28"), strings.HasPrefix(pg.Code, "3D"),
		strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57P"), strings.HasPrefix(pg.Code, "58"), strings.HasPrefix(pg.Code, "25P0"):
		f.Reason, f.Shared = outbox.ReasonDBUnavailable, true
	case strings.HasPrefix(pg.Code, "42"):
		f.Shared = true
	}
	return f
}

// rowError says whether err is the fault of some row of the statement, and then how
// to put it: the server's message and names, never the values of its detail.
func rowError(err error) (string, bool) {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return "", false
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "22", "23", "54", "P0": // data, integrity, limits, raised by a trigger
	default:
		return "", false
	}
	detail := pg.Code + ": " + pg.Message
	if pg.Code[:2] == "22" {
		detail = pg.Code + ": " + dataError(pg.Code) // these messages repeat the value
	}
	for _, part := range []struct{ name, value string }{{"table", pg.TableName}, {"column", pg.ColumnName}, {"constraint", pg.ConstraintName}} {
		if part.value != "" {
			detail += ", " + part.name + " " + part.value
		}
	}
	return oneLine(detail), true
}

// dataError says what an error of data is, of those that a query's own computation ends in.
func dataError(state string) string {
	switch state {
	case pgerrcode.DivisionByZero:
		return "division by zero"
	case pgerrcode.InvalidArgumentForLogarithm, pgerrcode.InvalidArgumentForPowerFunction, pgerrcode.InvalidParameterValue, pgerrcode.SubstringError:
		return "a function refuses its argument"
	default:
		return "a value does not fit"
	}
}

// halves calls write with all items, and with their halves where a row is refused, down to the item at
// fault, which it passes to refused.
func halves[T any](items []T, write func([]T) error, refused func(T, string)) error {
	err := write(items)
	detail, ofRow := rowError(err)
	switch half := len(items) / 2; {
	case !ofRow:
		return err
	case half == 0:
		refused(items[0], detail)
		return nil
	default:
		if err := halves(items[:half], write, refused); err != nil {
			return err
		}
		return halves(items[half:], write, refused)
	}
}

// maxDetail is the longest detail of an outcome, in characters.
const maxDetail = 500

func oneLine(s string) string { return outbox.OneLine(s, maxDetail) }

// types and entities pass the keys of events as array parameters.
func types(events []outbox.Event) []string {
	out := make([]string, len(events))
	for i := range events {
		out[i] = events[i].Key.Type
	}
	return out
}

func entities(events []outbox.Event) any {
	return outbox.IDs(events, func(e *outbox.Event) *outbox.ID { return &e.Key.ID })
}
