package move

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// settled asks for an event of a shard as a role that may do nothing else.
func (w *world) settled(role string, db *pgxpool.Pool, shard, id string) (answer string, refused *pgconn.PgError) {
	w.t.Helper()
	tx, err := db.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(w.t.Context(), "set local role "+role); err != nil {
		w.t.Fatal(err)
	}
	err = tx.QueryRow(w.t.Context(), "select coalesce("+shard+".weft_settled('search_outbox_events', $1), 'open')", id).Scan(&answer)
	if refused, _ = errors.AsType[*pgconn.PgError](err); err != nil && refused == nil {
		w.t.Fatal(err)
	}
	return answer, refused
}

// application makes a role that has no right yet.
func (w *world) application() string {
	w.t.Helper()
	role := "app_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	w.exec(w.src, "create role "+role+" nologin")
	w.t.Cleanup(func() {
		_, err := w.dst.Exec(context.Background(), "drop owned by "+role)
		if err == nil {
			_, err = w.src.Exec(context.Background(), "drop owned by "+role+"; drop role "+role)
		}
		if err != nil {
			w.t.Errorf("drop role: %v", err)
		}
	})
	return role
}

// mayAsk lets the role execute the function, and nothing else.
func (w *world) mayAsk(role string, db *pgxpool.Pool) {
	w.t.Helper()
	for _, shard := range []string{"s_0", "s_1"} {
		w.exec(db, "grant usage on schema "+shard+" to "+role+"; grant execute on function "+shard+".weft_settled to "+role)
	}
}

func (w *world) event(db *pgxpool.Pool) (id string) {
	w.t.Helper()
	if err := db.QueryRow(w.t.Context(), "select id::text from s_1.search_outbox_events limit 1").Scan(&id); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// Who waits for an event is told where the shard is that has it, and not that the event is gone.
func TestSettledSaysWhereTheShardIs(t *testing.T) {
	t.Parallel()
	w := setup(t)
	role, id := w.application(), w.event(w.src)
	w.mayAsk(role, w.src)
	want := func(db *pgxpool.Pool, shard, id, answer, message, detail string) {
		t.Helper()
		got, err := w.settled(role, db, shard, id)
		switch {
		case message == "" && (err != nil || got != answer):
			t.Errorf("%s: got %q, %v, want %q", shard, got, err, answer)
		case message != "" && (err == nil || err.Code != "WF005" || err.Detail != detail || !strings.HasPrefix(err.Message, message) || !strings.Contains(err.Message, "ask there")):
			t.Errorf("%s: got %q, %v, want %q", shard, got, err, message)
		}
	}
	from, to := address(t, w.from), address(t, w.to)
	want(w.src, "s_1", id, "open", "", "")
	w.mustMove(w.there())
	w.mayAsk(role, w.dst)
	want(w.src, "s_1", id, "", "shard 1 is on "+to+" since 20", to)
	want(w.src, "s_0", uuid.NewString(), "gone", "", "")
	want(w.dst, "s_0", id, "", "shard 0 is on "+from+" since 20", from)
	want(w.dst, "s_1", id, "open", "", "")
	want(w.dst, "s_1", uuid.NewString(), "gone", "", "")
	w.exec(w.dst, "update s_1.search_outbox_events set status = 'failed' where id = $1", id)
	want(w.dst, "s_1", id, "failed", "", "")
	w.mustMove(w.back())
	want(w.src, "s_1", id, "failed", "", "")
	want(w.dst, "s_1", id, "", "shard 1 is on "+from+" since 20", from)
	w.exec(w.dst, "update s_1.weft_shard_away set arriving = true")
	want(w.dst, "s_1", id, "", "shard 1 is on its way here from "+from, from)
}

// A call that waits for the table while the shard leaves looks at what the move has left, not at what there was when it
// began.
func TestSettledThatWaitsForTheMoveIsToldOfIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.structure(t)
	role, id := w.application(), w.event(w.src)
	w.mayAsk(role, w.src)
	reader := w.hold(w.src, "select count(*) from s_1.search_outbox_events")
	done := w.begin(t.Context(), w.there())
	w.waits(w.src, "relation")
	asked := make(chan *pgconn.PgError, 1)
	go func() {
		for t.Context().Err() == nil {
			answer, err := w.settled(role, w.src, "s_1", id)
			if answer == "open" {
				continue
			}
			if err == nil {
				t.Errorf("got %q for an event that has moved", answer)
			}
			asked <- err
			return
		}
	}()
	testenv.Eventually(t, func() bool {
		return w.number(w.src, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%weft_settled%' and pid <> pg_backend_pid()") > 0
	}, "the call waits for the table")
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-asked; err == nil || err.Code != "WF005" || err.Detail != address(t, w.to) {
		t.Errorf("got %v, want the address of the target", err)
	}
	if got := <-done; got.err != nil {
		t.Error(got.err)
	}
}
