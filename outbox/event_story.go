package outbox

import (
	"context"
	"slices"
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
	Record
	Place     Place
	RetryAt   *time.Time // nil when it is infinite: one that waits is parked then
	Behind    *int64     // version of the event that it was put off behind
	Holder               // zero unless it is in flight or claimed, and for a claim that names nobody
	Partition string     // of the history

	// Before are the entity's open events before this one, while it is open itself, the
	// earliest first, at most [MaxBefore]; More says that there are others.
	Before []Earlier
	More   bool

	Now time.Time // clock of the database
}

// Parked reports whether the event waits for ever, because somebody has set its retry time to infinity.
func (s *Story) Parked() bool { return s.Place == PlaceWaiting && s.RetryAt == nil }

// Holder has leased or claimed an event.
type Holder struct {
	Batch string // empty for another worker, or a build before leases
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
	RetryAt  *time.Time // nil without one, and when it is infinite
	Parked   bool       // its retry time is infinity, which somebody has set
	Behind   *int64
	InFlight bool
}

// MaxBefore is how many earlier events a story names.
const MaxBefore = 20

// Search says which partitions were searched for an event.
type Search struct {
	Partitions int       // of the history that were searched
	Since      time.Time // the beginning of the earliest of them; zero without one
	// Skipped names large partitions that could not be read in time: they have no index yet,
	// or are still being written.
	Skipped []string
	// Wants is the kind of the table's ids where the id is of another one, so that nothing was searched; zero otherwise.
	Wants IDKind
}

// Stories looks up events of one outbox table and its history. It only reads.
type Stories struct{ *FinishedEvents }

// OpenStories returns the stories of a table, whose shape it reads. One statement takes at
// most timeout.
func OpenStories(ctx context.Context, db DB, table string, timeout time.Duration) (*Stories, error) {
	f, err := OpenFinishedEvents(ctx, db, table, timeout)
	return &Stories{f}, err
}

// Find returns the story of an event, or nil when neither the table nor the history has it.
// It looks into the table by the primary key, then into the days of the history that have an
// index, the newest first, and last into those that have none, which it has to read whole.
// It finds nothing for an id of another kind than the table's.
func (s *Stories) Find(ctx context.Context, id ID) (*Story, Search, error) {
	id, err := ParseID(s.table.ID, id.String())
	if err != nil {
		return nil, Search{Wants: s.table.ID}, nil
	}
	story, err := s.read(ctx, "event", "story", &id)
	switch {
	case err != nil:
		return nil, Search{}, err
	case story == nil:
		return s.inHistory(ctx, id)
	case !slices.Contains([]Place{PlaceDone, PlaceFailed, PlaceOther}, story.Place):
		err = s.before(ctx, story)
	}
	return story, Search{}, err
}

// InTable returns the story of an event as far as its row and its holder tell it, or nil when the table does not have
// the event. It costs one step of the primary key.
func (s *Stories) InTable(ctx context.Context, id ID) (*Story, error) {
	id, err := ParseID(s.table.ID, id.String())
	if err != nil {
		return nil, err
	}
	return s.read(ctx, "event", "story", &id)
}

// read returns the event that a statement finds, nil for none.
func (s *Stories) read(ctx context.Context, what, name string, args ...any) (*Story, error) {
	story, _, err := first(ctx, s.calls, what, s.sql.get(name), pgx.RowToAddrOfStructByNameLax[Story], args...)
	return story, err
}

// before adds the earlier open events of the entity.
func (s *Stories) before(ctx context.Context, story *Story) (err error) {
	story.Before, err = all(ctx, s.calls, "earlier events", s.sql.get("story_before"), pgx.RowToStructByName[Earlier],
		story.EntityType, &story.EntityID, story.Version, &story.ID, MaxBefore+1)
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
		for _, p := range slices.Backward(parts) {
			if p.Indexed != indexed || p.Bytes == 0 {
				continue
			}
			story, err := s.inPartition(ctx, id, p)
			switch {
			case story != nil:
				return story, search, nil
			case !indexed && ctx.Err() == nil && Slow(err):
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
	story, err := s.read(ctx, "event in "+p.Name, "story_archived", &id, bound(p.From, pgtype.NegativeInfinity), bound(p.Until, pgtype.Infinity))
	if story != nil {
		story.Place, story.Partition = PlaceArchived, p.Name
	}
	return story, err
}
