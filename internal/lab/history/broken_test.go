package history_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

// careless is a projection that asks for no version: it writes an older state over
// whatever is there.
type careless struct {
	consumer.Projection
	url   string // of the index, through the tap
	after int64  // events up to this version are written carelessly
}

func (c *careless) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	out := make([]outbox.Outcome, len(events))
	for i, e := range events {
		if e.Version > c.after {
			one, err := c.Projection.Project(ctx, events[i:i+1])
			if err != nil {
				return nil, err
			}
			out[i] = one[0]
			continue
		}
		var body bytes.Buffer
		enc := json.NewEncoder(&body)
		_ = enc.Encode(map[string]any{"index": map[string]string{"_id": e.Key.String()}})
		_ = enc.Encode(map[string]any{"entity_type": e.Key.Type, "entity_id": e.Key.ID, "text": "an older state", "event_version": e.Version})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/_bulk", &body)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/x-ndjson")
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("bulk: %s", res.Status)
		}
		out[i] = outbox.OK()
	}
	return out, nil
}

// lazy is a projection that does not write some events, and says that it has.
type lazy struct {
	consumer.Projection
	version int64
}

func (l *lazy) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	if i := slices.IndexFunc(events, func(e outbox.Event) bool { return e.Version == l.version }); i >= 0 {
		return slices.Repeat([]outbox.Outcome{outbox.OK()}, len(events)), nil
	}
	return l.Projection.Project(ctx, events)
}

// forgetful is a store that hands out one event only after the next claim.
type forgetful struct {
	consumer.Store
	version int64
	mu      sync.Mutex
	held    []outbox.Event
	later   bool // a later event has been handed out
}

func (f *forgetful) Claim(ctx context.Context, req outbox.ClaimRequest) (*outbox.Claimed, error) {
	c, err := f.Store.Claim(ctx, req)
	if err != nil {
		return c, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.later {
		c.Ready = append(c.Ready, f.held...)
		f.held = nil
	}
	c.Ready = slices.DeleteFunc(c.Ready, func(e outbox.Event) bool {
		hold := e.Version == f.version && !f.later
		if hold {
			f.held = append(f.held, e)
		}
		return hold
	})
	return c, nil
}

// Peek sees what is held.
func (f *forgetful) Peek(ctx context.Context) (bool, error) {
	f.mu.Lock()
	held := f.later && len(f.held) > 0
	f.mu.Unlock()
	if held {
		return true, nil
	}
	return f.Store.Peek(ctx)
}

func (f *forgetful) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.later = true
}

// A sound pair, a takeover and a bulk request of the old leader that arrives when the
// new one has written newer states: nothing is found.
func TestSoundPair(t *testing.T) {
	t.Parallel()
	r := setup(t)
	updated, deleted, recreated := newKey(), newKey(), newKey()
	a := r.member("a", 1)
	stopA := a.run()
	for _, k := range []outbox.Key{updated, deleted, recreated} {
		r.write(k, 1)
	}
	r.settled()
	a.tap.Hold()
	for _, k := range []outbox.Key{updated, deleted, recreated} {
		r.write(k, 2)
	}
	labtest.Eventually(t, 20*time.Second, func() bool { return a.tap.Held() > 0 && r.processing() == 3 }, "a's bulk request is held, and all is claimed")

	b := r.member("b", 2)
	reclaim(t, b, 3)
	stopB := b.run()
	r.write(updated, 3)
	r.remove(deleted, 4)
	r.remove(recreated, 5)
	r.settled()
	r.write(recreated, 6)
	r.settled()
	a.tap.Release()
	labtest.Eventually(t, 20*time.Second, func() bool { return a.tap.Held() == 0 }, "a's bulk request goes on")
	if err := stopA(); !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("end of a: got %v, want %v", err, outbox.ErrFenced)
	}
	if err := stopB(); err != nil {
		t.Errorf("end of b: %v", err)
	}
	v := r.check()
	if err := v.Err(); err != nil {
		t.Errorf("got %v, want nothing", err)
	}
	refused := 0
	for _, i := range r.rec.Applied() {
		if i.Instance == "a" && i.Status == http.StatusConflict {
			refused++
		}
	}
	if refused == 0 {
		t.Error("the late bulk request of a was not refused: the test shows nothing")
	}
}

// reclaim takes over what earlier terms hold.
func reclaim(t *testing.T, m *member, want int) {
	t.Helper()
	taken, err := m.store.(*outbox.Store).Reclaim(t.Context(), outbox.ReclaimRequest{Epoch: m.epoch, Limit: 100, MaxProcessing: time.Hour, MaxReclaims: 5})
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, r := range taken {
		rows += r.Rows
	}
	if rows != want {
		t.Fatalf("reclaimed %d rows, want %d", rows, want)
	}
}

func TestBrokenPipelines(t *testing.T) {
	t.Parallel()

	// An instance whose claims and settles ask for no epoch goes on after it was followed.
	t.Run("TwoClaimers", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		r.member("b", 2)
		r.write(key, 1)
		row := outbox.Event{Key: key, Op: outbox.Upsert, Version: 1}
		if n := r.exec(a.pool, `update search_outbox_events set status = 'processing', owner = 'a', epoch = 1 where status = 'pending'`); n != 1 {
			t.Fatalf("claimed %d events, want 1", n)
		}
		authority := outbox.Authority{Group: group, Epoch: 1, Check: func() error { return nil }}
		if _, err := a.proj.Project(outbox.WithAuthority(t.Context(), authority), []outbox.Event{row}); err != nil {
			t.Fatal(err)
		}
		r.exec(a.pool, `update search_outbox_events set status = 'done', owner = null where status = 'processing'`)
		expect(t, r.check(), key,
			`one claimer: version 1 (event `+r.ledger[0].Event.String()+`): claim by "a" under epoch 1 after epoch 2 was committed`,
			`one claimer: settle by "a" under epoch 1 after epoch 2 was committed`)
	})

	// A settle that names the row and not the claim ends somebody else's.
	t.Run("SettleOfAnothersClaim", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		b, a := r.member("b", 1), r.member("a", 2)
		a.tap.Hold()
		stop := a.run()
		r.write(key, 1)
		labtest.Eventually(t, 20*time.Second, func() bool { return a.tap.Held() > 0 }, "a's bulk request is held")
		if n := r.exec(b.pool, `update search_outbox_events set status = 'done', owner = null where id = $1`, r.ledger[0].Event); n != 1 {
			t.Fatalf("settled %d events, want 1", n)
		}
		a.tap.Release()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			`one claimer: settle by a session of "b" of what "a" holds under epoch 2`,
			`no event lost: done before Elasticsearch had confirmed a version of its document`)
	})

	t.Run("EventDropped", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		stop := r.member("a", 1).run()
		r.write(key, 1)
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		r.write(key, 2)
		r.exec(r.pool, `update search_outbox_events set status = 'done' where status = 'pending'`)
		event := "version 2 (event " + r.ledger[1].Event.String() + "): "
		expect(t, r.check(), key,
			"no event lost: "+event+"became done without a claim",
			"no event lost: "+event+"done when Elasticsearch had confirmed no newer version of its document than 1",
			"convergence: "+event+"stale")
	})

	t.Run("DocumentNeverWritten", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key, other := newKey(), newKey()
		a := r.member("a", 1)
		a.proj = &lazy{a.proj, 2}
		stop := a.run()
		r.write(other, 1)
		r.settled()
		r.write(key, 2)
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		event := "version 2 (event " + r.ledger[1].Event.String() + "): "
		expect(t, r.check(), key,
			"no event lost: "+event+"done before Elasticsearch had confirmed a version of its document",
			"convergence: "+event+"missing "+key.String()+" (last written as version 2")
	})

	t.Run("OlderStateOverANewerOne", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		a.proj = &careless{a.proj, a.tap.URL() + "/" + r.index, 5}
		stop := a.run()
		r.write(key, 10)
		r.settled()
		r.late(key, 5)
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			`versions never go back: version 0: index applied after index of version 10 by "a"`,
			"convergence: stale "+key.String())
	})

	t.Run("DeletedDocumentComesBack", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		a.proj = &careless{a.proj, a.tap.URL() + "/" + r.index, 5}
		stop := a.run()
		r.write(key, 8)
		r.settled()
		r.remove(key, 10)
		r.settled()
		r.late(key, 5)
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			`deleted documents stay deleted: version 0: index applied after delete of version 10 by "a"`,
			"convergence: extra "+key.String()+" (last deleted after version 8")
	})

	t.Run("LaterEventFirst", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		key := newKey()
		a := r.member("a", 1)
		store := &forgetful{Store: a.store, version: 1}
		a.store = store
		r.write(key, 1)
		r.write(key, 2)
		stop := a.run()
		labtest.Eventually(t, 20*time.Second, func() bool {
			var done bool
			if err := r.pool.QueryRow(t.Context(), `select exists (select from search_outbox_events where status = 'done')`).Scan(&done); err != nil {
				t.Fatal(err)
			}
			return done
		}, "the later event is done")
		store.release()
		r.settled()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		expect(t, r.check(), key,
			"order per entity: version 2 (event "+r.ledger[1].Event.String()+"): done while earlier events were unsettled: 1, the oldest version 1 (event "+r.ledger[0].Event.String()+", processing)")
	})
}
