package rig

import (
	"context"
	"errors"
	"fmt"

	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// ErrEnvironment is the error for a database that is neither test nor dev.
var ErrEnvironment = errors.New("not a place for drills")

// CheckEnvironment returns the environment of a database, which its sentinel or else its name
// tells. It fails unless that is test or dev and, when want is not empty, want. The caller
// gives ctx a deadline.
func CheckEnvironment(ctx context.Context, db postgres.Querier, want string) (environment string, err error) {
	var other *postgres.EnvironmentError
	for _, env := range []string{"test", "dev"} {
		err := postgres.CheckEnvironment(ctx, db, env)
		if err == nil {
			return env, postgres.CheckEnvironment(ctx, db, want)
		}
		if !errors.As(err, &other) {
			return "", err
		}
	}
	return "", fmt.Errorf("%w: database %q is %s (by %s), and drills and loads run on test and dev only; if it is one of these, say so in row 1 of environment_sentinel",
		ErrEnvironment, other.Database, other.Have, other.Source)
}
