package replay

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// watching is a run that has sent n events, long ago, and counts its notes.
func watching(n int, notes *int, fates func(context.Context, []outbox.ID) (outbox.Fates, error)) *run {
	r := &run{
		fates: fates, changed: time.Now().Add(-time.Hour), cfg: Config{Progress: func(Progress) {}, Note: func(string) { *notes++ }},
		led:   func(context.Context) (bool, error) { return true, nil },
		holds: func(context.Context) (outbox.Holds, error) { return outbox.Holds{}, nil },
	}
	for i := range n {
		r.open = append(r.open, outbox.Number(int64(i)))
	}
	return r
}

// However many events are open, a statement asks for a bounded number of them, and each event
// is asked for once in a look.
func TestLookAsksForSomeAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const events = 3*maxAsked + 7
		notes, asked := 0, map[string]bool{}
		r := watching(events, &notes, func(_ context.Context, ids []outbox.ID) (f outbox.Fates, _ error) {
			if len(ids) > maxAsked {
				t.Errorf("asked for %d events at once, want at most %d", len(ids), maxAsked)
			}
			for i, id := range ids {
				asked[id.String()] = true
				if i%2 == 0 {
					f.Done++
				} else {
					f.Open = append(f.Open, id)
				}
			}
			return f, nil
		})
		if err := r.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(asked) != events || r.res.Done != 3*maxAsked/2+4 || len(r.open) != events-int(r.res.Done) || notes != 0 {
			t.Errorf("%d asked for, %d done, %d open and %d notes", len(asked), r.res.Done, len(r.open), notes)
		}
	})
}

// A look that takes long goes on with the others at the next. Nobody hears that nothing moves
// before every event has been asked for.
func TestLooksTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		notes := 0
		r := watching(2*maxAsked, &notes, func(_ context.Context, ids []outbox.ID) (outbox.Fates, error) {
			time.Sleep(look) // one statement takes the time of a look
			return outbox.Fates{Open: ids}, nil
		})
		for i, want := range []struct{ first, notes int }{{maxAsked, 0}, {0, 1}} {
			time.Sleep(look)
			err := r.look(t.Context())
			if first := outbox.Number(int64(want.first)); err != nil || len(r.open) != 2*maxAsked || r.open[0] != first || notes != want.notes {
				t.Errorf("after look %d: %v, %d open, the first is %s, %d notes, want %s and %d", i+1, err, len(r.open), r.open[0], notes, first, want.notes)
			}
		}
	})
}

// Whoever waits hears what the leader waits for.
func TestStalledSaysWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	hold := func(kind outbox.HoldKind) *outbox.Hold {
		return &outbox.Hold{Kind: kind, By: "alice", Why: "disk", Rate: 5}
	}
	for want, c := range map[string]struct {
		led   bool
		holds outbox.Holds
	}{
		"waiting: 3 replayed events are not settled yet; /health/ready of the leader, on its own host, says what stands in the way": {true, outbox.Holds{}},
		"waiting: 3 replayed events are not settled yet; nobody leads":                                                              {},
		"waiting: 3 replayed events are not settled yet; the projection is paused by alice at 0001-01-01T00:00:00Z: disk": {
			true, outbox.Holds{Pause: hold(outbox.Pause), Throttle: hold(outbox.Throttle)}},
		"waiting: 3 replayed events are not settled yet; entities in quarantine: 1": {
			true, outbox.Holds{Quarantines: []outbox.Hold{*hold(outbox.Quarantine)}}},
		"waiting: 3 replayed events are not settled yet; the projection is throttled to 5 events a second by alice at 0001-01-01T00:00:00Z: disk": {
			true, outbox.Holds{Throttle: hold(outbox.Throttle)}},
	} {
		r := watching(3, new(int), nil)
		r.led = func(context.Context) (bool, error) { return c.led, nil }
		r.holds = func(context.Context) (outbox.Holds, error) { return c.holds, nil }
		if got := r.stalled(t.Context()); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
