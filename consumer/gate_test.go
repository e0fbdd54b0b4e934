package consumer

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/outbox"
)

func fault(reason outbox.Reason, after time.Duration) *outbox.Fault {
	return &outbox.Fault{Reason: reason, Shared: true, RetryAfter: after, Err: errors.New("away")}
}

// shownGate returns a gate, and what holds that its metric has 1 for that phase alone.
func shownGate(t *testing.T, threshold int) (g *gate, shows func(Phase)) {
	t.Helper()
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg, []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	return newGate(threshold, m.phaseOf("p")), func(want Phase) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			for _, metric := range f.GetMetric() {
				if f.GetName() == "weft_pipeline_phase" && metric.GetGauge().GetValue() == 1 {
					got = append(got, metric.GetLabel()[0].GetValue())
				}
			}
		}
		if !slices.Equal(got, []string{string(want)}) {
			t.Errorf("metric: got phases %v, want %s", got, want)
		}
	}
}

func TestGateOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, shows := shownGate(t, 20)
		shows(PhaseIdle)
		g.begin()
		shows(PhaseOpen)
		if !g.outage(fault(outbox.ReasonESConnect, 0)) {
			t.Error("the first fault is no news")
		}
		if g.outage(fault(outbox.ReasonESConnect, 0)) {
			t.Error("a second batch's fault is news")
		}
		if s := g.State(); s.Phase != PhaseOutage || s.Reason != outbox.ReasonESConnect || s.Detail != "away" {
			t.Errorf("state %+v", s)
		}
		shows(PhaseOutage)
		// Probes come further apart, but never so far that recovery waits a second.
		for _, want := range []time.Duration{100, 200, 400, 500, 500} {
			if got := g.due(); got != want*time.Millisecond {
				t.Fatalf("next probe in %v, want %v", got, want*time.Millisecond)
			}
			<-time.After(g.due())
			g.probed(errors.New("still away"))
		}
		g.probed(nil)
		if p := g.State().Phase; p != PhaseTrial {
			t.Fatalf("phase %s after an answer, want trial", p)
		}
		shows(PhaseTrial)
		if g.outage(fault(outbox.ReasonES429, 3*time.Second)) {
			t.Error("a failed trial is news")
		}
		if got := g.due(); got != 3*time.Second {
			t.Errorf("next probe in %v, want what the server asked for", got)
		}
		g.probed(nil)
		if !g.success(g.openings()) || g.State().Phase != PhaseOpen {
			t.Errorf("phase %s after a good trial, want open", g.State().Phase)
		}
		shows(PhaseOpen)
		g.end()
		shows(PhaseIdle)
	})
}

func TestGateBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, shows := shownGate(t, 3)
		g.begin()
		for i := range 3 {
			if ok, _, _ := g.final(outbox.ReasonES4xx, "bad"); !ok {
				t.Fatalf("failure %d is not allowed", i+1)
			}
			if i == 1 {
				g.success(g.openings()) // not in a row
				g.final(outbox.ReasonES4xx, "bad")
				g.final(outbox.ReasonES4xx, "bad")
			}
		}
		ok, opened, after := g.final(outbox.ReasonES4xx, "bad mapping")
		if ok || !opened || after != time.Second {
			t.Errorf("fourth failure in a row: allowed %v, opened %v, retry after %v", ok, opened, after)
		}
		if ok, opened, _ := g.final(outbox.ReasonES4xx, "bad mapping"); ok || opened {
			t.Errorf("failure while open: allowed %v, opened %v", ok, opened)
		}
		for _, want := range []time.Duration{2, 4, 8, 16, 30, 30} {
			g.attempted() // was in flight: too early to count
			<-time.After(g.due())
			g.attempted()
			if got := g.due(); got != want*time.Second {
				t.Errorf("next attempt in %v, want %v", got, want*time.Second)
			}
		}
		if g.success(0) || g.State().Phase != PhaseBroken {
			t.Errorf("phase %s after a success that was in flight before, want broken", g.State().Phase)
		}
		shows(PhaseBroken)
		if !g.success(g.openings()) || g.State().Phase != PhaseOpen {
			t.Errorf("phase %s after a success, want open", g.State().Phase)
		}
	})
}

func TestLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLooks(50*time.Millisecond, listSizes{long: longList, short: shortList})
		if l.take(2) != nil || l.wait() != 0 {
			t.Error("the first look is not at the head at once")
		}
		// Idle: further and further apart.
		for _, want := range []time.Duration{4, 8, 16, 32, 50, 50} {
			l.took(100, &outbox.Claimed{}, 0)
			if l.wait() != want*time.Millisecond || !l.idle {
				t.Fatalf("idle wait %v, want %v", l.wait(), want*time.Millisecond)
			}
			<-time.After(l.wait())
		}
		// A full batch: at once, and from the head as long as that is cheap.
		l.took(2, &outbox.Claimed{ReadyCandidates: 2, ReadyCost: time.Millisecond}, 0)
		if l.wait() != 0 || l.take(2) != nil || l.wantsList() {
			t.Error("after a full cheap batch the next look is not at the head at once")
		}
		// An expensive look: lists from now on, claimed piece by piece.
		l.took(2, &outbox.Claimed{ReadyCandidates: 2, ReadyCost: 50 * time.Millisecond}, 0)
		if !l.wantsList() || l.size != shortList {
			t.Fatalf("no short list after an expensive look: %v, %d", l.wantsList(), l.size)
		}
		events := []outbox.Listed{{Key: newKey()}, {Key: newKey()}, {Key: newKey()}}
		l.listed(events, true, 100*time.Millisecond, 100*time.Millisecond)
		for _, want := range []int{2, 1, 0} {
			if got := l.take(2); got == nil || len(got) != want {
				t.Fatalf("piece %v, want %d entities", got, want)
			}
			l.took(2, &outbox.Claimed{ReadyCandidates: want}, 0)
		}
		// It was short, so the next one comes only after ten times its cost.
		if l.wantsList() {
			t.Error("the next list comes at once")
		}
		<-time.After(time.Second)
		if !l.wantsList() {
			t.Error("no list after a pause")
		}
		// A cheap list ends it.
		l.listed(nil, true, time.Millisecond, time.Millisecond)
		if l.take(2) != nil {
			t.Error("still listing after a cheap list")
		}
		// Everything at the head is locked by somebody else: look behind it.
		l.took(2, &outbox.Claimed{Blocked: make([]outbox.Blocked, 2), ReadyCandidates: 2}, 0)
		if !l.wantsList() {
			t.Error("no list behind a blocked head")
		}
		l.listed(events, true, 100*time.Millisecond, 100*time.Millisecond)
		l.forget()
		if got := l.take(2); got == nil || len(got) != 0 {
			t.Errorf("a forgotten list gave %v", got)
		}
	})
}

// Few entities with many events: the newest of each is claimed, and the others come
// with it, as many as settle in good time.
func TestLooksAtHotEntities(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLooks(50*time.Millisecond, listSizes{long: longList, short: shortList})
		const limit = 8
		full := &outbox.Claimed{ReadyCandidates: limit, Ready: make([]outbox.Event, limit)}
		l.took(limit, full, limit/hotShare-1)
		if l.wantsList() {
			t.Error("a list although hardly an entity repeats")
		}
		l.took(limit, full, limit/hotShare)
		if !l.wantsList() || l.size != longList {
			t.Fatalf("no long list although entities repeat: %v, %d", l.wantsList(), l.size)
		}
		a, b := newKey(), newKey()
		events := make([]outbox.Listed, 0, longList)
		for v := range int64(longList) {
			k := a
			if v%10 == 9 {
				k = b
			}
			events = append(events, outbox.Listed{Key: k, Version: v})
		}
		events[0], events[longList-10] = events[longList-10], events[0] // a list by equal versions comes in any order
		l.listed(events, false, time.Millisecond, time.Millisecond)
		first, second := l.take(limit), l.take(limit)
		if len(first) != 1 || len(second) != 1 {
			t.Fatalf("pieces of %d and %d entities, want 1 each: each has more than settle at once", len(first), len(second))
		}
		if s := first[0]; s.newest().Key != a || s.newest().Version != longList-2 || len(s.older()) != longList*9/10-1 {
			t.Errorf("version %d with %d older ones, want the newest with all others", s.newest().Version, len(s.older()))
		}
		if got := l.take(limit); got == nil || len(got) != 0 || !l.wantsList() {
			t.Errorf("%d entities after the last one, want none and another list", len(got))
		}
		l.listed(events[:100], true, time.Millisecond, time.Millisecond)
		if l.take(limit); l.take(limit) == nil || l.take(limit) != nil {
			t.Error("a list that ends the backlog is not followed by a look at the head")
		}
	})
}

// A backlog is sampled once: claims alone show late that few entities have many events.
func TestLooksAtASampleOfABacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sizes := listSizes{long: 1000, short: 500, sample: 100}
		full := &outbox.Claimed{ReadyCandidates: sampleFrom, Ready: make([]outbox.Event, sampleFrom), ReadyCost: time.Millisecond}
		list := func(events, entities int) (out []outbox.Listed) {
			keys := make([]outbox.Key, entities)
			for i := range keys {
				keys[i] = newKey()
			}
			for v := range events {
				out = append(out, outbox.Listed{Key: keys[v%entities], Version: int64(v)})
			}
			return out
		}
		for name, tc := range map[string]struct {
			events  []outbox.Listed
			short   bool
			claimed int // entities of the first piece; -1: of the head
			next    int // size of the list to be made at once
		}{
			"HotEntities":         {list(100, 10), false, 0, sizes.long},
			"EachAnEntity":        {list(100, 100), false, -1, 0},
			"HotAndSoonOver":      {list(50, 10), true, 10, 0},
			"DistinctAndSoonOver": {list(50, 50), true, -1, 0},
		} {
			l := newLooks(50*time.Millisecond, sizes)
			l.took(sampleFrom, full, 0)
			if !l.wantsList() || l.size != sizes.sample {
				t.Fatalf("%s: no sample of a backlog: %v, %d", name, l.wantsList(), l.size)
			}
			l.listed(tc.events, tc.short, time.Millisecond, time.Millisecond)
			if got := l.wantsList(); got != (tc.next > 0) || got && l.size != tc.next {
				t.Errorf("%s: another list at once: %v, of %d, want %d", name, got, l.size, tc.next)
			}
			piece := l.take(sampleFrom)
			if claimed := len(piece); tc.claimed >= 0 && claimed != tc.claimed || (piece == nil) != (tc.claimed < 0) {
				t.Errorf("%s: %d entities of the list are claimed (nil: %v), want %d", name, claimed, piece == nil, tc.claimed)
			}
			if tc.next > 0 {
				continue
			}
			l.take(sampleFrom)
			if l.took(sampleFrom, full, 0); l.wantsList() {
				t.Errorf("%s: the same backlog is sampled twice", name)
			}
			l.took(sampleFrom, &outbox.Claimed{}, 0)
			if l.took(sampleFrom, full, 0); !l.wantsList() {
				t.Errorf("%s: no sample of the next backlog", name)
			}
		}
	})
}
