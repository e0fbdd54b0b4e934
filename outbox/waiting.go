package outbox

import (
	"context"
	"encoding/json"
	"time"
)

// Waiting is an event that is tried again at its retry time. Its entity is blocked until then.
type Waiting struct {
	ID       ID
	Key      Key
	Version  int64
	Attempts int
	Reason   string
	RetryAt  *time.Time // nil when it is infinite
	Behind   int64      // events of its entity that are put off behind it; at most 1000 are counted
}

// Waiting returns at most most events that wait for their retry time, the next first.
func (s *Store) Waiting(ctx context.Context, most int) (out []Waiting, err error) {
	var w Waiting
	o := s.opened()
	err = o.each(ctx, "waiting events", o.sql.get("waiting"), []any{most},
		[]any{&w.ID, &w.Key.Type, &w.Key.ID, &w.Version, &w.Attempts, &w.Reason, &w.RetryAt, &w.Behind}, func() {
			out = append(out, w)
			w = Waiting{}
		})
	return out, err
}

// Batch is one lease.
type Batch struct {
	ID       string
	Owner    string
	Epoch    int64
	Events   int
	LeasedAt time.Time
	Until    time.Time // as shown; a lease does not expire
}

// Batches returns at most most leases of the table, the oldest first.
func (s *Store) Batches(ctx context.Context, most int) (out []Batch, err error) {
	var b Batch
	o := s.opened()
	err = o.each(ctx, "leases", o.sql.get("batches"), []any{most},
		[]any{&b.ID, &b.Owner, &b.Epoch, &b.Events, &b.LeasedAt, &b.Until}, func() { out = append(out, b) })
	return out, err
}

// VerifyProgress says how far a comparison of a projection has come.
type VerifyProgress struct {
	Part                 string // VerifyCommand or VerifyScrub
	EntityType, EntityID string // all entities up to this one have been looked at; empty before the first
	Report               json.RawMessage
	BeganAt, UpdatedAt   time.Time
	FinishedAt           *time.Time
	CoveredAt            *time.Time // no look at a document is older; nil before the first full comparison
}

// ReadVerify returns the comparisons of a projection that have been begun.
func ReadVerify(ctx context.Context, db DB, projection string, timeout time.Duration) (out []VerifyProgress, err error) {
	var v VerifyProgress
	into := []any{&v.Part, &v.EntityType, &v.EntityID, &v.Report, &v.BeganAt, &v.UpdatedAt, &v.FinishedAt, &v.CoveredAt}
	err = calls{db, timeout}.each(ctx, "comparisons of "+projection, statement("verify_progress.sql"), []any{projection}, into, func() {
		out = append(out, v)
		v = VerifyProgress{}
	})
	return out, err
}
