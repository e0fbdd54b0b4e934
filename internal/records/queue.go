package records

import (
	"context"
	"encoding/json"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Queue is the JSON form of what is in flight and what waits in one table, and of how far its
// projection has been compared. Names and units stay; fields may be added.
type Queue struct {
	Batches []Batch   `json:"batches"` // leased, the oldest first
	Waiting []Waiting `json:"waiting"` // for their retry time, the next first
	Verify  []Verify  `json:"verify"`
}

// Batch is one lease.
type Batch struct {
	ID       string    `json:"batch"`
	Owner    string    `json:"owner"`
	Epoch    int64     `json:"epoch"`
	Events   int       `json:"events"`
	LeasedAt time.Time `json:"leased_at"`
	Until    time.Time `json:"until"`
}

// Waiting is an event that is tried again later; its entity is blocked until then.
type Waiting struct {
	ID           string     `json:"id"`
	EntityType   string     `json:"entity_type"`
	EntityID     string     `json:"entity_id"`
	EventVersion int64      `json:"event_version"`
	Attempts     int        `json:"attempts"`
	Reason       string     `json:"error_reason"`
	NextRetryAt  *time.Time `json:"next_retry_at"`
	Behind       int64      `json:"put_off_behind"` // at most 1000 are counted
}

// Verify is a comparison of source and destination.
type Verify struct {
	Part       string          `json:"part"`   // command, or scrub for the leader's own
	Entity     string          `json:"entity"` // all up to this one have been looked at; empty before the first
	Report     json.RawMessage `json:"report"` // what weft verify --json prints
	BeganAt    time.Time       `json:"began_at"`
	UpdatedAt  time.Time       `json:"updated_at"`
	FinishedAt *time.Time      `json:"finished_at"`
	CoveredAt  *time.Time      `json:"covered_at"` // no look at a document is older
}

// ReadQueue reads at most most batches and waiting events of a table.
func ReadQueue(ctx context.Context, db outbox.DB, sc Scope, t Table, most int) (q Queue, err error) {
	q = Queue{Batches: []Batch{}, Waiting: []Waiting{}, Verify: []Verify{}}
	store, err := openStore(ctx, db, sc, t)
	if err != nil {
		return q, err
	}
	batches, err := store.Batches(ctx, most)
	if err != nil {
		return q, err
	}
	for _, b := range batches {
		b.LeasedAt, b.Until = b.LeasedAt.UTC(), b.Until.UTC()
		q.Batches = append(q.Batches, Batch(b))
	}
	waiting, err := store.Waiting(ctx, most)
	if err != nil {
		return q, err
	}
	for _, w := range waiting {
		q.Waiting = append(q.Waiting, Waiting{ID: w.ID.String(), EntityType: w.EntityType, EntityID: w.EntityID.String(), EventVersion: w.Version,
			Attempts: w.Attempts, Reason: w.Reason, NextRetryAt: UTC(w.RetryAt), Behind: w.Behind})
	}
	compared, err := outbox.ReadVerify(ctx, db, t.Projection, sc.Timeout)
	for _, v := range compared {
		out := Verify{Part: v.Part, Report: v.Report, BeganAt: v.BeganAt.UTC(), UpdatedAt: v.UpdatedAt.UTC(), FinishedAt: UTC(v.FinishedAt), CoveredAt: UTC(v.CoveredAt)}
		if v.EntityType != "" {
			out.Entity = v.EntityType + ":" + v.EntityID
		}
		q.Verify = append(q.Verify, out)
	}
	return q, err
}
