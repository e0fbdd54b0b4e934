package postgres_test

import (
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// TestReadRebuild holds that the application's own table is read, and that one that is
// missing or another is no fault.
func TestReadRebuild(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t, testenv.Database(t))
	finished := time.Date(2026, 2, 14, 16, 42, 7, 0, time.UTC)
	for _, step := range []struct {
		name, sql string
		want      postgres.Rebuild
	}{
		{"NoTable", "select", postgres.Rebuild{}},
		{"AnotherTable", "create table projection_status (projection_name varchar(100), last_rebuild_success text)", postgres.Rebuild{}},
		{"NoRow", `drop table projection_status; create table projection_status (projection_name varchar(100) primary key,
			last_rebuild_started_at timestamptz, last_rebuild_finished_at timestamptz, last_rebuild_duration_seconds float8,
			last_rebuild_success boolean, last_rebuild_error text, updated_at timestamptz not null default now())`, postgres.Rebuild{}},
		{"Unfinished", "insert into projection_status (projection_name) values ('p'), ('q')", postgres.Rebuild{}},
		{"Finished", `update projection_status set last_rebuild_finished_at = '2026-02-14 16:42:07Z', last_rebuild_duration_seconds = 12.5,
			last_rebuild_success = true where projection_name = 'p'`, postgres.Rebuild{Finished: finished, Duration: 12500 * time.Millisecond, Success: true}},
		{"Failed", "update projection_status set last_rebuild_success = false", postgres.Rebuild{Finished: finished, Duration: 12500 * time.Millisecond}},
	} {
		if _, err := pool.Exec(t.Context(), step.sql); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		got, err := postgres.ReadRebuild(t.Context(), pool, "p")
		if err != nil || !got.Finished.Equal(step.want.Finished) || got.Duration != step.want.Duration || got.Success != step.want.Success {
			t.Errorf("%s: got %+v, %v, want %+v", step.name, got, err, step.want)
		}
	}
}
