package daemon

import (
	"errors"
	"fmt"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/leader"
)

// Cause translates errors of package leader, which imports nothing of weft, into those that
// [postgres.Diagnose] and the exit codes know.
func Cause(err error) error {
	switch {
	case errors.Is(err, leader.ErrPooled):
		return postgres.ErrPooler
	case errors.Is(err, leader.ErrReadOnly):
		return postgres.ErrReadOnly
	case errors.Is(err, leader.ErrNotMigrated):
		return fmt.Errorf("weft's tables are missing from this database, or the role may not use their schema (%w)", postgres.ErrMigration)
	default:
		return err
	}
}
