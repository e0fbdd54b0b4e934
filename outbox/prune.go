package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// FinishedEvents are the done rows of one outbox table, and its history. Any host may remove
// and move them, with or without a leader: no other part of weft touches a done row, and
// every write here names that status, so that several hosts may work at once.
type FinishedEvents struct{ *access }

// OpenFinishedEvents returns the finished events of a table, whose shape it reads. One call
// takes at most timeout, unless it says otherwise.
func OpenFinishedEvents(ctx context.Context, db DB, table string, timeout time.Duration) (*FinishedEvents, error) {
	a, err := openAccess(ctx, db, table, timeout)
	return &FinishedEvents{a}, err
}

// CheckRemoval returns a [*ShapeError] when rows must not be deleted from the table, because
// something would react to the deletion or prevent it.
func (f *FinishedEvents) CheckRemoval(ctx context.Context) error {
	return f.checkFinished(ctx, Discard)
}

// Sweep is one pass over a table, from its first page to its last, for rows that are done.
// It reads by ranges of addresses, a few pages in a statement, so that it needs no index,
// holds no snapshot for longer than that, and costs the same beside any backlog. It skips
// rows that another session has locked: the next sweep finds them.
type Sweep struct {
	// Move moves rows to the history; else they are deleted.
	Move bool
	// Older limits a deletion to rows that were done this long ago; 0 takes all. With Move
	// it names the age from which a row is deleted rather than moved; 0 moves all.
	Older time.Duration
	// Rate is how many rows go in a second; 0 sets no limit.
	Rate int
	// Ease is how long the sweep rests after each statement, in multiples of the time that
	// the statement took.
	Ease int
	// CountOnly counts what would be deleted, and changes nothing.
	CountOnly bool
	// Progress is called after every statement.
	Progress func(Swept)
}

// Swept is the progress of a sweep.
type Swept struct {
	Page, Pages    int64 // pages that were read, of how many
	Moved, Deleted int64 // rows; with CountOnly Deleted are those that would be
}

const (
	sweepPages = 128  // of a statement: 1 MiB
	sweepRows  = 1000 // of a statement at most, so that its locks are held for milliseconds
)

// Sweep makes one pass over the table. The result is valid with an error, too: it counts the
// rows moved or deleted. Pages with a row whose day the history does not take, as beside a table that somebody
// has attached for a part of it, are passed over, and the error tells of the first.
func (f *FinishedEvents) Sweep(ctx context.Context, s Sweep) (out Swept, err error) {
	if err = f.one(ctx, "size", f.sql.get("prune_pages"), nil, &out.Pages); err != nil {
		return out, err
	}
	limit := sweepRows
	if s.Rate > 0 {
		limit = min(sweepRows, max(1, s.Rate/4))
	}
	var passed error
	for out.Page < out.Pages {
		start := time.Now()
		to := min(out.Page+sweepPages, out.Pages)
		picked, moved, deleted, err := f.sweepPages(ctx, s, out.Page, to, limit)
		if err != nil && (!s.Move || !lacksDay(err)) {
			return out, err
		}
		passed = cmp.Or(passed, err)
		out.Moved, out.Deleted = out.Moved+moved, out.Deleted+deleted
		if s.CountOnly || err != nil || picked < int64(limit) || moved+deleted == 0 {
			out.Page = to
		}
		if s.Progress != nil {
			s.Progress(out)
		}
		rest := time.Since(start) * time.Duration(s.Ease)
		if s.Rate > 0 {
			rest = max(rest, time.Duration(moved+deleted)*time.Second/time.Duration(s.Rate)-time.Since(start))
		}
		if err := pause(ctx, rest); err != nil {
			return out, err
		}
	}
	return out, passed
}

// lacksDay reports whether no partition of the history takes a row, or none can be made for it: a table has its name.
func lacksDay(err error) bool {
	return sqlState(err) == pgerrcode.CheckViolation || sqlState(err) == pgerrcode.DuplicateTable
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}

// sweepPages takes up to limit done rows off the pages in [from, to). It makes the days that
// the history lacks.
func (f *FinishedEvents) sweepPages(ctx context.Context, s Sweep, from, to int64, limit int) (picked, moved, deleted int64, err error) {
	name := "prune_delete"
	switch {
	case s.CountOnly:
		name = "prune_count"
	case s.Move:
		name = "prune_move"
	}
	first, last := pgtype.TID{BlockNumber: uint32(from), Valid: true}, pgtype.TID{BlockNumber: uint32(to), Valid: true}
	sweep := func() error {
		return f.one(ctx, "sweep", f.sql.get(name), []any{first, last, limit, orNull(s.Older)}, &picked, &moved, &deleted)
	}
	err = sweep()
	if s.Move && sqlState(err) == pgerrcode.CheckViolation { // no partition of the history takes one of the rows
		var days []time.Time
		days, err = all(ctx, f.calls, "days of rows", f.sql.get("prune_days"), pgx.RowTo[time.Time], first, last, orNull(s.Older))
		for i := 0; i < len(days) && err == nil; i++ {
			_, err = f.Attach(ctx, days[i])
		}
		if err == nil {
			err = sweep()
		}
	}
	return picked, moved, deleted, err
}

// ActionPrune is the audit's action of a removal of finished events.
const ActionPrune = "prune"

// BeginPruning writes into the audit that events are about to be removed, and by whom and why, and
// returns the entry's id.
func (f *FinishedEvents) BeginPruning(ctx context.Context, e AuditEntry) (id int64, err error) {
	e.Action = ActionPrune
	id, _, err = f.beginAction(ctx, e)
	return id, err
}

// EndPruning writes into the audit how many events were removed, and the outcome as JSON.
func (f *FinishedEvents) EndPruning(ctx context.Context, id, events int64, outcome any) error {
	return f.endAction(ctx, id, &events, outcome)
}

// ForgetRecords deletes one page of ended terms and audit entries that are older than keep. Terms
// that ended by a fault, replays, removals, and reclaims that ended in failed stay until they are
// older than failures. The newest 1,000 terms of a group stay always. It returns how many rows of
// the larger kind it has deleted: a caller goes on until that is less than page. keep must be a day
// or more, failures at least keep.
func ForgetRecords(ctx context.Context, db DB, keep, failures time.Duration, page int, timeout time.Duration) (n int, err error) {
	err = calls{db, timeout, "terms and actions"}.one(ctx, "old records", statement("forget"), []any{keep, failures, page}, &n)
	return n, err
}

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
