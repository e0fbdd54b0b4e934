package outbox_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// over claims the newest listed event and returns its settlement with the others.
func over(b *bench) []outbox.Settlement {
	b.t.Helper()
	listed, _, err := b.store.List(b.t.Context(), 100)
	if err != nil || len(listed) == 0 {
		b.t.Fatalf("listed %d, %v", len(listed), err)
	}
	last := len(listed) - 1
	c, err := b.store.Claim(b.t.Context(), outbox.ClaimRequest{Epoch: 1, Limit: 1, Listed: []uuid.UUID{listed[last].ID}})
	if err != nil || len(c.Ready) != 1 {
		b.t.Fatalf("claimed %+v, %v, want the newest", c, err)
	}
	return []outbox.Settlement{{Event: &c.Ready[0], Verdict: outbox.Done, Older: listed[:last]}}
}

func TestSettleSupersedesReadyEvents(t *testing.T) {
	t.Parallel()
	t.Run("Together", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(1, 2, 3)
		in := over(b)
		s, err := b.store.Settle(t.Context(), 1, in)
		if err != nil || s.Rows != 1 || s.Mismatch != 0 || len(in[0].Older) != 2 {
			t.Errorf("settled %+v, %v, %d superseded, want 1 row and 2 superseded", s, err, len(in[0].Older))
		}
		if n := b.count("status = 'done' and processed_at is not null and epoch = 1 and owner is null"); n != 3 {
			t.Errorf("%d rows done under the epoch, want 3", n)
		}
	})
	t.Run("NotWhatChangedMeanwhile", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(1, 2, 3, 4)
		in := over(b)
		b.exec("update search_outbox_events set status = 'failed' where event_version = 1")
		b.exec("update search_outbox_events set next_retry_at = now() + interval '1 h' where event_version = 2")
		s, err := b.store.Settle(t.Context(), 1, in)
		if err != nil || s.Rows != 1 || len(in[0].Older) != 1 || in[0].Older[0].Version != 3 {
			t.Errorf("settled %+v, %v, superseded %+v, want version 3 alone", s, err, in[0].Older)
		}
		if n := b.count("status = 'done'"); n != 2 {
			t.Errorf("%d rows done, want 2", n)
		}
	})
	t.Run("NothingWithoutTheNewest", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(1, 2)
		in := over(b)
		b.exec("update search_outbox_events set status = 'pending', owner = null where status = 'processing'")
		s, err := b.store.Settle(t.Context(), 1, in)
		if err != nil || s.Mismatch != 1 || len(in[0].Older) != 0 {
			t.Errorf("settled %+v, %v, superseded %+v, want a mismatch and nothing else", s, err, in[0].Older)
		}
		if n := b.count("status = 'pending'"); n != 2 {
			t.Errorf("%d rows pending, want 2", n)
		}
	})
	t.Run("NotUnderAnOlderEpoch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(1, 2)
		in := over(b)
		b.setEpoch(2)
		if _, err := b.store.Settle(t.Context(), 1, in); !errors.Is(err, outbox.ErrFenced) {
			t.Errorf("error %v, want fenced", err)
		}
		if n := b.count("status = 'done'"); n != 0 {
			t.Errorf("%d rows done, want none", n)
		}
	})
	t.Run("AStrangersLockIsNotWaitedForLong", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.enqueue(1, 2)
		in := over(b)
		tx, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		if _, err := tx.Exec(t.Context(), "select from search_outbox_events where event_version = 1 for update"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.store.Settle(t.Context(), 1, in); !outbox.LockedOut(err) {
			t.Errorf("error %v, want that somebody holds the lock", err)
		}
		if n := b.count("status = 'processing'"); n != 1 {
			t.Errorf("%d rows processing, want the newest as it was", n)
		}
	})
}
