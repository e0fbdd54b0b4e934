package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is what CheckEnvironment needs; a pool and a connection have it.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// EnvironmentError says that the database belongs to another environment than
// this process.
type EnvironmentError struct {
	Want     string // of WORDLOOM_ENV
	Have     string // of the database
	Source   string // where Have was read
	Database string
}

// Error implements error.
func (e *EnvironmentError) Error() string {
	return fmt.Sprintf("WORDLOOM_ENV is %s, but database %q is %s (by %s): point DATABASE_URL at a %s database, set WORDLOOM_ENV=%s, or correct row 1 of environment_sentinel",
		e.Want, e.Database, e.Have, e.Source, e.Want, e.Have)
}

// CheckEnvironment returns nil when want is empty or the database is of that
// environment, and an *EnvironmentError when it is of another one. The sentinel
// row decides; without it the suffix _test or _dev of the database's name; without
// that the database is a sandbox. The caller gives ctx a deadline.
func CheckEnvironment(ctx context.Context, db Querier, want string) error {
	if want == "" {
		return nil
	}
	var name string
	var table bool
	if err := db.QueryRow(ctx, `select current_database(), to_regclass('environment_sentinel') is not null`).Scan(&name, &table); err != nil {
		return fmt.Errorf("environment guard: %w", err)
	}
	have, source := byName(name), "its name"
	if table {
		var row string
		switch err := db.QueryRow(ctx, `select env from environment_sentinel where id = 1`).Scan(&row); {
		case err == nil:
			have, source = row, "environment_sentinel"
		case errors.Is(err, pgx.ErrNoRows) || undefined(err):
			// Dropped in between, or empty: the name decides.
		default:
			return fmt.Errorf("environment guard: %w", err)
		}
	}
	if canonical(have) != canonical(want) {
		return &EnvironmentError{Want: canonical(want), Have: canonical(have), Source: source, Database: name}
	}
	return nil
}

func byName(database string) string {
	switch {
	case strings.HasSuffix(database, "_test"):
		return "test"
	case strings.HasSuffix(database, "_dev"):
		return "dev"
	default:
		return "sandbox"
	}
}

func canonical(env string) string {
	switch e := strings.ToLower(strings.TrimSpace(env)); e {
	case "development":
		return "dev"
	case "testing":
		return "test"
	default:
		return e
	}
}

func undefined(err error) bool {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pe.Code == "42P01"
}
