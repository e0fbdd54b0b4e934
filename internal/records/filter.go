package records

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Moment is a time that a person gives, or how long ago it was by the database's clock. It is
// a flag of the commands.
type Moment struct {
	at    time.Time
	ago   time.Duration
	given bool
}

// String returns nothing: a flag has no default.
func (m *Moment) String() string { return "" }

// Type names the values of the flag.
func (m *Moment) Type() string { return "time" }

// Set reads a duration, of whole days too, or a time.
func (m *Moment) Set(s string) error {
	at, err := time.Parse(time.RFC3339, s)
	if err == nil && !at.IsZero() { // which stands for none
		*m = Moment{at: at, given: true}
		return nil
	}
	ago, err := config.ParseAge(s)
	if err != nil || ago < 0 {
		return errors.New("want a duration like 90m or 7d, or a time like 2026-05-04T03:02:01Z")
	}
	*m = Moment{ago: ago, given: true}
	return nil
}

// Given reports whether Set has read one.
func (m *Moment) Given() bool { return m.given }

// Resolve returns the zero time for a moment that is not given.
func (m *Moment) Resolve(now time.Time) time.Time {
	switch {
	case !m.given:
		return time.Time{}
	case m.at.IsZero():
		return now.Add(-m.ago)
	default:
		return m.at
	}
}

// Now reads the database's clock, which writes the times in the tables.
func Now(ctx context.Context, db outbox.DB, timeout time.Duration) (now time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := db.QueryRow(ctx, "select clock_timestamp()").Scan(&now); err != nil {
		return now, fmt.Errorf("database clock: %w", err)
	}
	return now, nil
}

// EventID reads an id of an event, of either kind.
func EventID(text string) (outbox.ID, bool) {
	for _, kind := range []outbox.IDKind{outbox.KindUUID, outbox.KindNumber} {
		if id, err := outbox.ParseID(kind, text); err == nil {
			return id, true
		}
	}
	return outbox.ID{}, false
}

// Entity reads TYPE:ID, ID or TYPE; what is not named is zero.
func Entity(text string) (kind string, id outbox.ID, err error) {
	kind, rest, both := strings.Cut(text, ":")
	if !both {
		if id, ok := EventID(text); ok {
			return "", id, nil
		}
	}
	switch {
	case kind == "":
		return "", id, errors.New("want TYPE:ID, ID or TYPE")
	case both && rest == "":
		return "", id, errors.New("the id is missing; the events of an entity whose id is empty are named by their own ids")
	case both:
		id = outbox.Text(rest)
	}
	return kind, id, nil
}
