package consumer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// swamp is an outbox in memory whose head is expensive: a list takes a second, a claim
// a tenth of one.
type swamp struct {
	paper
	mu    sync.Mutex
	ready []outbox.Listed // in their order
	gone  map[uuid.UUID]bool

	lists, listing int
	beside         int // claims answered while a list was being made
	vain           int // rows that a claim was asked for and that were gone
}

func newSwamp(entities, each int) *swamp {
	s := &swamp{gone: map[uuid.UUID]bool{}}
	keys := make([]outbox.Key, entities)
	for i := range keys {
		keys[i] = newKey()
	}
	for v := range entities * each {
		s.ready = append(s.ready, outbox.Listed{ID: uuid.New(), Key: keys[v%entities], Op: outbox.Upsert, Version: int64(v)})
	}
	return s
}

// head returns the first n rows that are ready.
func (s *swamp) head(n int) (out []outbox.Listed) {
	for i := range s.ready {
		if len(out) < n && !s.gone[s.ready[i].ID] {
			out = append(out, s.ready[i])
		}
	}
	return out
}

func (s *swamp) left() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.head(1)) > 0
}

func (s *swamp) List(_ context.Context, limit int) ([]outbox.Listed, time.Duration, error) {
	s.mu.Lock()
	seen := s.head(limit)
	s.lists++
	s.listing++
	s.mu.Unlock()
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listing--
	return seen, time.Second, nil
}

func (s *swamp) Claim(_ context.Context, r outbox.ClaimRequest) (*outbox.Claimed, error) {
	time.Sleep(100 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listing > 0 {
		s.beside++
	}
	c := &outbox.Claimed{ReadyCost: time.Second}
	rows := s.head(r.Limit)
	if r.Listed != nil {
		rows = slices.DeleteFunc(slices.Clone(s.ready), func(l outbox.Listed) bool { return s.gone[l.ID] || !slices.Contains(r.Listed, l.ID) })
		s.vain += len(r.Listed) - len(rows)
	}
	for _, l := range rows {
		s.gone[l.ID] = true
		c.Ready = append(c.Ready, outbox.Event{ID: l.ID, Key: l.Key, Op: l.Op, Version: l.Version})
	}
	c.ReadyCandidates = len(rows)
	return c, nil
}

// While claims go on from one list, the next is made, and what they have taken
// meanwhile is not asked for again.
func TestTheNextListIsMadeAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const entities, each = 400, 5
		store := newSwamp(entities, each)
		proj := &scripted{applied: map[outbox.Key][]int64{}, flying: map[outbox.Key]bool{}}
		p := onPaper(t, store, proj)
		p.lists = listSizes{long: 1000, short: 300}
		term := &aTerm{epoch: 1, stop: make(chan struct{})}
		done := make(chan error, 1)
		go func() { done <- p.Run(t.Context(), term) }()
		for deadline := time.Now().Add(time.Hour); store.left() && time.Now().Before(deadline); {
			time.Sleep(time.Second)
		}
		close(term.stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(proj.applied) != entities {
			t.Errorf("%d entities were projected, want %d", len(proj.applied), entities)
		}
		for key, versions := range proj.applied {
			if len(versions) != each || !slices.IsSorted(versions) {
				t.Errorf("%v was projected at %v, want %d versions in order", key, versions, each)
			}
		}
		// The first claim is at the head; each list but the first is begun with a third
		// of 300 entities left, ten claims of a tenth of a second.
		if want := (entities*each - 10) / 300; store.lists < want || store.lists > want+2 {
			t.Errorf("%d lists, want about %d", store.lists, want)
		}
		if want := 9 * (store.lists - 2); store.beside < want {
			t.Errorf("%d claims while a list was made, want at least %d", store.beside, want)
		}
		if store.vain > 0 {
			t.Errorf("%d rows were asked for that had been claimed before", store.vain)
		}
	})
}

// A list that was begun before rows came back does not show them.
func TestForgettingDropsTheListAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLooks(50*time.Millisecond, listSizes{long: 1000, short: 6})
		l.took(2, &outbox.Claimed{ReadyCandidates: 2, ReadyCost: 50 * time.Millisecond}, 0)
		events := make([]outbox.Listed, 6)
		for i := range events {
			events[i].Key = newKey()
		}
		l.listed(events, false, 100*time.Millisecond, 100*time.Millisecond)
		for _, want := range []int{0, 0, 0, 6 + 2, 6 + 1, 0} {
			if got := l.wantsAhead(); got != want {
				t.Fatalf("with %d of 6 left, the next list is of %d events, want %d", len(l.list), got, want)
			}
			l.take(max(1, len(l.list)/2-1))
		}
		l.listed(events, false, 100*time.Millisecond, 100*time.Millisecond)
		l.take(4)
		l.ahead = &ahead{}
		if got := l.wantsAhead(); got != 0 {
			t.Errorf("a second list of %d events beside the one that is being made", got)
		}
		l.forget()
		if l.ahead != nil || !l.wantsList() {
			t.Error("the list that was begun before is not dropped")
		}
		l.listed(events, true, 100*time.Millisecond, 100*time.Millisecond)
		l.take(4)
		if got := l.wantsAhead(); got != 0 {
			t.Errorf("a list of %d events after one that has reached the end", got)
		}
	})
}
