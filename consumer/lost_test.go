package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

var errLost = errors.New("the connection is lost")

func linked(o *options) { o.linked = true }

func (r *rig) cut() {
	if err := r.link.Cut(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) heal() {
	if err := r.link.Heal(); err != nil {
		r.t.Error(err)
	}
}

// The connection breaks at a lease or a settle, before or after it is committed, and the
// database stays away for a while. Nothing is sent under a lease that was not answered,
// nothing is sent a second time because a settle was not, and every event lands.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at   func(*watched) *func() error
		sent int // calls of the projection while the database is away
	}{
		"LeaseNotMade":    {func(w *watched) *func() error { return &w.onLease }, 0},
		"LeaseMade":       {func(w *watched) *func() error { return &w.leased }, 0},
		"SettleNotMade":   {func(w *watched) *func() error { return &w.onSettle }, 1},
		"SettleCommitted": {func(w *watched) *func() error { return &w.settled }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, linked, func(o *options) { o.Concurrency = 1 })
			var once atomic.Bool
			*c.at(r.store) = func() error {
				if once.CompareAndSwap(false, true) {
					r.cut()
					return errLost
				}
				return nil
			}
			keys := make([]outbox.Key, 30)
			for i := range keys {
				keys[i] = newKey()
				r.enqueue(keys[i], 1, 2)
			}
			r.start()
			r.eventually(func() bool { return strings.HasPrefix(r.pipe.State().Outbox, "outbox: ") }, "the state to say that the outbox does not answer")
			failed := r.store.get(&r.store.failed)
			r.eventually(func() bool { return r.store.get(&r.store.failed) >= failed+5 }, "more calls without an answer")
			// A minute goes by, which is longer than the lease says that it lasts.
			r.exec("update weft_lease set leased_at = leased_at - interval '1 minute', lease_until = lease_until - interval '1 minute'")
			r.proj.mu.Lock()
			if got := len(r.proj.calls); got != c.sent {
				t.Errorf("%d calls of the projection, want %d", got, c.sent)
			}
			r.proj.mu.Unlock()
			r.heal()
			r.await(map[string]int{"done": 60})
			for _, k := range keys {
				got := r.proj.versions(k)
				// A list that begins elsewhere than at the head, as on a slow machine, may end between the two.
				if !slices.Equal(got, []int64{2}) && !slices.Equal(got, []int64{1, 2}) {
					t.Errorf("projected %v, want version 2 once, at most after version 1", got)
				}
			}
			r.noLeases()
			r.eventually(func() bool { return r.pipe.State().Outbox == "" }, "the state to say that it answers again")
			r.eventually(func() bool { return r.metric("outbox_processed_total") == 60 }, "60 events to be counted")
			if at := r.metric("outbox_last_success_timestamp_seconds"); at < 1e9 {
				t.Errorf("last success at %v, want a time of the database", at)
			}
			if n := r.count("search_outbox_events where attempts > 0"); n > 0 {
				t.Errorf("%d events have attempts, want none", n)
			}
		})
	}
}

// late is a store whose first lease is committed when its answer is lost for long, and the
// pipeline has asked for its end.
type late struct {
	*watched
	once      sync.Once
	abandoned chan struct{} // closed when it has
	made      chan error
}

func (l *late) Lease(ctx context.Context, epoch int64, batch uuid.UUID, groups []outbox.Group) (out *outbox.Lease, err error) {
	l.once.Do(func() {
		err = errLost
		go func() {
			<-l.abandoned
			_, err := l.watched.Lease(ctx, epoch, batch, groups)
			l.made <- err
		}()
	})
	if err != nil {
		return nil, err
	}
	return l.watched.Lease(ctx, epoch, batch, groups)
}

func (l *late) Abandon(ctx context.Context, epoch int64, lost []uuid.UUID) (int, error) {
	n, err := l.watched.Abandon(ctx, epoch, lost)
	select {
	case <-l.abandoned:
	default:
		close(l.abandoned)
	}
	return n, err
}

// A lease may be committed long after its answer was lost, as when a disk stalls: it is not
// left behind.
func TestLeaseCommittedAfterItsAnswerWasLost(t *testing.T) {
	t.Parallel()
	var l *late
	r := setup(t, func(o *options) {
		o.wrap = func(w *watched) consumerStore {
			l = &late{watched: w, abandoned: make(chan struct{}), made: make(chan error, 1)}
			return l
		}
	})
	r.enqueue(newKey(), 1)
	release := r.hold(1) // so that the event is still open when it is leased late
	r.start()
	if err := <-l.made; err != nil {
		t.Fatal(err)
	}
	release()
	r.await(map[string]int{"done": 1})
	r.noLeases()
}

// A leader without a way to its tables keeps nobody waiting: its term ends, although its
// lock session lives. That a dial outlasts the deadline of every call does not hide it.
func TestCutOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dial  time.Duration
		fault func(*rig) error
	}{
		"Refused":                 {0, func(r *rig) error { return r.link.Cut() }},
		"DialOutlastsTheDeadline": {time.Hour, func(r *rig) error { return errors.Join(r.link.Cut(), r.link.HalfOpen()) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, linked, func(o *options) { o.CutOff, o.timeout, o.dial = 500*time.Millisecond, 2*time.Second, c.dial })
			r.enqueue(newKey(), 1)
			if err := c.fault(r); err != nil {
				t.Fatal(err)
			}
			r.endsCutOff()
		})
	}
}

// endsCutOff runs a term, and expects it to end because the outbox does not answer.
func (r *rig) endsCutOff() {
	r.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- r.pipe.Run(r.t.Context(), r.term) }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "no answer of the outbox for") {
			r.t.Errorf("Run returned %v, want that there is no answer", err)
		}
	case <-time.After(testenv.Limit):
		r.t.Fatal("the term goes on without a way to its tables")
	}
}

// The server stays away for longer than a term waits for it, with a settle under way. The next
// term takes back what was leased, if the settle was not committed, and nothing is lost, done
// twice, or done by the term that is over.
func TestTermAfterACutOff(t *testing.T) {
	t.Parallel()
	for name, committed := range map[string]bool{"SettleNotMade": false, "SettleCommitted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, linked, func(o *options) { o.CutOff = 500 * time.Millisecond })
			r.notePassed()
			var once atomic.Bool
			breaks := func() error {
				if once.CompareAndSwap(false, true) {
					r.cut()
					return errLost
				}
				return nil
			}
			if committed {
				r.store.settled = breaks
			} else {
				r.store.onSettle = breaks
			}
			key := newKey()
			r.enqueue(key, 1, 2)
			r.endsCutOff()
			if got := r.metric("outbox_inflight_events"); got != 0 {
				t.Errorf("%v events are shown in flight after the term, want none", got)
			}
			r.heal()
			r.exec("update weft_leader set epoch = 2 where group_name = 'g'")
			r.term = &aTerm{epoch: 2, stop: make(chan struct{})}
			got, err := r.store.ReclaimLeases(t.Context(), outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxProcessing: time.Hour, MaxReclaims: 10})
			if err != nil || (len(got) == 0) != committed {
				t.Errorf("reclaimed %+v, %v, want the lease unless it was settled", got, err)
			}
			r.enqueue(key, 3)
			r.start()
			r.await(map[string]int{"done": 3})
			if v := r.proj.versions(key); !slices.IsSorted(v) || v[len(v)-1] != 3 {
				t.Errorf("projected %v, want 3 last", v)
			}
			r.nonePassed()
			r.noLeases()
		})
	}
}

// A short time without connections is waited out, and visible.
func TestShortCutOffIsWaitedOut(t *testing.T) {
	t.Parallel()
	r := setup(t, linked, func(o *options) { o.CutOff = time.Minute })
	r.cut()
	r.enqueue(newKey(), 1)
	stop := r.start()
	r.eventually(func() bool { return strings.Contains(r.pipe.State().Outbox, "127.0.0.1") }, "the state to say that the outbox does not answer")
	r.heal()
	r.await(map[string]int{"done": 1})
	r.eventually(func() bool { return r.pipe.State().Outbox == "" }, "the state to say that it answers")
	if fault, back := len(r.lines("outbox.fault")), len(r.lines("outbox.recovered")); fault != 1 || back != 1 {
		t.Errorf("%d lines that it does not answer and %d that it does, want one each", fault, back)
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// What could not be settled because the database was away for longer than the grace is left.
func TestGraceIsNotWaitedForBeyondItsEnd(t *testing.T) {
	t.Parallel()
	r := setup(t, linked, func(o *options) { o.Grace = 100 * time.Millisecond })
	r.store.onSettle = func() error { r.cut(); return errLost }
	r.enqueue(newKey(), 1)
	stop := r.start()
	r.eventually(func() bool { return len(r.lines("outbox.settle_fault")) == 1 }, "the settle to fail")
	if err := stop(); err == nil || !strings.Contains(err.Error(), "left after") {
		t.Errorf("stop: %v, want that a batch is left", err)
	}
	testenv.Eventually(t, func() bool { return r.count("weft_lease") == 1 && r.counts()["pending"] == 1 }, "the event with its lease")
}

// lastLease is a store whose first lease is answered when the term is already over.
type lastLease struct {
	*watched
	leased atomic.Bool
}

func (l *lastLease) Lease(ctx context.Context, epoch int64, batch uuid.UUID, groups []outbox.Group) (*outbox.Lease, error) {
	got, err := l.watched.Lease(ctx, epoch, batch, groups)
	l.leased.Store(true)
	<-ctx.Done()
	return got, err
}

func (l *lastLease) Holds(ctx context.Context) (outbox.Holds, []outbox.Key, error) {
	if l.leased.Load() {
		return outbox.Holds{}, nil, outbox.ErrFenced
	}
	return l.watched.Holds(ctx)
}

// A lease whose answer comes after the end of its term is the successor's to take back: nothing
// of it counts as in flight here.
func TestLeaseAnsweredAfterTheTermIsNotInFlight(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *options) { o.wrap = func(w *watched) consumerStore { return &lastLease{watched: w} } })
	r.enqueueMany(5, 1)
	if err := r.pipe.Run(t.Context(), r.term); !errors.Is(err, outbox.ErrFenced) {
		t.Fatalf("the term has ended with %v, want %v", err, outbox.ErrFenced)
	}
	if n := r.store.get(&r.store.events); n != 5 {
		t.Fatalf("%d events were leased, want 5", n)
	}
	if n := r.metric("outbox_inflight_events"); n != 0 {
		t.Errorf("%v events are in flight after the term, want none", n)
	}
}
