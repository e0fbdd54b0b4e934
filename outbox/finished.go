package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Finished says whether done events are kept, archived or deleted. Failed and pending events
// always stay in the table.
//
// It may be changed between two runs of an instance, in every direction. With Archive and Discard
// the leader also moves or deletes, slowly, done rows that are still in the table (see
// [FinishedEvents.Sweep]). Rows in the history stay there.
type Finished string

// The values of outbox.finished.
const (
	Keep    Finished = "keep"    // they stay in the table
	Archive Finished = "archive" // they move to a history table of the same columns
	Discard Finished = "delete"  // they are deleted
)

// checkFinished returns a [*ShapeError] for a table whose rows must not leave it.
func (a *access) checkFinished(ctx context.Context, f Finished) error {
	e := &ShapeError{Table: a.table.Name}
	err := a.one(ctx, "triggers and rules", a.sql.get("unfit"), []any{a.table.Name, string(f), a.table.History()}, &e.Why, &e.Remedy)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err == nil:
		e.Why = fmt.Sprintf("cannot %s finished events: it %s", f, e.Why)
		err = e
	}
	return err
}
