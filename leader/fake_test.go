package leader

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// script is a lock session that does what a test says. Unset functions succeed.
type script struct {
	tryLock  func(n int) (bool, error)
	bump     func(ctx context.Context) error
	beat     func(ctx context.Context, n int) error
	blockers func() error      // nobody is found in the way, or no answer
	release  func()            // called while the lock is being freed
	asked    chan *Resignation // a request to hand over, with its notification
	unlocked bool
	vacant   bool          // nobody leads, else holder does
	holder   string        // another instance, unless said otherwise
	died     chan struct{} // closed: the server has ended the session
	stall    time.Duration // for which this process stands still once it has nothing to do

	mu    sync.Mutex
	start time.Time
	trace []string
	tries []time.Time
	beats []time.Time
	ended time.Time // as endTerm says of an earlier term
}

func newScript() *script {
	return &script{unlocked: true, died: make(chan struct{}), asked: make(chan *Resignation, 1), start: time.Now()}
}

func (s *script) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *script) history() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.trace)
}

func (s *script) has(what string) bool { return slices.Contains(s.history(), what) }

func (s *script) tryLockNumber() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries = append(s.tries, time.Now())
	return len(s.tries)
}

func (s *script) tryTimes() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tries)
}

type scripted struct {
	*script
	epoch   int64
	request *Resignation
}

func (s *scripted) tryLock(context.Context) (bool, error) {
	n := s.tryLockNumber()
	if s.script.tryLock == nil {
		return true, nil
	}
	return s.script.tryLock(n)
}

func (s *scripted) bump(ctx context.Context) (grant, error) {
	g := grant{epoch: s.epoch, proof: time.Now()}
	if s.script.bump != nil {
		if err := s.script.bump(ctx); err != nil {
			return grant{}, err
		}
	}
	s.note("bump")
	return g, nil
}

func (s *scripted) terminateBlockers(context.Context) ([]blocker, error) {
	if s.script.blockers == nil {
		return nil, nil
	}
	return nil, s.script.blockers()
}

func (s *scripted) beat(ctx context.Context, epoch int64) (*Resignation, error) {
	s.mu.Lock()
	s.beats = append(s.beats, time.Now())
	n := len(s.beats)
	s.mu.Unlock()
	if epoch != s.epoch {
		return nil, fmt.Errorf("beat of epoch %d on a session of epoch %d", epoch, s.epoch)
	}
	if s.script.beat == nil {
		return s.request, nil
	}
	return s.request, s.script.beat(ctx, n)
}

func (s *scripted) idle(ctx context.Context, _ int64) error {
	if s.stall > 0 {
		<-time.After(s.stall)
	}
	select {
	case s.request = <-s.asked:
		return nil
	case <-ctx.Done():
		return nil
	case <-s.died:
		return errSessionClosed
	}
}

func (s *scripted) state(context.Context) (State, error) {
	return State{Epoch: 41, Instance: cmp.Or(s.holder, "other"), LockHeld: !s.vacant, LockMatches: !s.vacant}, nil
}

func (s *scripted) endTerm(_ context.Context, epoch int64, reason string, ago time.Duration) error {
	s.mu.Lock()
	s.ended = time.Now().Add(-ago)
	s.mu.Unlock()
	s.note("endTerm %d %s", epoch, reason)
	return nil
}

func (s *scripted) release(ctx context.Context, _ int64, reason string) (bool, error) {
	select {
	case <-s.died:
		s.note("release failed")
		return false, errSessionClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if s.script.release != nil {
		s.script.release()
	}
	s.note("release %s", reason)
	return s.unlocked, nil
}

func (s *scripted) close(context.Context) { s.note("close") }

func (s *scripted) address() string { return "a script" }

// bench runs an elector on scripted sessions.
type bench struct {
	*Elector
	reg  *prometheus.Registry
	logs *observer.ObservedLogs

	mu       sync.Mutex
	sessions []*script
	opened   []time.Time
}

func fastConfig() Config { return Config{Group: "g", Instance: "me"}.withDefaults() }

// newBench opens sessions one after the other with next; a nil script with a nil error
// is a default session.
func newBench(t *testing.T, next func(n int) (*script, error)) *bench {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	b := &bench{reg: prometheus.NewPedanticRegistry(), logs: logs}
	open := func(context.Context) (session, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.opened = append(b.opened, time.Now())
		var s *script
		var err error
		if next != nil {
			s, err = next(len(b.opened))
		}
		if err != nil {
			return nil, err
		}
		if s == nil {
			s = newScript()
		}
		b.sessions = append(b.sessions, s)
		return &scripted{script: s, epoch: int64(len(b.sessions))}, nil
	}
	e, err := newElector(fastConfig(), open, zap.New(core), b.reg)
	if err != nil {
		t.Fatalf("newElector: %v", err)
	}
	b.Elector = e
	return b
}

func (b *bench) session(i int) *script {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[i]
}

func (b *bench) events() []string {
	var got []string
	for _, l := range b.logs.All() {
		m := l.ContextMap()
		event := fmt.Sprint(m["event"])
		if reason, ok := m["reason"]; ok {
			event += " " + fmt.Sprint(reason)
		}
		got = append(got, strings.TrimPrefix(event, "leader."))
	}
	return got
}

func (b *bench) stepDowns(reason string) float64 {
	return testutil.ToFloat64(b.met.stepDowns.WithLabelValues(reason))
}

// start runs the elector until the returned function is called, which returns Run's error.
func (b *bench) start(t *testing.T, work Work) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx, work) }()
	return func() error {
		cancel()
		return <-done
	}
}

// untilStopped is work that drains at once.
func untilStopped(ctx context.Context, t *Term) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.Stopping():
		return nil
	}
}
