package desk

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// silent is a database that answers nothing until its callers give up.
type silent struct {
	outbox.DB
	asked int
}

type silentRow struct{ err error }

func (r silentRow) Scan(...any) error { return r.err }

func (s *silent) QueryRow(ctx context.Context, _ string, _ ...any) pgx.Row {
	s.asked++
	<-ctx.Done()
	return silentRow{ctx.Err()}
}

func (s *silent) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return nil, s.QueryRow(ctx, sql, args...).Scan()
}

func TestViewersShareAReadingThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := &silent{}
		r := reader{o: Options{DB: db, Scope: records.Scope{Group: "books"}, Health: admin.NewHealth("books", "a"), Diagnose: error.Error}}
		samples := newSamples(prometheus.NewRegistry(), nil)
		for range 20 { // they wait for each other in the reader
			if o := r.overview(t.Context(), samples); o.Error == "" {
				t.Error("got an overview without an error")
			}
		}
		if db.asked != 1 {
			t.Errorf("the database was asked %d times, want once for all", db.asked)
		}
		time.Sleep(electionEvery)
		if r.overview(t.Context(), samples); db.asked != 2 {
			t.Errorf("the database was asked %d times, want once more a while later", db.asked)
		}
	})
}
