package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pace bounds what a load does at once.
type Pace struct {
	Backlog int  // events that may be open while it goes on
	Page    int  // rows of one transaction
	Again   bool // also rows that have a version
	// Waits, if any, is called while the load waits, with how long it has for fewer events to
	// be open.
	Waits func(time.Duration)
}

// loadPause is how long a load waits when enough events are open.
const loadPause = 50 * time.Millisecond

// Run writes the events of all rows after last, which is zero for all of them, and calls f
// after each page. It returns nil at the end, and the first error, of f too.
func (l *Load) Run(ctx context.Context, last ID, pace Pace, f func(Page) error) error {
	for {
		if err := l.waitForRoom(ctx, pace); err != nil {
			return err
		}
		p, err := l.Page(ctx, last, pace.Page, pace.Again)
		if err == nil {
			last = p.Last
			err = f(p)
		}
		if err != nil || p.Read < pace.Page {
			return err
		}
	}
}

// waitForRoom returns once fewer events than the backlog are open.
func (l *Load) waitForRoom(ctx context.Context, pace Pace) error {
	for began := time.Now(); ; {
		open, err := l.Open(ctx, pace.Backlog)
		if err != nil || open < pace.Backlog {
			return err
		}
		if pace.Waits != nil {
			pace.Waits(time.Since(began))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(loadPause):
		}
	}
}

// Progress returns the last row that a load of the leader has read, zero before the first, and
// whether it has come to the end.
func (l *Load) Progress(ctx context.Context) (last ID, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var text string
	err = l.db.QueryRow(ctx, statement("load_progress.sql"), l.table.Name).Scan(&text, &done)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil && text == "":
		return ID{}, false, nil
	case err != nil:
		return ID{}, false, fmt.Errorf("progress of the load of %s: %w", l.table.Name, err)
	}
	last, err = ParseID(l.kind, text)
	return last, done, err
}

// RecordLoad writes down how far the load of the table has come, under the fence.
func (s *Store) RecordLoad(ctx context.Context, epoch int64, last ID, done bool) error {
	_, err := s.fenced(ctx, "progress of the load", "load_record", epoch, last.String(), done)
	return err
}
