package leader

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestWritersOfATerm(t *testing.T) {
	t.Parallel()

	fence := func(t *testing.T, conn *pgx.Conn, epoch int64) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), "begin"); err != nil {
			t.Fatal(err)
		}
		tag, err := conn.Exec(t.Context(), "select from weft_leader where group_name = $1 and epoch = $2 for key share", testGroup, epoch)
		if err != nil || tag.RowsAffected() != 1 {
			t.Fatalf("key share on epoch %d: got %v, %v; want 1 row", epoch, tag, err)
		}
	}
	stopped := func(t *testing.T, s *site) {
		t.Helper()
		old := s.join(t, steady("old"), nil)
		old.nextTerm(t)
		if err := old.stop(); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("DoNotHoldUpHeartbeats", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		a := s.join(t, steady("a"), nil)
		a.nextTerm(t)
		fence(t, s.connect(t, AppName(testGroup, "a", "work")), 1)
		renewed := s.state(t).RenewedAt
		testenv.Eventually(t, func() bool { return s.state(t).RenewedAt.Sub(renewed) > 2*time.Second }, "renewed for two seconds")
		if st := a.Status(); st.Role != RoleLeader || st.Epoch != 1 {
			t.Errorf("status: got %+v, want leader of epoch 1", st)
		}
	})

	t.Run("AreEndedWhenTheyHoldUpTheNextTerm", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		stopped(t, s)
		conn := s.connect(t, AppName(testGroup, "old", "work"))
		fence(t, conn, 1)
		audit, err := s.pool.Begin(t.Context()) // which is written when the next term has begun
		if err != nil {
			t.Fatal(err)
		}
		if _, err := audit.Exec(t.Context(), "lock table weft_audit in exclusive mode"); err != nil {
			t.Fatal(err)
		}

		b := s.join(t, steady("b"), nil)
		if got := b.nextTerm(t).Epoch(); got != 2 {
			t.Errorf("epoch: got %d, want 2", got)
		}
		if err := audit.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "commit"); err == nil {
			t.Error("commit of the old term: got nil, want a closed session")
		}
		testenv.Eventually(t, func() bool { return b.event("leader.session_ended") == 1 }, "the end is logged")
		if got := testutil.ToFloat64(b.met.sessionsEnded.WithLabelValues(outcomeEnded)); got != 1 {
			t.Errorf("sessions ended: got %v, want 1", got)
		}
		var actor, application string
		var from int64
		err = s.pool.QueryRow(t.Context(), `select actor, from_epoch, detail->>'application_name' from weft_audit
			where action = 'session_ended'`).Scan(&actor, &from, &application)
		if err != nil || actor != "b" || from != 1 || application != "weft/pair/old/work" {
			t.Errorf("audit: got %q, epoch %d, %q, %v; want by b on weft/pair/old/work of epoch 1", actor, from, application, err)
		}
		if terms, err := History(t.Context(), s.pool, testGroup, time.Time{}, 9); err != nil || len(terms) != 2 || terms[1].SessionsEnded != 1 {
			t.Errorf("history: %+v, %v, want that the term before had a session ended", terms, err)
		}
	})

	strangers := map[string]func(t *testing.T, s *site) *pgx.Conn{
		"OtherProgram": func(t *testing.T, s *site) *pgx.Conn { return s.connect(t, "psql") },
		"OtherGroup":   func(t *testing.T, s *site) *pgx.Conn { return s.connect(t, AppName("pairs", "old", "work")) },
		"OtherUser": func(t *testing.T, s *site) *pgx.Conn {
			role := pgx.Identifier{"weft_test_" + uuid.NewString()[:8]}
			s.exec(t, "create role "+role.Sanitize()+" superuser login")
			t.Cleanup(func() {
				if _, err := s.pool.Exec(context.Background(), "drop role "+role.Sanitize()); err != nil {
					t.Errorf("drop role: %v", err)
				}
			})
			cfg, err := pgx.ParseConfig(s.url)
			if err != nil {
				t.Fatal(err)
			}
			cfg.User = role[0]
			cfg.RuntimeParams["application_name"] = AppName(testGroup, "old", "work")
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closeConn(context.Background(), conn) })
			return conn
		},
	}
	for name, connect := range strangers {
		t.Run(name+"IsRefusedAndWaitedFor", func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			stopped(t, s)
			conn := connect(t, s)
			fence(t, conn, 1)

			b := s.join(t, steady("b"), nil)
			named := func() *observer.ObservedLogs { return b.logs.FilterMessageSnippet("new term waits for a session") }
			testenv.Eventually(t, func() bool { return named().Len() > 0 }, "the stranger is named")
			line := named().All()[0].ContextMap()
			if line["event"] != "leader.blocked" || line["pid"] != int32(conn.PgConn().PID()) || line["user"] == "" || line["application_name"] != conn.Config().RuntimeParams["application_name"] {
				t.Errorf("log line: got %v, want pid %d, user and application_name", line, conn.PgConn().PID())
			}
			// Longer than the lock timeout: the bump is tried again.
			testenv.Eventually(t, func() bool {
				return one[int](t, s, "select count(*)::int from pg_stat_activity where datname = current_database() and application_name = 'weft/pair/b/lock' and now() - backend_start > interval '1.2 s'") > 0
			}, "the bump has waited for a while")
			if st := b.Status(); st.Role != RoleStandby {
				t.Errorf("role while waiting: got %s, want standby", st.Role)
			}
			if _, err := conn.Exec(t.Context(), "commit"); err != nil {
				t.Errorf("commit of the stranger: %v", err)
			}
			if got := b.nextTerm(t).Epoch(); got != 2 {
				t.Errorf("epoch: got %d, want 2", got)
			}
			if got := testutil.ToFloat64(b.met.sessionsEnded.WithLabelValues(outcomeRefused)); got != 1 {
				t.Errorf("refused: got %v, want 1, however often it looked", got)
			}
			if got := testutil.ToFloat64(b.met.sessionsEnded.WithLabelValues(outcomeEnded)); got != 0 {
				t.Errorf("ended: got %v, want 0", got)
			}
		})
	}
}
