package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The parts of weft_verify: who compares.
const (
	VerifyCommand = "command" // weft verify
	VerifyScrub   = "scrub"   // the leader, a little at a time
)

// Verified is how far a comparison of a projection has come.
type Verified struct {
	calls
	projection string
	part       string

	EntityType, EntityID string // all entities up to this one have been looked at; empty before the first
	Report               json.RawMessage
}

// BeginVerify begins a comparison; with resume it goes on with one that has not finished.
func BeginVerify(ctx context.Context, db DB, projection, part string, resume bool, timeout time.Duration) (*Verified, error) {
	v := &Verified{calls: calls{db, timeout}, projection: projection, part: part}
	err := v.one(ctx, "begin of the comparison", statement("verify_begin.sql"), []any{projection, part, resume}, &v.EntityType, &v.EntityID, &v.Report)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Save records where it stands. It returns an error when somebody has removed the row.
func (v *Verified) Save(ctx context.Context, at Key, report any, finished bool) error {
	kept, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("report of the comparison: %w", err)
	}
	id := ""
	if !at.ID.IsZero() {
		id = at.ID.String()
	}
	const what = "progress of the comparison"
	n, err := v.exec(ctx, what, statement("verify_save.sql"), v.projection, v.part, at.Type, id, kept, finished)
	if err == nil && n != 1 {
		err = fmt.Errorf("%s: weft_verify has no row for %s any more", what, v.projection)
	}
	return err
}

// VerifiedAge says how old a comparison is.
type VerifiedAge struct {
	None     bool          // there never was one
	Begun    time.Duration // ago
	Finished bool
	Covered  time.Duration // no look at a document is older
}

// VerifyAge returns how old the last comparison is.
func VerifyAge(ctx context.Context, db DB, projection, part string, timeout time.Duration) (age VerifiedAge, err error) {
	var begun, covered float64
	err = calls{db, timeout}.one(ctx, "age of the comparison", statement("verify_age.sql"), []any{projection, part}, &begun, &age.Finished, &covered)
	if errors.Is(err, pgx.ErrNoRows) {
		return VerifiedAge{None: true}, nil
	}
	age.Begun, age.Covered = time.Duration(begun*float64(time.Second)), time.Duration(covered*float64(time.Second))
	return age, err
}
