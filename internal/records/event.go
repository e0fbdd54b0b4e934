package records

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Story is the JSON form of one event. Names and units stay; fields may be added.
type Story struct {
	Projection   string      `json:"projection"`
	Table        string      `json:"table"`
	ID           string      `json:"id"`
	Place        string      `json:"place"`  // ready, due, waiting, behind, in_flight, claimed, failed, done, archived, other
	Status       string      `json:"status"` // the column
	EntityType   string      `json:"entity_type"`
	EntityID     string      `json:"entity_id"`
	Op           string      `json:"op"`
	EventVersion int64       `json:"event_version"`
	CreatedAt    *time.Time  `json:"created_at"`
	UpdatedAt    *time.Time  `json:"updated_at"`
	ProcessedAt  *time.Time  `json:"processed_at"`
	NextRetryAt  *time.Time  `json:"next_retry_at"`
	Parked       bool        `json:"parked"` // it waits for ever, because somebody has set its retry time to infinity
	Behind       *int64      `json:"behind_version"`
	Attempts     int         `json:"attempts"`
	Reclaims     int         `json:"reclaims"`
	Reason       string      `json:"error_reason"`
	Error        string      `json:"error"`
	Lease        *StoryLease `json:"lease"` // in flight, or claimed by another worker
	Partition    string      `json:"partition"`
	TraceID      string      `json:"trace_id"`
	Traceparent  string      `json:"traceparent"`
	Tracestate   string      `json:"tracestate"`
	Replays      int         `json:"replay_count"`
	ReplayedAt   *time.Time  `json:"last_replayed_at"`
	ReplayedBy   string      `json:"last_replayed_by"`
	ReplayReason string      `json:"last_replayed_reason"`

	DiscardedAt   *time.Time `json:"discarded_at"` // null unless it was discarded
	DiscardedBy   string     `json:"discarded_by"`
	DiscardReason string     `json:"discarded_reason"`

	Quarantine *Quarantine `json:"quarantine"` // of its entity, while the event is open; null without one

	Before     []Earlier `json:"before"`      // open events of the entity that go first
	BeforeMore bool      `json:"before_more"` // there are more of them
	Advice     string    `json:"advice"`
}

// StoryLease is the holder of an event.
type StoryLease struct {
	Batch string     `json:"batch"` // empty for another worker
	Owner string     `json:"owner"`
	Epoch int64      `json:"epoch"` // 0 for another worker
	Since *time.Time `json:"since"`
	Until *time.Time `json:"until"`
}

// Earlier is an open event that goes before another one.
type Earlier struct {
	ID           string     `json:"id"`
	EventVersion int64      `json:"event_version"`
	Status       string     `json:"status"`
	InFlight     bool       `json:"in_flight"`
	NextRetryAt  *time.Time `json:"next_retry_at"`
	Parked       bool       `json:"parked"`
	Behind       *int64     `json:"behind_version"`
}

// KindError is an id that no table has, as its events have ids of another kind.
type KindError struct {
	ID    outbox.ID
	Wants []string // the kinds of the tables' ids
}

// Error implements error.
func (e *KindError) Error() string {
	return fmt.Sprintf("%q is no id of an event here: want a %s", e.ID, strings.Join(e.Wants, " or a "))
}

// FindEvent looks for an event in the tables of the configured projections. A number may be
// an event of more than one. Its error is a [KindError] where all tables have ids of another kind.
func FindEvent(ctx context.Context, db outbox.DB, sc Scope, id outbox.ID) (found []Story, searches []outbox.Search, err error) {
	found = []Story{}
	var wants []string
	for _, t := range sc.Tables {
		stories, err := outbox.OpenStories(ctx, db, t.Name, sc.Timeout)
		if err != nil {
			return nil, nil, err
		}
		s, search, err := stories.Find(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		searches = append(searches, search)
		if kind := search.Wants.String(); search.Wants != 0 && !slices.Contains(wants, kind) {
			wants = append(wants, kind)
		}
		if s == nil {
			continue
		}
		state, err := leader.ReadState(ctx, db, sc.Group)
		if err != nil {
			return nil, nil, err
		}
		e := describeEvent(s)
		e.Projection, e.Table = t.Projection, t.Name
		e.Advice = advise(s, t.Name, state, sc.MaxProcessing)
		holds, err := outbox.ReadHolds(ctx, db, sc.Group, t.Projection, sc.Timeout)
		if err != nil {
			return nil, nil, err
		}
		if q := holds.Quarantine(s.Key()); q != nil && waits(s.Place) {
			e.Quarantine = DescribeQuarantine(q)
			e.Advice = fmt.Sprintf("Wait: its entity is %s. weft release %s --by YOU --why \"…\" lets it go.", e.Quarantine.Line(), ShellWord(q.EntityType+":"+q.EntityID))
		}
		found = append(found, e)
	}
	if len(wants) > 0 && !slices.ContainsFunc(searches, func(s outbox.Search) bool { return s.Wants == 0 }) {
		return found, nil, &KindError{id, wants}
	}
	return found, searches, nil
}

// waits reports whether a quarantine holds up an event in such a place.
func waits(p outbox.Place) bool {
	return p == outbox.PlaceReady || p == outbox.PlaceDue || p == outbox.PlaceWaiting || p == outbox.PlaceBehind
}

func describeEvent(s *outbox.Story) Story {
	e := Story{
		ID: s.ID.String(), Place: string(s.Place), Status: s.Status, EntityType: s.EntityType, EntityID: s.EntityID.String(),
		Op: string(s.Op), EventVersion: s.Version, CreatedAt: UTC(s.CreatedAt), UpdatedAt: UTC(s.UpdatedAt), ProcessedAt: UTC(s.DoneAt),
		NextRetryAt: UTC(s.RetryAt), Parked: s.Parked(), Behind: s.Behind, Attempts: s.Attempts, Reclaims: s.Reclaims, Reason: s.Reason, Error: s.Error,
		Partition: s.Partition, TraceID: s.TraceID(), Traceparent: s.Traceparent, Tracestate: s.Tracestate, Replays: s.Replays,
		ReplayedAt: UTC(s.ReplayedAt), ReplayedBy: s.ReplayedBy, ReplayReason: s.ReplayReason, Before: []Earlier{}, BeforeMore: s.More,
		DiscardedAt: UTC(s.DiscardedAt), DiscardedBy: s.DiscardedBy, DiscardReason: s.DiscardReason,
	}
	if l := s.Holder; s.Place == outbox.PlaceInFlight || s.Place == outbox.PlaceClaimed {
		e.Lease = &StoryLease{Batch: l.Batch, Owner: l.Owner, Epoch: l.Epoch, Since: UTC(l.Since), Until: UTC(l.Until)}
	}
	for _, b := range s.Before {
		e.Before = append(e.Before, Earlier{ID: b.ID.String(), EventVersion: b.Version, Status: b.Status, InFlight: b.InFlight, NextRetryAt: UTC(b.RetryAt), Parked: b.Parked, Behind: b.Behind})
	}
	return e
}
