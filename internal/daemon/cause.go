package daemon

import (
	"errors"
	"fmt"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/leader"
)

// Cause translates the errors of packages that stand on nothing of ours into those
// that postgres.Diagnose and the exit codes know.
func Cause(err error) error {
	switch {
	case errors.Is(err, leader.ErrPooled):
		return postgres.ErrPooler
	case errors.Is(err, leader.ErrReadOnly):
		return postgres.ErrReadOnly
	case errors.Is(err, leader.ErrNotMigrated):
		return fmt.Errorf("weft's tables are missing from this database (%w)", postgres.ErrMigration)
	default:
		return err
	}
}
