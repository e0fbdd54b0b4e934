package testenv

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PostgresMajor returns the major version of the server of DATABASE_URL, for tests of what only newer
// ones have. They say so where they leave something out.
func PostgresMajor(t testing.TB) int {
	t.Helper()
	var number int
	err := onSession(t.Context(), server(t, databaseEnv), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&number)
	})
	if err != nil {
		t.Fatalf("testenv: version of PostgreSQL: %v", err)
	}
	return number / 10_000
}
