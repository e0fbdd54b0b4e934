package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

const (
	redialMin = 50 * time.Millisecond
	redialMax = 400 * time.Millisecond // a database that fails over is found within it
)

// resignRest is how long an instance that has handed over does not campaign, in heartbeats.
// It gives a standby time to reconnect; after it the instance may win again.
const resignRest = 3

// barredLooks is how often an instance that does not campaign looks at the lock, in a heartbeat.
const barredLooks = 4

// maxRest bounds the pause between consecutive failed terms, in heartbeats.
const maxRest = 16

// Work is what a leader does. ctx is cancelled with a cause that wraps [ErrLost] when the
// term is lost: return at once, the lock may be somebody else's. When a graceful end is
// asked for, ctx stays alive and t.Stopping is closed: drain and return. The elector waits
// for Work in both cases and frees the lock only then.
//
// When Work returns while the term lasts, with or without an error, the elector frees the
// lock and lets others try first.
type Work func(ctx context.Context, t *Term) error

// Elector takes part in the election of one group.
type Elector struct {
	cfg  Config
	open func(ctx context.Context) (session, error)
	log  *zap.Logger
	met  *metrics

	running atomic.Bool

	mu      sync.Mutex // guards status, term, moved and barred
	barred  bool       // no campaign, because somebody has said so
	refused error      // why the last term that was won could not begin; nil for none
	status  Status
	term    *Term
	moved   time.Time // end of the last step; zero while Run does not run

	// The rest belongs to the goroutine of Run.
	everProven bool
	fault      string        // kind of the fault that was logged last
	restUntil  time.Time     // no campaign before
	yielding   bool          // the rest ends as soon as another instance leads
	failures   int           // consecutive terms that ended because Work returned
	unrecorded *ended        // end of a lost term that is not in the database yet
	watching   chan struct{} // closed when watchBlockers has returned
	foreignPID int32
}

type ended struct {
	epoch  int64
	reason string
	at     time.Time // with the monotonic clock: the server may be away for long
}

// New checks cfg, reporting everything that is wrong with it, and registers the metrics.
// dial must return new connections made with [SessionConfig]. A nil log or reg is allowed.
func New(cfg Config, dial Dial, log *zap.Logger, reg prometheus.Registerer) (*Elector, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if dial == nil {
		err = errors.Join(err, errors.New("leader: dial is missing"))
	}
	if err != nil {
		return nil, err
	}
	return newElector(cfg, func(ctx context.Context) (session, error) {
		return openSession(ctx, cfg, dial)
	}, log, reg)
}

func newElector(cfg Config, open func(context.Context) (session, error), log *zap.Logger, reg prometheus.Registerer) (*Elector, error) {
	met, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	return &Elector{
		cfg: cfg, open: open, met: met,
		log:    log.Named("leader"),
		status: Status{Role: RoleDisconnected, Since: time.Now().Round(0)},
	}, nil
}

// Run campaigns and leads until ctx is done, which asks for a graceful end: a leader
// closes Stopping, keeps its term until Work has returned, frees the lock, and Run
// returns nil. It retries after every fault that may pass.
//
// It returns an error that a retry cannot fix: a [*PanicError], or a fault of the
// configuration before the first connection is proven ([ErrPooled], [ErrNotMigrated],
// [ErrServerTooOld], refused credentials, a missing database). Later the same faults only
// show in Status, because then the database has changed and not the configuration.
func (e *Elector) Run(ctx context.Context, work Work) error {
	if !e.running.CompareAndSwap(false, true) {
		return errors.New("leader: already running")
	}
	defer e.running.Store(false)
	defer e.rests()
	defer e.become(RoleDisconnected, nil, nil)
	e.moves()

	redial := redialMin
	for ctx.Err() == nil {
		began := time.Now()
		err := e.round(ctx, work)
		if panicked, ok := errors.AsType[*PanicError](err); ok {
			return panicked
		}
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			redial = redialMin
			continue
		}
		if !e.everProven && isConfigFault(err) {
			return fmt.Errorf("lock session: %w", err)
		}
		e.disconnected(err)
		if time.Since(began) > redialMax {
			redial = redialMin
		}
		pause(ctx, jitter(redial))
		redial = min(2*redial, redialMax)
	}
	return nil
}

// Campaign lets the elector try for the lock, or not: then it stands by and keeps its session, after
// a try that it has begun, which may succeed. A leader stays one; ask it to hand over with [Resign].
// An elector campaigns from the start. It may be called from any goroutine.
func (e *Elector) Campaign(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.barred = !on
}

func (e *Elector) mayCampaign() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.barred
}

// round opens one session, campaigns on it, and leads if it wins. Nil means that the next
// session may be opened at once.
func (e *Elector) round(ctx context.Context, work Work) error {
	octx, cancel := context.WithTimeout(ctx, dialTimeout)
	s, err := e.open(octx)
	cancel()
	if err != nil {
		return err
	}
	e.everProven = true
	defer func() {
		s.close(context.WithoutCancel(ctx))
		if e.watching != nil {
			<-e.watching
			e.watching = nil
		}
	}()

	e.recordEnd(ctx, s)
	e.fault = ""
	if e.become(RoleStandby, nil, nil) {
		e.log.Info("standing by", zap.String("event", "leader.standby"), zap.Int64("epoch", e.Status().HolderEpoch))
	}
	if err := e.campaign(ctx, s); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	return e.lead(ctx, s, work)
}

// campaign returns nil when the lock is won or ctx is done.
func (e *Elector) campaign(ctx context.Context, s session) error {
	look := time.Now()
	for ctx.Err() == nil {
		start := time.Now()
		if rest := e.restUntil.Sub(start); rest > 0 {
			// Without a statement the server would end the session as idle.
			st, err := e.readHolder(ctx, s)
			if err != nil {
				return err
			}
			look := e.cfg.Heartbeat
			if e.yielding {
				look = 2 * e.cfg.Poll
				if st.Led() && st.Instance != e.cfg.Instance { // its own lost session may still hold the lock
					rest = 0
					e.restUntil = start
				}
			}
			pause(ctx, min(rest, look))
			continue
		}
		if !e.mayCampaign() {
			if _, err := e.readHolder(ctx, s); err != nil {
				return err
			}
			e.proven(start)
			pause(ctx, e.cfg.Heartbeat/barredLooks)
			continue
		}
		pctx, cancel := context.WithTimeout(ctx, e.cfg.Trust)
		won, err := s.tryLock(pctx)
		cancel()
		if err != nil {
			return err // the lock may be held although the answer was lost: close the session
		}
		if won {
			return nil
		}
		e.proven(start)
		if !start.Before(look) {
			if _, err := e.readHolder(ctx, s); err != nil {
				return err
			}
			look = start.Add(e.cfg.Heartbeat)
		}
		pause(ctx, jitter(e.cfg.Poll))
	}
	return nil
}

func (e *Elector) readHolder(ctx context.Context, s session) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Trust)
	defer cancel()
	st, err := s.state(ctx)
	if err == nil {
		e.setHolder(st)
	}
	return st, err
}

// rest keeps this instance from campaigning for some heartbeats, so that another can win.
func (e *Elector) rest(heartbeats int) {
	d := time.Duration(min(heartbeats, maxRest)) * e.cfg.Heartbeat
	e.restUntil, e.yielding = time.Now().Add(d+rand.N(d/5+1)), false
}

// disconnected records a fault, and logs it unless the last one was of the same kind.
func (e *Elector) disconnected(err error) {
	fault := faultOf(err)
	if !e.become(RoleDisconnected, nil, err) && fault == e.fault {
		return
	}
	e.fault = fault
	e.log.Warn("no lock session; trying again until there is one", zap.String("event", "leader.disconnected"),
		zap.String("reason", fault), zap.Int64("epoch", e.Status().HolderEpoch), zap.Error(err))
}

// recordEnd records the end of a lost term that the lost session could not record.
func (e *Elector) recordEnd(ctx context.Context, s session) {
	if e.unrecorded == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Trust)
	defer cancel()
	// Best effort: the next leader closes the term anyway, without the reason.
	if err := s.endTerm(ctx, e.unrecorded.epoch, e.unrecorded.reason, time.Since(e.unrecorded.at)); err == nil {
		e.unrecorded = nil
	}
}

// jitter spreads d by ±20 %.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*(d/5)+1)
}

// pause waits for d and reports whether it did; false means that ctx is done.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
