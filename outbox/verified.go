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
	db         DB
	projection string
	part       string
	timeout    time.Duration

	EntityType, EntityID string // all entities up to this one have been looked at; empty before the first
	Report               json.RawMessage
}

// BeginVerify begins a comparison; with resume it goes on with one that has not finished.
func BeginVerify(ctx context.Context, db DB, projection, part string, resume bool, timeout time.Duration) (*Verified, error) {
	v := &Verified{db: db, projection: projection, part: part, timeout: timeout}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := db.QueryRow(ctx, statement("verify_begin.sql"), projection, part, resume).Scan(&v.EntityType, &v.EntityID, &v.Report)
	if err != nil {
		return nil, fmt.Errorf("begin of the comparison: %w", err)
	}
	return v, nil
}

// Save records where it stands. It returns an error when somebody has removed the row.
func (v *Verified) Save(ctx context.Context, at Key, report any, finished bool) error {
	kept, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("report of the comparison: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	id := ""
	if !at.ID.IsZero() {
		id = at.ID.String()
	}
	tag, err := v.db.Exec(ctx, statement("verify_save.sql"), v.projection, v.part, at.Type, id, kept, finished)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("weft_verify has no row for %s any more", v.projection)
	}
	if err != nil {
		return fmt.Errorf("progress of the comparison: %w", err)
	}
	return nil
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
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var begun, covered float64
	err = db.QueryRow(ctx, statement("verify_age.sql"), projection, part).Scan(&begun, &age.Finished, &covered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return VerifiedAge{None: true}, nil
	case err != nil:
		return age, fmt.Errorf("age of the comparison: %w", err)
	}
	age.Begun, age.Covered = time.Duration(begun*float64(time.Second)), time.Duration(covered*float64(time.Second))
	return age, nil
}
