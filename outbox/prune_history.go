package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Partition is one partition of a history, as a rule a UTC day.
type Partition struct {
	Name string // with its schema, as SQL has both, where that is not the history's
	// From and Until are its bounds: processed_at is From or later, and before Until. The zero
	// time is no bound.
	From, Until time.Time
	Closed      bool // it is over for [closedAfter], by the clock of the database: nothing writes it but moves
	Indexed     bool // an event is found in it by its id without reading all of it
	Detaching   bool // somebody has begun to detach it
	Bytes       int64
	Estimate    int64 // of its rows, by the server's statistics
}

// closedAfter is how long after its end a day counts as closed: a settle that began before
// midnight is over by then.
const closedAfter = 10 * time.Minute

// Partitions lists the partitions of the history, the earliest first, and the database's time.
func (f *FinishedEvents) Partitions(ctx context.Context) (out []Partition, now time.Time, err error) {
	var (
		p           Partition
		from, until pgtype.Timestamptz
		into        = []any{&p.Name, &from, &until, &p.Indexed, &p.Detaching, &p.Bytes, &p.Estimate, &now}
	)
	err = f.each(ctx, "history", f.sql.get("history_partitions"), nil, into, func() {
		if p.Name == "" {
			return
		}
		p.From, p.Until = from.Time, until.Time // zero where infinite
		p.Closed = !p.Until.IsZero() && p.Until.Add(closedAfter).Before(now)
		out = append(out, p)
	})
	return out, now, err
}

// Attach makes what the UTC day that a time is in lacks of partitions, and reports whether
// there was something. The day may be at most a month ahead.
func (f *FinishedEvents) Attach(ctx context.Context, day time.Time) (made bool, err error) {
	err = f.one(ctx, "day of the history", f.sql.get("history_attach"), []any{day}, &made)
	return made, err
}

// IndexClosed builds the index of a partition that is over, and reports whether there was
// none. The build takes limit at most. Meanwhile it blocks moves into that day, and holds
// back vacuum.
func (f *FinishedEvents) IndexClosed(ctx context.Context, partition string, limit time.Duration) (built bool, err error) {
	var q pgx.Batch
	q.Queue("select set_config('statement_timeout', $1, true)", strconv.FormatInt(limit.Milliseconds(), 10))
	q.Queue(f.sql.get("history_index"), partition).QueryRow(func(row pgx.Row) error { return row.Scan(&built) })
	err = calls{f.db, limit, f.of}.batch(ctx, "index of the history", &q)
	return built, err // in this order: the call sets built
}

// dropTries is how often Drop asks for a lock that it does not wait for.
const dropTries = 100

// Drop drops a partition that is over, with the rights of the history's owner, and reports
// whether it was there: another call may remove it at the same time. It never waits for a lock, so
// that nobody waits behind it: it returns an error when the history was in use at each of a hundred tries.
func (f *FinishedEvents) Drop(ctx context.Context, partition string) (dropped bool, err error) {
	for try := 0; ; try++ {
		err = f.one(ctx, "drop of a day of the history", f.sql.get("history_drop"), []any{partition}, &dropped)
		switch sqlState(err) {
		case pgerrcode.UndefinedTable:
			return false, nil
		case pgerrcode.LockNotAvailable:
		case pgerrcode.ObjectNotInPrerequisiteState, pgerrcode.SyntaxError: // another call takes it away: its bounds, and its name, go first
		default:
			return dropped, err
		}
		if try == dropTries {
			return false, err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return false, err
		}
	}
}

// Owned reports whether the role of the session owns the history.
func (f *FinishedEvents) Owned(ctx context.Context) (yes bool, err error) {
	err = f.one(ctx, "owner of the history", f.sql.get("history_owned"), nil, &yes)
	return yes, err
}

// DetachedError tells of a day that was detached from its history and not dropped: it is a table of its own now.
type DetachedError struct {
	Table string // as SQL has it
	err   error
}

// Error implements error.
func (e *DetachedError) Error() string {
	return fmt.Sprintf("drop %s, which is a table of its own now: %v: run `drop table %s`", e.Table, e.err, e.Table)
}

// Unwrap returns why it was not dropped.
func (e *DetachedError) Unwrap() error { return e.err }

// DetachAndDrop detaches a partition without blocking other sessions and drops it, and reports whether it was there:
// another call may have removed it. session is one session outside of a transaction, such as a *pgx.Conn; its role must
// own the history. It waits for transactions that use the history as long as the session's statement_timeout says; when
// that is not enough the partition stays half-detached, and the next call goes on. One that is detached and cannot be
// dropped is left to the caller, and the error is a [DetachedError]; the end of ctx does not keep it from being dropped.
// Beside a default partition PostgreSQL detaches none without blocking others: there it does what
// [FinishedEvents.Drop] does.
func (f *FinishedEvents) DetachAndDrop(ctx context.Context, session DB, p Partition) (dropped bool, err error) {
	var name string // as SQL has it: somebody may have attached a table of another schema
	err = f.one(ctx, "partition "+p.Name, f.sql.get("history_partition"), []any{p.Name}, &name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	}
	how := "concurrently"
	if p.Detaching {
		how = "finalize"
	}
	_, err = session.Exec(ctx, "alter table "+f.table.History()+" detach partition "+name+" "+how)
	switch {
	case sqlState(err) == pgerrcode.ObjectNotInPrerequisiteState: // beside a default partition none is detached so
		return f.Drop(ctx, p.Name)
	case sqlState(err) == pgerrcode.UndefinedTable: // another call was quicker
		return false, nil
	case err != nil:
		return false, fmt.Errorf("detach %s: %w", p.Name, err)
	}
	_, err = session.Exec(context.WithoutCancel(ctx), "drop table "+name)
	switch {
	case sqlState(err) == pgerrcode.UndefinedTable:
		return false, nil
	case err != nil:
		return false, &DetachedError{name, err}
	}
	return true, nil
}

// Lacking names the columns of the table that its history lacks: while there are any,
// finished events stay in the table.
func (f *FinishedEvents) Lacking(ctx context.Context) ([]string, error) {
	return all(ctx, f.calls, "columns of the history", f.sql.get("history_lacks"), pgx.RowTo[string])
}
