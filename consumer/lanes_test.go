package consumer

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

func event(key outbox.Key, version int64) outbox.Event {
	return outbox.Event{ID: uuid.New(), Key: key, Version: version}
}

func newKey() outbox.Key { return outbox.Key{Type: "block", ID: uuid.New()} }

// Random claims and landings: no entity is ever in two batches, a later event is
// never in flight while an earlier claimed one is not, and nothing is lost.
func TestLanesKeepEveryEntityInOnePlace(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		keys := make([]outbox.Key, 8)
		for i := range keys {
			keys[i] = newKey()
		}
		l := newLanes()
		version, claimed, landed := int64(0), 0, 0
		last := map[outbox.Key]int64{}
		var flying []*batch
		for range 400 {
			switch rnd.IntN(3) {
			case 0:
				version++
				e := event(keys[rnd.IntN(len(keys))], version)
				e.Reclaims = rnd.IntN(AloneAfter + 1)
				l.add(e, nil)
				claimed++
			case 1:
				b := l.next(1 + rnd.IntN(4))
				if b == nil {
					continue
				}
				if b.alone && len(flying) > 0 {
					t.Fatalf("seed %d: a suspect flies beside %d batches", seed, len(flying))
				}
				for _, g := range b.groups {
					for _, o := range flying {
						if o.alone {
							t.Fatalf("seed %d: a batch starts beside a suspect", seed)
						}
						for _, h := range o.groups {
							if h.key == g.key {
								t.Fatalf("seed %d: entity %v in two batches", seed, g.key)
							}
						}
					}
					for i, e := range g.events {
						if e.Version <= last[g.key] {
							t.Fatalf("seed %d: version %d of %v flies after %d (place %d)", seed, e.Version, g.key, last[g.key], i)
						}
						last[g.key] = e.Version
					}
				}
				flying = append(flying, b)
			case 2:
				if len(flying) == 0 {
					continue
				}
				i := rnd.IntN(len(flying))
				landed += flying[i].events
				l.land(flying[i])
				flying = append(flying[:i], flying[i+1:]...)
			}
			inFlight := 0
			for _, b := range flying {
				inFlight += b.events
			}
			if l.backlog()+inFlight+landed != claimed || len(l.all()) != l.backlog()+inFlight {
				t.Fatalf("seed %d: %d claimed, but %d wait, %d fly, %d landed", seed, claimed, l.backlog(), inFlight, landed)
			}
		}
		given := len(l.giveUp())
		for _, b := range flying {
			landed += b.events
			l.land(b)
		}
		if given+landed != claimed || l.backlog() != 0 || len(l.all()) != 0 {
			t.Fatalf("seed %d: %d claimed, %d given up, %d landed, %d left", seed, claimed, given, landed, l.backlog())
		}
	}
}

func TestGroupIsInOrderOfVersions(t *testing.T) {
	t.Parallel()
	k := newKey()
	g := &group{key: k}
	for _, v := range []int64{3, 1, 2, 5, 4} {
		g.add(event(k, v), nil)
	}
	for i := range g.events {
		if g.events[i].Version != int64(i+1) {
			t.Fatalf("place %d holds version %d", i, g.events[i].Version)
		}
	}
	if g.newest().Version != 5 {
		t.Errorf("newest is %d, want 5", g.newest().Version)
	}
}

func TestWaits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	k := newKey()
	first := event(k, 3)
	fresh := func() *waits {
		w := newWaits()
		w.add(outbox.Wait{ID: first.ID, Key: k, Version: 3, At: now.Add(time.Second)})
		w.add(outbox.Wait{ID: uuid.New(), Key: k, Version: 5, At: now.Add(2 * time.Second)})
		return w
	}
	at := func(version int64) *outbox.Event { e := event(k, version); return &e }
	if _, wait := fresh().behind(at(2)); wait {
		t.Error("an earlier event waits behind a later one")
	}
	if until, wait := fresh().behind(at(4)); !wait || !until.Equal(now.Add(time.Second)) {
		t.Errorf("version 4 waits %v until %v, want until the time of 3", wait, until)
	}
	if until, wait := fresh().behind(at(9)); !wait || !until.Equal(now.Add(2*time.Second)) {
		t.Errorf("version 9 waits %v until %v, want until the latest time before it", wait, until)
	}
	w := fresh()
	w.claimed(&first)
	if _, wait := w.behind(at(4)); wait {
		t.Error("version 4 waits behind a claimed event")
	}
	w = fresh()
	w.seen(now.Add(90 * time.Minute))
	if w.entities() != 0 {
		t.Error("events that did not turn up when due are still waited for")
	}
}

func TestRetryPolicy(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{MaxAttempts: 3, BaseBackoff: 500 * time.Millisecond, MaxBackoff: 30 * time.Second}
	for attempts, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second} {
		if got := p.ceiling(attempts); got != want {
			t.Errorf("ceiling after %d attempts is %v, want %v", attempts, got, want)
		}
		for range 100 {
			if d := p.delay(attempts, 0); d < 0 || d > want {
				t.Fatalf("delay after %d attempts is %v, want 0 to %v", attempts, d, want)
			}
		}
	}
	if got := p.ceiling(1 << 20); got != p.MaxBackoff {
		t.Errorf("ceiling after a million attempts is %v", got)
	}
	if got := p.delay(0, time.Minute); got != time.Minute {
		t.Errorf("delay %v, want what the server asked for", got)
	}
	for _, tt := range []struct {
		attempts int
		reason   outbox.Reason
		terminal bool
		want     bool
	}{
		{1, outbox.ReasonUnknown, false, false},
		{2, outbox.ReasonUnknown, false, true},
		{99, outbox.ReasonESConnect, false, false},
		{2, outbox.ReasonESConnect, true, true},
	} {
		p.TerminalOnTransient = tt.terminal
		if got := p.exhausted(tt.attempts, tt.reason.Transient()); got != tt.want {
			t.Errorf("exhausted(%d, %s) with terminal %v is %v, want %v", tt.attempts, tt.reason, tt.terminal, got, tt.want)
		}
	}
}
