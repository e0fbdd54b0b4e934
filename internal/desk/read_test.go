package desk

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

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

// An action that takes a moment shows its result at once; nobody waits until a long one ends.
func TestAQuickActionIsWaitedFor(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]string{jobQuick / 2: jobDone, 2 * jobQuick: jobRunning} {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{log: zap.NewNop(), jobs: jobs{queue: make(chan func(context.Context))}}
			go s.jobs.work(t.Context())
			synctest.Wait()
			s.start(t.Context(), action{run: func(*Server, context.Context, plan, *Job) (string, error) {
				time.Sleep(took)
				return "", nil
			}}, plan{}, "alice", "y")
			if got := s.jobs.list(0)[0].State; got != want {
				t.Errorf("an action of %v: got %s, want %s", took, got, want)
			}
			time.Sleep(took)
		})
	}
}
