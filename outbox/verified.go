package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The parts of weft_verify: who compares. A further one, index, is no comparison.
const (
	VerifyCommand = "command" // weft verify
	VerifyScrub   = "scrub"   // the leader, a little at a time
)

// Verified is how far a comparison of a projection has come.
type Verified struct {
	calls
	part string

	EntityType, EntityID string // all entities up to this one have been looked at; empty before the first
	Report               json.RawMessage
}

// ComparingError means that another session keeps commands from comparing a projection.
type ComparingError struct {
	Projection, Session string // the name of the session; may be empty
	PID                 int
	Since               time.Time
}

// Error implements error.
func (e *ComparingError) Error() string {
	if e.PID == 0 { // it has ended since
		return fmt.Sprintf("another session has just compared projection %s: try again", e.Projection)
	}
	return fmt.Sprintf("session %q (pid %d) compares projection %s since %s: wait for it, or end it with select pg_terminate_backend(%d)",
		e.Session, e.PID, e.Projection, e.Since.UTC().Format(time.RFC3339), e.PID)
}

// HoldVerify keeps other commands from comparing a projection until the session ends, whose name it sets. It
// returns a [*ComparingError] when another session does so.
func HoldVerify(ctx context.Context, session DB, projection, name string, timeout time.Duration) error {
	other := ComparingError{Projection: projection}
	var alone bool
	err := calls{session, timeout, projection}.one(ctx, "begin of the comparison", statement("verify_hold"), []any{projection, name}, &alone, &other.Session, &other.PID, &other.Since)
	if err != nil || alone {
		return err
	}
	return &other
}

// FreeVerify ends what HoldVerify has begun in a session that is about to end: a busy server may take a moment to see
// that it has.
func FreeVerify(ctx context.Context, session DB, timeout time.Duration) error {
	_, err := calls{session, timeout, "all projections"}.exec(ctx, "end of the comparison", statement("verify_free"))
	return err
}

// BeginVerify begins a comparison; with resume it goes on with one that has not finished.
func BeginVerify(ctx context.Context, db DB, projection, part string, resume bool, timeout time.Duration) (*Verified, error) {
	v := &Verified{calls: calls{db, timeout, projection}, part: part}
	args := []any{projection, part, resume}
	return v, v.one(ctx, "begin of the comparison", statement("verify_begin"), args, &v.EntityType, &v.EntityID, &v.Report)
}

// Save records where it stands, and the report up to there. It returns an error when somebody has removed the row.
func (v *Verified) Save(ctx context.Context, at Key, report any, finished bool) error {
	const what = "progress of the comparison"
	kept, err := json.Marshal(report)
	if err != nil {
		return wrapped(what, v.of, err)
	}
	var n int64
	err = withLetters(kept, func(report []byte) (err error) {
		n, err = v.exec(ctx, what, statement("verify_save"), v.of, v.part, at.Type, at.ID.String(), report, finished)
		return err
	})
	if err == nil && n != 1 {
		err = fmt.Errorf("%s: weft_verify has no row for %s any more", what, v.of)
	}
	return err
}

// VerifyProgress says how far a comparison of a projection has come, and how old it is.
type VerifyProgress struct {
	Part                 string // VerifyCommand or VerifyScrub
	EntityType, EntityID string // as of [Verified]
	Report               json.RawMessage
	BeganAt, UpdatedAt   time.Time
	FinishedAt           *time.Time
	CoveredAt            *time.Time    // no look at a document is older; nil before the first full comparison
	Begun                time.Duration // since it began
	Covered              time.Duration // since CoveredAt, or since the first comparison began
}

// ReadVerify returns the comparisons of a projection that have been begun, by their parts.
func ReadVerify(ctx context.Context, db DB, projection string, timeout time.Duration) ([]VerifyProgress, error) {
	return all(ctx, calls{db, timeout, projection}, "comparisons", statement("verify_progress"), pgx.RowToStructByName[VerifyProgress], projection)
}

// WrittenIndex is the index into which the leaders of a projection write. weft_verify keeps it as a part of its own, without end.
type WrittenIndex struct {
	Index, UUID string        // empty where no leader has recorded one; the UUID tells it from another one of its name
	Was         string        // the index before, where no rebuild has put this one in its place; otherwise empty
	Began       time.Time     // when a leader saw it first, by the database's clock
	Age         time.Duration // since then
}

// ReadIndex returns what a leader has recorded last.
func ReadIndex(ctx context.Context, db DB, projection string, timeout time.Duration) (WrittenIndex, error) {
	i, _, err := first(ctx, calls{db, timeout, projection}, "index", statement("index_read"), pgx.RowToStructByName[WrittenIndex], projection)
	return i, err
}

// RecordIndex writes down what a leader has found, under the fence.
func (s *Store) RecordIndex(ctx context.Context, epoch int64, i WrittenIndex) error {
	_, err := s.fenced(ctx, "index", "index_record", epoch, []any{s.cfg.Projection, s.Shape().text(i.Index), i.UUID, s.Shape().text(i.Was)})
	return err
}
