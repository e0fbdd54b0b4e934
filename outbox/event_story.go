package outbox

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Place is the state of an event.
type Place string

// The places.
const (
	PlaceReady    Place = "ready"     // it was never tried, and may go
	PlaceDue      Place = "due"       // its retry time has come, or it was sent again
	PlaceWaiting  Place = "waiting"   // for its retry time
	PlaceBehind   Place = "behind"    // put off behind an earlier event of its entity
	PlaceInFlight Place = "in_flight" // weft has leased it
	PlaceClaimed  Place = "claimed"   // another worker, or a build before leases, has claimed it
	PlaceFailed   Place = "failed"    // a dead letter
	PlaceDone     Place = "done"      // and still in the table
	PlaceArchived Place = "archived"  // done, and in the history
	PlaceOther    Place = "other"     // its status is none of weft's
)

// Story is everything that the database knows of one event.
type Story struct {
	Place  Place
	Status string // the column
	Row    Row
	Op     Op

	Attempts, Reclaims int
	CreatedAt          *time.Time // nil when it is infinite, as the other times
	UpdatedAt          *time.Time
	DoneAt             *time.Time
	RetryAt            *time.Time
	Behind             *int64 // version of the event that it was put off behind

	Lease     *StoryLease // in flight
	Claim     *StoryLease // claimed; without a batch
	Reason    string      // of the last attempt that did not end in done
	Error     string
	Partition string // of the history

	Traceparent, Tracestate string

	Replays                  int
	ReplayedAt               *time.Time
	ReplayedBy, ReplayReason string

	DiscardedAt                *time.Time // nil unless it was discarded
	DiscardedBy, DiscardReason string

	// Before are the entity's open events before this one, while it is open itself, the
	// earliest first, at most [MaxBefore]; More says that there are others.
	Before []Earlier
	More   bool

	Now time.Time // clock of the database
}

// StoryLease is the holder of an event.
type StoryLease struct {
	Batch string
	Owner string
	Epoch int64 // 0 for another worker
	Since *time.Time
	Until *time.Time
}

// Earlier is an open event that goes before another one.
type Earlier struct {
	ID       ID
	Version  int64
	Status   string
	RetryAt  *time.Time
	Behind   *int64
	InFlight bool
}

// MaxBefore is how many earlier events a story names.
const MaxBefore = 20

// TraceID returns the id of the producer's trace, or "".
func (s *Story) TraceID() string {
	if parts := strings.Split(s.Traceparent, "-"); len(parts) >= 4 && len(parts[1]) == 32 {
		return parts[1]
	}
	return ""
}

// Search says which partitions were searched for an event.
type Search struct {
	Partitions int       // of the history that were searched
	Since      time.Time // the beginning of the earliest of them; zero without one
	// Skipped names large partitions that could not be read in time: they have no index yet,
	// or are still being written.
	Skipped []string
}

// Stories looks up events of one outbox table and its history. It only reads.
type Stories struct{ *FinishedEvents }

// OpenStories returns the stories of a table, whose shape it reads. One statement takes at
// most timeout.
func OpenStories(ctx context.Context, db DB, table string, timeout time.Duration) (*Stories, error) {
	f, err := OpenFinishedEvents(ctx, db, table, timeout)
	if err != nil {
		return nil, err
	}
	return &Stories{f}, nil
}

// Find returns the story of an event, or nil when neither the table nor the history has it.
// It looks into the table by the primary key, then into the days of the history that have an
// index, the newest first, and last into those that have none, which it has to read whole.
// It finds nothing for an id of another kind than the table's.
func (s *Stories) Find(ctx context.Context, id ID) (*Story, Search, error) {
	id, err := ParseID(s.table.ID, id.String())
	if err != nil {
		return nil, Search{}, nil
	}
	story, err := s.inTable(ctx, id)
	if err != nil || story != nil {
		return story, Search{}, err
	}
	return s.inHistory(ctx, id)
}

// EventState is how far an event is.
type EventState struct {
	Status        string // the column
	Reason, Error string // of the last attempt that did not end in done
}

// Settled reports whether nothing more happens to the event by itself.
func (s EventState) Settled() bool { return s.Status == "done" || s.Status == "failed" }

// State returns how far an event is; ok is false when the table does not have it. It costs
// one step of the primary key.
func (s *Stories) State(ctx context.Context, id ID) (now EventState, ok bool, err error) {
	if id, err = ParseID(s.table.ID, id.String()); err != nil {
		return now, false, nil
	}
	err = s.one(ctx, "event", s.sql.get("settled"), []any{&id}, &now.Status, &now.Reason, &now.Error)
	if errors.Is(err, pgx.ErrNoRows) {
		return now, false, nil
	}
	return now, err == nil, err
}

// targets returns the destinations of the columns that story.sql and story_archived.sql share.
func (s *Story) targets() []any {
	return []any{&s.Row.ID, &s.Row.Key.Type, &s.Row.Key.ID, (*string)(&s.Op), &s.Row.Version, &s.Status, &s.Attempts, &s.Reclaims, &s.Replays,
		&s.CreatedAt, &s.UpdatedAt, &s.DoneAt, &s.Reason, &s.Error, &s.Traceparent, &s.Tracestate,
		&s.ReplayedAt, &s.ReplayedBy, &s.ReplayReason, &s.DiscardedAt, &s.DiscardedBy, &s.DiscardReason, &s.Now}
}

func (s *Stories) inTable(ctx context.Context, id ID) (*Story, error) {
	var (
		out          Story
		retry        pgtype.Timestamptz
		claim, lease StoryLease
	)
	err := s.one(ctx, "event", s.sql.get("story"), []any{&id}, append(out.targets(), &retry, &out.Behind,
		&claim.Owner, &claim.Epoch, &claim.Until, &claim.Since,
		&lease.Batch, &lease.Owner, &lease.Epoch, &lease.Since, &lease.Until)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if retry.Valid && retry.InfinityModifier == pgtype.Finite {
		out.RetryAt = &retry.Time
	}
	out.place(retry, claim, lease)
	switch out.Place {
	case PlaceDone, PlaceFailed, PlaceOther:
		return &out, nil
	default:
		return &out, s.before(ctx, &out)
	}
}

// place sets the state of a row of the table.
func (s *Story) place(retry pgtype.Timestamptz, claim, lease StoryLease) {
	switch s.Status {
	case "done":
		s.Place = PlaceDone
	case "failed":
		s.Place = PlaceFailed
	case "processing":
		s.Place, s.Claim = PlaceClaimed, &claim
	case "pending":
		switch {
		case lease.Batch != "":
			s.Place, s.Lease = PlaceInFlight, &lease
		case s.Behind != nil:
			s.Place = PlaceBehind
		case !retry.Valid:
			s.Place = PlaceReady
		case retry.InfinityModifier == pgtype.NegativeInfinity || retry.InfinityModifier == pgtype.Finite && !retry.Time.After(s.Now):
			s.Place = PlaceDue
		default:
			s.Place = PlaceWaiting
		}
	default:
		s.Place = PlaceOther
	}
}

// before adds the earlier open events of the entity.
func (s *Stories) before(ctx context.Context, story *Story) error {
	r := &story.Row
	var e Earlier
	err := s.each(ctx, "earlier events", s.sql.get("story_before"), []any{r.Key.Type, &r.Key.ID, r.Version, &r.ID, MaxBefore + 1},
		[]any{&e.ID, &e.Version, &e.Status, &e.RetryAt, &e.Behind, &e.InFlight}, func() {
			story.Before = append(story.Before, e)
			e = Earlier{}
		})
	if story.More = len(story.Before) > MaxBefore; story.More {
		story.Before = story.Before[:MaxBefore]
	}
	return err
}

// inHistory looks into the partitions one after the other: no index covers them all.
func (s *Stories) inHistory(ctx context.Context, id ID) (*Story, Search, error) {
	var search Search
	parts, _, err := s.Partitions(ctx)
	switch code := sqlState(err); {
	case code == pgerrcode.UndefinedFunction || code == pgerrcode.UndefinedTable: // a schema before histories, or without one
		return nil, search, nil
	case err != nil:
		return nil, search, err
	}
	for _, indexed := range []bool{true, false} {
		for i := len(parts) - 1; i >= 0; i-- {
			p := parts[i]
			if p.Indexed != indexed || p.Bytes == 0 {
				continue
			}
			story, err := s.inPartition(ctx, id, p)
			switch {
			case story != nil:
				return story, search, nil
			case !indexed && ctx.Err() == nil && (sqlState(err) == pgerrcode.QueryCanceled || errors.Is(err, context.DeadlineExceeded)):
				search.Skipped = append(search.Skipped, p.Name)
				continue
			case err != nil:
				return nil, search, err
			}
			search.Partitions++
			if search.Since.IsZero() || p.From.Before(search.Since) {
				search.Since = p.From
			}
		}
	}
	return nil, search, nil
}

func (s *Stories) inPartition(ctx context.Context, id ID, p Partition) (*Story, error) {
	bound := func(t time.Time, none pgtype.InfinityModifier) pgtype.Timestamptz {
		if t.IsZero() {
			return pgtype.Timestamptz{InfinityModifier: none, Valid: true}
		}
		return pgtype.Timestamptz{Time: t, Valid: true}
	}
	out := Story{Place: PlaceArchived, Partition: p.Name}
	bounds := []any{&id, bound(p.From, pgtype.NegativeInfinity), bound(p.Until, pgtype.Infinity)}
	err := s.one(ctx, "event in "+p.Name, s.sql.get("story_archived"), bounds, out.targets()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &out, nil
}
