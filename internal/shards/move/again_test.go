package move

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// A call whose plan is older than what another one has done since removes nothing.
func TestMoveLooksAgainBeforeItClears(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.structure(t)
	plan, err := Check(t.Context(), w.there())
	if err != nil {
		t.Fatal(err)
	}
	g := w.gate(w.dst, "s_1.weft_audit", true)
	done := w.begin(t.Context(), w.there())
	g.reached()
	g.kill()
	if got := <-done; !errors.Is(got.err, ErrClosed) {
		t.Fatalf("got %v, want that the target is not open", got.err)
	}
	g.open()
	const rows = "select count(*) from s_1.search_index"
	want := w.number(w.dst, rows)
	_, err = Run(t.Context(), w.there(), plan)
	if refused, ok := errors.AsType[*migrations.OutboxError](err); !ok || !strings.Contains(refused.Why, "another call has moved it meanwhile") {
		t.Errorf("an old plan: got %v, want a refusal", err)
	}
	if got := w.number(w.dst, rows); got != want || want == 0 {
		t.Errorf("got %d rows in the target after the refusal, want %d", got, want)
	}
	w.mustMove(w.there())
	w.home(w.dst, w.src)
}

// A transaction that has read the shard and waits to write it does not stop the move.
func TestMoveGetsPastWhoReadsAndThenWrites(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.structure(t)
	entity := w.entity(moved)
	tx := w.hold(w.src, "select count(*) from search_index")
	g := w.gate(w.dst, "s_1.search_index", false)
	o := w.there()
	o.Wait = time.Minute
	var said []string
	o.Progress = func(p Progress) { said = append(said, p.What) }
	done := w.begin(t.Context(), o)
	g.reached()
	written := make(chan error, 1)
	go func() {
		err := write(t.Context(), tx, entity)
		written <- errors.Join(err, tx.Commit(t.Context()))
	}()
	testenv.Eventually(t, func() bool {
		return w.number(w.src, "select count(*) from pg_stat_activity where datname = current_database() and application_name <> 'weft/shards' and wait_event_type = 'Lock' and wait_event = 'relation'") > 0
	}, "the writer waits at the source")
	g.open()
	if err := <-written; err != nil {
		t.Errorf("write after a read: %v", err)
	}
	if got := <-done; got.err != nil {
		t.Fatal(got.err)
	}
	if !slices.Contains(said, "waiting for the transactions that write or read shard 1") {
		t.Errorf("got %q, want that readers are waited for", said)
	}
	if got := w.number(w.dst, "select count(*) from search_index where entity_id = $1", entity); got != 1 {
		t.Errorf("got %d rows in the target of what was written meanwhile, want 1", got)
	}
	w.home(w.dst, w.src)
}

// The side that is done first idles in its transaction for as long as the other one works.
func TestMoveMayIdleAsLongAsAStatementRuns(t *testing.T) {
	t.Parallel()
	conn, err := connect(t.Context(), testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer closeSession(t.Context(), conn)
	for name, want := range map[string]string{"idle_in_transaction_session_timeout": "1d", "statement_timeout": "1d", "tcp_user_timeout": "86400000"} {
		var got string
		if err := conn.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %s", name, got, err, want)
		}
	}
}

// A server that does not answer any more ends the move, also between the copy and the commits.
func TestMoveEndsWhenAServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		db    func(*world) *pgxpool.Pool
		table string
	}{
		"Target": {func(w *world) *pgxpool.Pool { return w.dst }, "s_1.weft_leader"}, // the epochs
		"Source": {func(w *world) *pgxpool.Pool { return w.src }, "s_1.weft_audit"},  // the leave
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.structure(t)
			g := w.gate(c.db(w), c.table, false)
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Limit)
			defer cancel()
			o := w.there()
			o.answer = 3 * time.Second
			done := w.begin(ctx, o)
			g.reached()
			if got := <-done; got.err == nil || !strings.Contains(got.err.Error(), "no answer within 3s") {
				t.Errorf("a server that froze: got %v, want that it did not answer", got.err)
			}
			if err := write(ctx, w.src, w.entity(moved)); err != nil {
				t.Errorf("write at the source: %v", err)
			}
			g.open()
			w.mustMove(w.there())
			w.home(w.dst, w.src)
		})
	}
}
