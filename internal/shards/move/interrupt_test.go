package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
)

// gate is a lock that the test holds and that a trigger waits for: a place where the move stops.
type gate struct {
	w  *world
	db *pgxpool.Pool
	tx pgx.Tx
}

const gateKey = 4711

// gate has each insert into a table stop, with deferred at its commit.
func (w *world) gate(db *pgxpool.Pool, table string, deferred bool) *gate {
	w.t.Helper()
	w.exec(db, fmt.Sprintf("create function app.wait_at_gate() returns trigger language plpgsql set lock_timeout = 0 as $$ begin perform pg_advisory_xact_lock_shared(%d); return null; end $$", gateKey))
	if deferred {
		w.exec(db, "create constraint trigger gate after insert on "+table+" deferrable initially deferred for each row when (new.action = 'shards_move') execute function app.wait_at_gate()")
	} else {
		w.exec(db, "create trigger gate before insert on "+table+" for each statement execute function app.wait_at_gate()")
	}
	return &gate{w, db, w.hold(db, fmt.Sprintf("select pg_advisory_xact_lock(%d)", gateKey))}
}

// hold begins a transaction with a statement, which ends with the test.
func (w *world) hold(db *pgxpool.Pool, sql string) pgx.Tx {
	w.t.Helper()
	tx, err := db.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(w.t.Context(), sql); err != nil {
		w.t.Fatal(err)
	}
	return tx
}

func (g *gate) reached() {
	g.w.t.Helper()
	g.w.waits(g.db, "advisory")
}

// waits returns once a session of the move waits for a lock of that kind.
func (w *world) waits(db *pgxpool.Pool, kind string) {
	w.t.Helper()
	testenv.Eventually(w.t, func() bool {
		return w.number(db, "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'weft/shards' and wait_event_type = 'Lock' and wait_event = $1", kind) > 0
	}, "the move waits for a lock: "+kind)
}

// kill ends the sessions of the move in a database, as a crash of the server or of the network does.
func (g *gate) kill() {
	g.w.t.Helper()
	g.w.exec(g.db, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and application_name = 'weft/shards'")
}

// open lets the move go on, also where it comes here again.
func (g *gate) open() {
	g.w.t.Helper()
	if err := g.tx.Rollback(g.w.t.Context()); err != nil {
		g.w.t.Fatal(err)
	}
}

type outcome struct {
	result Result
	err    error
}

// begin moves in the background.
func (w *world) begin(ctx context.Context, o Options) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		r, err := move(ctx, o)
		done <- outcome{r, err}
	}()
	return done
}

// Wherever the copy is interrupted, the source keeps the shard, and the same call again moves it.
func TestMoveInterruptedInTheCopyIsRepeated(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(g *gate, cancel func()){
		"Cancelled":  func(_ *gate, cancel func()) { cancel() },
		"TargetGone": func(g *gate, _ func()) { g.kill() },
		"SourceGone": func(g *gate, _ func()) { (&gate{w: g.w, db: g.w.src}).kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.structure(t)
			g := w.gate(w.dst, "s_1.search_index", false)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := w.there()
			o.stalled = 5 * time.Second // the source is not read while the target takes nothing
			done := w.begin(ctx, o)
			g.reached()
			interrupt(g, cancel)
			if got := <-done; got.err == nil {
				t.Error("interrupted: got no error")
			}
			g.open()
			w.home(w.src, w.dst)
			if plan, err := Check(t.Context(), w.there()); err != nil || !plan.Again {
				t.Errorf("after the interruption: got %+v, %v, want a move that is begun anew", plan, err)
			}
			w.mustMove(w.there())
			w.home(w.dst, w.src)
		})
	}
}

// Between the two commits the source has the shard, and the target a copy that nobody writes or leads.
func TestMoveInterruptedBetweenTheCommitsIsRepeated(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.gate(w.src, "s_1.weft_audit", true)
	done := w.begin(t.Context(), w.there())
	g.reached()
	if got := w.number(w.dst, "select count(*) from s_1.search_index"); got == 0 {
		t.Error("the target has no copy before the source commits")
	}
	if _, err := w.dst.Exec(t.Context(), "insert into s_1.weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('mine', 1, 'too early', now(), now())"); err == nil || !strings.Contains(err.Error(), "shard 1 is on its way here from "+address(t, w.from)) {
		t.Errorf("lead the copy: got %v, want a refusal", err)
	}
	g.kill()
	if got := <-done; !errors.Is(got.err, ErrUnknown) {
		t.Errorf("got %v, want that the commit was not answered", got.err)
	}
	g.open()
	if err := write(t.Context(), w.dst, w.entity(moved)); err == nil || !strings.Contains(err.Error(), "is on its way here") {
		t.Errorf("write to the copy: got %v, want a refusal", err)
	}
	entity := w.entity(moved)
	if err := write(t.Context(), w.src, entity); err != nil {
		t.Errorf("write to the source: %v", err)
	}
	w.mustMove(w.there())
	if got := w.number(w.dst, "select count(*) from search_index where entity_id = $1", entity); got != 1 {
		t.Errorf("got %d rows of what was written after the copy that was removed, want 1", got)
	}
	if got := w.number(w.dst, "select count(*) from s_1.weft_audit where action = 'shards_create'"); got != 2 {
		t.Errorf("got %d entries about the making of the shard, want one of each side", got)
	}
	w.home(w.dst, w.src)
}

// Once the source has let go, the shard is nowhere open until the target is, and the same call opens it.
func TestMoveInterruptedBeforeTheTargetOpensIsFinished(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.structure(t)
	g := w.gate(w.dst, "s_1.weft_audit", true)
	done := w.begin(t.Context(), w.there())
	g.reached()
	g.kill()
	if got := <-done; !errors.Is(got.err, ErrClosed) || !strings.Contains(got.err.Error(), "shard 1 has left "+address(t, w.from)) {
		t.Errorf("got %v, want that the target is not open", got.err)
	}
	g.open()
	for name, db := range map[string]*pgxpool.Pool{"source": w.src, "target": w.dst} {
		if err := write(t.Context(), db, w.entity(moved)); err == nil || !strings.Contains(err.Error(), "WF005") {
			t.Errorf("write to the %s: got %v, want a refusal", name, err)
		}
	}
	plan, err := Check(t.Context(), w.there())
	if err != nil || !plan.Open {
		t.Fatalf("got %+v, %v, want a target to open", plan, err)
	}
	if _, err := Run(t.Context(), w.there(), plan); err != nil {
		t.Fatal(err)
	}
	w.home(w.dst, w.src)
}

// A writer that waited for the move is sent to the target, and waits there until it is open.
func TestMovedWriterIsNotRefusedTwice(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.structure(t)
	g := w.gate(w.dst, "s_1.weft_audit", true)
	done := w.begin(t.Context(), w.there())
	g.reached()
	entity := w.entity(moved)
	if err := write(t.Context(), w.src, entity); err == nil || !strings.Contains(err.Error(), "shard 1 is on "+address(t, w.to)) {
		t.Errorf("write to the source: got %v, want the address of the target", err)
	}
	written := make(chan error, 1)
	go func() { written <- write(t.Context(), w.dst, entity) }()
	testenv.Eventually(t, func() bool {
		return w.number(w.dst, "select count(*) from pg_stat_activity where datname = current_database() and application_name <> 'weft/shards' and wait_event_type = 'Lock' and wait_event = 'relation'") > 0
	}, "the writer waits at the target")
	g.open()
	if err := <-written; err != nil {
		t.Errorf("write to the target: %v", err)
	}
	if got := <-done; got.err != nil {
		t.Error(got.err)
	}
}

// Who reads or writes the shard is waited for, and told of; nobody waits for the move in another shard.
func TestMoveWaitsForOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, waits, what string }{
		"Writer":  {"update s_1.search_index set text = text", "relation", "the tables of shard 1"},
		"Reader":  {"select count(*) from search_index", "relation", "the readers of shard 1"},
		"Foreign": {fmt.Sprintf("select pg_advisory_xact_lock(%d)", leader.Key("weft-shard-1")), "advisory", "the lock of group weft-shard-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.structure(t)
			other, entity := w.entity(0), w.entity(moved)
			tx := w.hold(w.src, c.sql)
			o := w.there()
			o.Wait = testenv.Limit
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := w.begin(ctx, o)
			w.waits(w.src, c.waits)
			if err := write(t.Context(), w.src, other); err != nil {
				t.Errorf("write of another shard while one moves: %v", err)
			}
			if name == "Reader" {
				w.updates(other)
			}
			cancel()
			<-done
			o.Wait = 2 * time.Second
			got := <-w.begin(t.Context(), o)
			lock, ok := errors.AsType[*LockError](got.err)
			if !ok || lock.What != c.what || lock.Holder.PID == 0 || !strings.Contains(lock.Error(), "nothing has moved") {
				t.Errorf("got %v, want who holds %s", got.err, c.what)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := write(t.Context(), w.src, entity); err != nil {
				t.Errorf("write after the try: %v", err)
			}
			w.mustMove(w.there())
			w.home(w.dst, w.src)
		})
	}
}

// updates changes an entity of another shard while the rows of one are locked: a plan for this entity
// waits for nothing, and one for any entity locks all shards.
func (w *world) updates(other string) {
	w.t.Helper()
	for mode, waits := range map[string]bool{"force_custom_plan": false, "force_generic_plan": true} {
		err := pgx.BeginFunc(w.t.Context(), w.src, func(tx pgx.Tx) error {
			if _, err := tx.Exec(w.t.Context(), "set local lock_timeout = '500ms'; set local plan_cache_mode = "+mode); err != nil {
				return err
			}
			_, err := tx.Exec(w.t.Context(), "update search_index set text = 'changed' where entity_id = $1", other)
			return err
		})
		if blocked(err) != waits || !waits && err != nil {
			w.t.Errorf("update of another shard with %s: got %v, want that it waits: %v", mode, err, waits)
		}
	}
}

// A row that the target changes on its way in is noticed.
func TestMoveComparesBothSides(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.structure(t)
	w.exec(w.dst, "create function app.spoil() returns trigger language plpgsql as $$ begin new.text := 'spoilt'; return new; end $$")
	w.exec(w.dst, "create trigger spoil before insert on s_1.search_index for each row execute function app.spoil()")
	if _, err := move(t.Context(), w.there()); err == nil || !strings.Contains(err.Error(), "search_index has ") {
		t.Errorf("got %v, want the table that differs", err)
	}
	w.exec(w.dst, "drop trigger spoil on s_1.search_index")
	w.mustMove(w.there())
	w.home(w.dst, w.src)
}
