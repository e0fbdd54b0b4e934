package history

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFirstDone(t *testing.T) {
	t.Parallel()
	log := takeover().read()
	for epoch, want := range map[int64]int64{1: 1, 2: 3} {
		if got, ok := log.FirstDone(epoch); !ok || got.Version != want {
			t.Errorf("first done from epoch %d: got version %d (%v), want %d", epoch, got.Version, ok, want)
		}
	}
	if got, ok := log.FirstDone(3); ok {
		t.Errorf("first done from epoch 3: got %+v, want none", got)
	}
}

func TestFirstDoneAfter(t *testing.T) {
	t.Parallel()
	log := takeover().read()
	all := log.Changes
	last := all[len(all)-1].At
	if got, ok := log.FirstDoneAfter(last.Add(-time.Microsecond)); !ok || got.Version != 3 {
		t.Errorf("got version %d (%v), want 3", got.Version, ok)
	}
	if got, ok := log.FirstDoneAfter(last); ok {
		t.Errorf("after the last: got %+v, want none", got)
	}
}

func TestTakeovers(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Time { return start.Add(time.Duration(n) * time.Millisecond) }
	s := &script{}
	at := func(n int, do func()) { s.tx = uint64(n - 1); do() } // s.commit is at n milliseconds
	at(1, func() { s.term(1, "a") })
	for v := range int64(3) {
		at(100+int(v), func() { s.commit(enqueued(v + 1)) })
	}
	at(200, func() { s.lease("a", 1, 1) })
	at(300, func() { s.end(s.marks[0].batch, "a", done(1)) })
	at(310, func() { s.lease("a", 1, 2) })
	// killed at 400
	at(450, func() { s.term(2, "b") })
	at(455, func() { s.end(s.marks[2].batch, "b", reclaimed(2)) })
	at(460, func() { s.lease("b", 2, 2) })
	at(470, func() { s.end(s.marks[4].batch, "b", done(2)) })
	// frozen at 600; c begins a term, and is gone before it settles anything
	at(5000, func() { s.term(3, "c") })
	at(5500, func() { s.term(4, "a") })
	at(5600, func() { s.commit(claimed(3, "a", 4)) }) // of an older build
	at(5700, func() { s.commit(settled(3, Done, "a", 4)) })
	// throttled from 6000 to 9000
	at(6100, func() { s.commit(enqueued(4)) })
	at(9500, func() { s.lease("a", 4, 4) })
	at(9600, func() { s.end(s.marks[6].batch, "a", removed(4, Pending)) })

	got := Takeovers(s.read(), []FaultMark{
		{Name: "sigkill", At: ms(400), Epoch: 1},
		{Name: "sigstop", At: ms(600), Epoch: 2},
		{Name: "throttle", At: ms(6000), Epoch: 4, Until: ms(9000)},
		{Name: "nothing", At: ms(20000), Epoch: 4},
	})
	type brief struct {
		Happened          bool
		Epoch             int64
		Instance          string
		Lead, Settle, Gap time.Duration
		Delayed           int
	}
	const d = time.Millisecond
	want := []brief{
		{true, 2, "b", 50 * d, 70 * d, 170 * d, 1}, // 3 waited, as it turned out, for five seconds
		{true, 4, "a", 4900 * d, 5100 * d, 5230 * d, 1},
		{false, 0, "", 0, 0, 0, 1},
		{false, 0, "", 0, 0, 0, 0},
	}
	for i := range got {
		g := &got[i]
		b := brief{Happened: g.Happened(), Epoch: g.Epoch, Instance: g.Instance, Delayed: g.Delayed}
		if g.Happened() {
			b.Lead, b.Settle, b.Gap = g.Lead(), g.Settle(), g.Gap()
		}
		if diff := cmp.Diff(want[i], b); diff != "" {
			t.Errorf("%s (-want +got):\n%s", g.Fault.Name, diff)
		}
	}
}

// A takeover counts for the last fault before it.
func TestTakeoverBelongsToTheLastFault(t *testing.T) {
	t.Parallel()
	s := takeover() // term 2 begins with transaction 7
	got := Takeovers(s.read(), []FaultMark{
		{Name: "first", At: start.Add(2 * time.Millisecond), Epoch: 1},
		{Name: "second", At: start.Add(6 * time.Millisecond), Epoch: 1},
	})
	if got[0].Happened() || !got[1].Happened() {
		t.Errorf("got %+v, want the takeover with the second", got)
	}
}
