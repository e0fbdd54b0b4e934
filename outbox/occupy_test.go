package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// One table belongs to one group at a time: a leader of another group is told who
// works there, and gets the table when that leader has gone.
func TestOccupy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := b.store.Occupy(t.Context(), 1); err != nil {
		t.Fatalf("the first: %v", err)
	}
	if err := b.store.Occupy(t.Context(), 1); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := b.store.Occupy(t.Context(), 7); !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("under an epoch that is not: %v", err)
	}
	b.exec("insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('other', 1, 'o', now(), now())")
	other, err := outbox.OpenStore(t.Context(), b.pool, outbox.StoreConfig{Table: table, Projection: "p", Group: "other", Owner: "o", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		err := other.Occupy(t.Context(), 1)
		if o, ok := errors.AsType[*outbox.OccupiedError](err); !ok || o.Group != "g" || o.Instance != "a" || o.Table != table {
			t.Errorf("%s: got %v, want that a of the group g works on the table", when, err)
		}
	}
	refused("while the first leads")
	st, err := b.store.Stats(t.Context(), time.Minute, 0)
	if err != nil || st.LastSettle != nil {
		t.Errorf("last settle %v, %v, want none", st.LastSettle, err)
	}

	b.exec("update weft_leader set renewed_at = now() - interval '10 s' where group_name = 'g'")
	refused("while the first is only slow")
	b.exec("update weft_leader set renewed_at = now() - interval '20 s' where group_name = 'g'")
	if err := other.Occupy(t.Context(), 1); err != nil {
		t.Errorf("after the first has gone: %v", err)
	}
	if err := b.store.Occupy(t.Context(), 1); err == nil {
		t.Error("the first has the table while the other leads")
	}
	b.exec("update weft_leader set released_at = now() where group_name = 'other'")
	if err := b.store.Occupy(t.Context(), 1); err != nil {
		t.Errorf("after the other has handed over: %v", err)
	}

	// The next term of the first works on other tables only.
	b.exec("update weft_leader set epoch = 2, renewed_at = now() where group_name = 'g'")
	b.exec("update weft_leader set released_at = null, renewed_at = now() where group_name = 'other'")
	if err := other.Occupy(t.Context(), 1); err != nil {
		t.Errorf("while a term leads that has not occupied the table: %v", err)
	}
	if err := b.store.Occupy(t.Context(), 2); err == nil {
		t.Error("that term has the table while the other leads")
	}
}

// Of the leaders of two groups that ask for a table at once one gets it, also when the other was held up in the middle:
// it then sees a term that began meanwhile.
func TestOccupyByTwoGroupsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other, err := outbox.OpenStore(t.Context(), b.pool, outbox.StoreConfig{Table: table, Projection: "p", Group: "other", Owner: "o", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "select from weft_fence where group_name = 'g' for update"); err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 2)
	go func() { ends <- b.store.Occupy(t.Context(), 1) }()
	b.waitFor("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")

	b.exec("insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('other', 1, 'o', now(), now())")
	done := make(chan struct{})
	go func() { defer close(done); ends <- other.Occupy(t.Context(), 1) }()
	for waiting := 1; waiting < 2; {
		select {
		case <-done:
			waiting = 2
		default:
			waiting = b.number("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for range 2 {
		err := <-ends
		if _, ok := errors.AsType[*outbox.OccupiedError](err); ok {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused != 1 {
		t.Errorf("%d of two groups were refused, want 1", refused)
	}
}
