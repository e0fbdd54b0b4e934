package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The audit's actions of a pause and of its end.
const (
	ActionPause  = "pause"
	ActionResume = "resume"
)

// Pause says who has paused a projection, when and why.
type Pause struct {
	At  time.Time // database clock
	By  string
	Why string
	For time.Duration // until it was read
}

// String returns the pause in one line.
func (p Pause) String() string {
	return fmt.Sprintf("paused by %s at %s: %s", OneLine(p.By, 120), p.At.UTC().Format(time.RFC3339), OneLine(p.Why, maxWhy))
}

// PauseOrder says who pauses or resumes which projection of a group, and why.
type PauseOrder struct {
	Group, Projection string
	By                string // 1 to 120 characters
	Why               string // 1 to 1,000 characters
}

// PauseProjection has the leader of the group, and every later one, lease nothing for a
// projection, until [ResumeProjection]. It returns the pause, and whether it is a new one:
// a projection that is paused already stays so as it is.
func PauseProjection(ctx context.Context, db DB, o PauseOrder, timeout time.Duration) (now *Pause, begun bool, err error) {
	if begun, err = o.run(ctx, db, "pause", "pause_begin.sql", timeout); err == nil {
		now, err = ReadPause(ctx, db, o.Group, o.Projection, timeout)
	}
	return now, begun, err
}

// ResumeProjection ends a pause, and returns whether there was one.
func ResumeProjection(ctx context.Context, db DB, o PauseOrder, timeout time.Duration) (ended bool, err error) {
	return o.run(ctx, db, "resume", "pause_end.sql", timeout)
}

func (o PauseOrder) run(ctx context.Context, db DB, what, file string, timeout time.Duration) (bool, error) {
	if err := (LetterOrder{By: o.By, Why: o.Why}).Validate(); err != nil {
		return false, wrapped(what, o.Projection, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var n int
	err := db.QueryRow(ctx, statement(file), o.Group, o.Projection, o.By, o.Why).Scan(&n)
	return n > 0, wrapped(what, o.Projection, err)
}

// ReadPause returns the pause of a projection, nil when it is not paused.
func ReadPause(ctx context.Context, db DB, group, projection string, timeout time.Duration) (*Pause, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var (
		p       Pause
		seconds float64
	)
	err := db.QueryRow(ctx, statement("pause_read.sql"), group, projection).Scan(&p.At, &p.By, &p.Why, &seconds)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, wrapped("pause", projection, err)
	}
	p.For = max(0, time.Duration(seconds*float64(time.Second)))
	return &p, nil
}

// Paused is [ReadPause] for the store's own projection.
func (s *Store) Paused(ctx context.Context) (*Pause, error) {
	return ReadPause(ctx, s.db, s.cfg.Group, s.cfg.Projection, s.cfg.Timeout)
}
