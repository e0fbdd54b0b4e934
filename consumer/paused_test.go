package consumer_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// pause pauses the projection, as weft pause does; the returned function resumes it.
func (r *rig) pause() (resume func()) {
	r.t.Helper()
	o := outbox.HoldOrder{Group: r.cfg.Group, Projection: projName, By: "alice", Why: "a test", Kind: outbox.Pause}
	if _, begun, err := outbox.BeginHold(r.t.Context(), r.pool, o, testenv.Limit); err != nil || !begun {
		r.t.Fatalf("pause: %v, %v", begun, err)
	}
	return func() {
		if ended, err := outbox.EndHold(r.t.Context(), r.pool, o, testenv.Limit); err != nil || !ended {
			r.t.Fatalf("resume: %v, %v", ended, err)
		}
	}
}

// What is in flight when a projection is paused settles; nothing else is leased, by this term
// or the next, until it is resumed.
func TestPauseHoldsAcrossTermsAndLosesNothing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.proj.entering, r.proj.leave = make(chan struct{}, 1000), make(chan struct{})
	r.enqueueMany(5, 0)
	stop := r.start()
	<-r.proj.entering
	resume := r.pause()
	r.eventually(func() bool { return r.pipe.State().Holds.Pause != nil }, "the leader to see the pause")
	if p := r.pipe.State().Holds.Pause; p.By != "alice" || p.Why != "a test" {
		t.Errorf("got %+v, want who has paused it and why", p)
	}
	close(r.proj.leave)
	r.await(map[string]int{"done": 5})

	r.enqueueMany(5, 100)
	leases := r.store.get(&r.store.leases)
	looks := func(more int) func() bool {
		from := r.store.get(&r.store.holds)
		return func() bool { return r.store.get(&r.store.holds) >= from+more }
	}
	r.eventually(looks(3), "three more looks for the pause")
	if n := r.store.get(&r.store.leases); n != leases {
		t.Errorf("%d leases during the pause, want none", n-leases)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	r.term = &aTerm{epoch: 1, stop: make(chan struct{})}
	stop = r.start()
	r.eventually(func() bool { return r.pipe.State().Holds.Pause != nil }, "the next term to see the pause")
	r.eventually(looks(3), "three more looks for the pause")
	if n := r.store.get(&r.store.leases); n != leases {
		t.Errorf("%d leases by the next term, want none", n-leases)
	}
	resume()
	r.await(map[string]int{"done": 10})
	if paused, ended := len(r.lines("projection.paused")), len(r.lines("projection.resumed")); paused != 2 || ended != 1 {
		t.Errorf("%d and %d log lines, want one for each term and one for the end", paused, ended)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
