package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Futile is how many events in a row must fail again to end a replay.
const Futile = 10

const (
	page     = 10_000                 // ids of one list
	maxBatch = 500                    // rows of one statement
	maxAsked = 5_000                  // ids of one statement that asks what has become of them
	look     = 250 * time.Millisecond // between two looks at what has become of them
	quiet    = 10 * time.Second       // without a change before the caller hears why
)

// Config is one replay.
type Config struct {
	Order outbox.LetterOrder
	// Rate is how many events go in a second; 0 sends all of them at once.
	Rate int
	// Wait is how long to watch after the last send until all are settled.
	Wait time.Duration
	// KeepGoing continues although every event fails again.
	KeepGoing bool
	// DB says whether somebody leads Group, and what operators hold back of the projection.
	DB      outbox.DB
	Group   string
	Timeout time.Duration // of one statement
	// Progress is called after every change, Note for each long wait.
	Progress func(Progress)
	Note     func(string)
}

// Progress counts the dead letters of a replay.
type Progress struct {
	Matched int64 // when it began
	Sent    int64
	Skipped int64 // no longer in failed, or locked, when their turn came
	Done    int64
	Failed  int64 // again
	Open    int64 // sent, and neither done nor failed when looked at last
}

// Result is how a replay has ended.
type Result struct {
	Progress
	AuditID int64  // 0 when nothing matched
	Outcome string // the audit's: finished, futile, interrupted, broken off
	Watched bool   // somebody led when it began
	Reason  string // of one that has failed again
	Error   string
}

// The outcomes of a replay.
const (
	Finished    = "finished"
	Stopped     = "stopped: all failed again"
	Interrupted = "interrupted"
	BrokenOff   = "broken off by an error"
)

var errFutile = errors.New("all failed again")

// run is one replay under way.
type run struct {
	cfg     Config
	replay  *outbox.Replay
	led     func(context.Context) (bool, error)
	holds   func(context.Context) (outbox.Holds, error)
	fates   func(context.Context, []outbox.ID) (outbox.Fates, error)
	res     Result
	open    []outbox.ID // the next to ask for first
	still   int         // how many were asked for since one of them was settled
	futile  int         // failures since the last success
	next    time.Time   // not before: the pace
	looked  time.Time
	changed time.Time // since then nothing has moved
}

// Run replays the selected events and returns the outcome. The result is right
// with an error, too: it says how far the replay has come.
func Run(ctx context.Context, letters *outbox.DeadLetters, cfg Config) (Result, error) {
	if err := cfg.Order.Validate(); err != nil {
		return Result{}, err
	}
	matched, err := letters.Count(ctx, cfg.Order.Selector, 0)
	if err != nil {
		return Result{}, err
	}
	if cfg.Order.Limit > 0 {
		matched = min(matched, int64(cfg.Order.Limit))
	}
	r := &run{
		cfg: cfg,
		led: func(ctx context.Context) (bool, error) {
			st, err := leader.ReadState(ctx, cfg.DB, cfg.Group)
			return st.Led(), err
		},
		holds: func(ctx context.Context) (outbox.Holds, error) {
			return outbox.ReadHolds(ctx, cfg.DB, cfg.Group, letters.Projection(), cfg.Timeout)
		},
		res: Result{Progress: Progress{Matched: matched}, Outcome: Finished},
	}
	if matched == 0 {
		return r.res, nil
	}
	if r.res.Watched, err = r.led(ctx); err != nil {
		return r.res, err
	}
	if r.replay, err = letters.BeginReplay(ctx, cfg.Order, matched); err != nil {
		return r.res, err
	}
	r.fates, r.res.AuditID = r.replay.Fates, r.replay.AuditID()
	r.changed = time.Now()
	err = r.send(ctx)
	if err == nil {
		err = r.settle(ctx)
	}
	switch {
	case errors.Is(err, errFutile):
		r.res.Outcome, err = Stopped, nil
	case err != nil && ctx.Err() != nil:
		r.res.Outcome = Interrupted
	case err != nil:
		r.res.Outcome = BrokenOff
	}
	p := r.res.Progress
	end := r.replay.End(context.WithoutCancel(ctx), outbox.ReplayOutcome{
		Outcome: r.res.Outcome, Matched: p.Matched, Skipped: p.Skipped, Done: p.Done, Failed: p.Failed, Open: p.Open,
	})
	if err == nil {
		err = end
	}
	return r.res, err
}

func (r *run) watched() bool { return r.res.Watched && r.cfg.Rate > 0 }

// send lists and sends until no event is left.
func (r *run) send(ctx context.Context) error {
	left := r.cfg.Order.Limit
	for {
		size := page
		if r.cfg.Order.Limit > 0 {
			size = min(page, left)
		}
		if size == 0 {
			return nil
		}
		ids, err := r.replay.Next(ctx, size)
		if err != nil || len(ids) == 0 {
			return err
		}
		left -= len(ids)
		for len(ids) > 0 {
			n := min(r.batch(), len(ids))
			if err := r.room(ctx, n); err != nil {
				return err
			}
			if err := r.sendBatch(ctx, ids[:n]); err != nil {
				return err
			}
			ids = ids[n:]
		}
	}
}

func (r *run) sendBatch(ctx context.Context, ids []outbox.ID) error {
	sent, err := r.replay.Send(ctx, ids)
	if err != nil {
		return err
	}
	r.open = append(r.open, sent...)
	r.res.Sent += int64(len(sent))
	r.res.Skipped += int64(len(ids) - len(sent))
	r.tell()
	return nil
}

// batch is how many go next: few until one has gone through.
func (r *run) batch() int {
	switch {
	case r.cfg.Rate == 0:
		return maxBatch
	case r.watched() && r.res.Done == 0:
		return Futile
	default:
		return max(1, min(r.cfg.Rate/4, maxBatch))
	}
}

// room waits until it is time for n more and until the leader has kept up.
func (r *run) room(ctx context.Context, n int) error {
	if r.cfg.Rate == 0 {
		return nil
	}
	if err := pause(ctx, time.Until(r.next)); err != nil {
		return err
	}
	defer func() { r.next = time.Now().Add(time.Duration(n) * time.Second / time.Duration(r.cfg.Rate)) }()
	for r.watched() {
		if err := r.look(ctx); err != nil {
			return err
		}
		ahead := max(2*r.cfg.Rate, Futile)
		if r.res.Done == 0 {
			ahead = n // the first ones alone
		}
		if len(r.open)+n <= ahead {
			return nil
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
	}
	return nil
}

// look reads the results of the events that are sent and not settled. Of very many it asks for
// as many as it can in the time of one look, and goes on with the others at the next.
func (r *run) look(ctx context.Context) error {
	if len(r.open) == 0 || time.Since(r.looked) < look {
		return nil
	}
	began, before := time.Now(), r.res.Done+r.res.Failed
	for left := len(r.open); left > 0 && time.Since(began) < look; {
		n := min(left, maxAsked)
		if err := r.ask(ctx, n); err != nil {
			return err
		}
		left -= n
	}
	r.looked = time.Now()
	if r.res.Done+r.res.Failed > before {
		r.tell()
	} else if r.still >= len(r.open) && time.Since(r.changed) > quiet {
		r.changed = time.Now()
		r.cfg.Note(r.stalled(ctx))
	}
	if r.futile >= Futile && !r.cfg.KeepGoing {
		return errFutile
	}
	return nil
}

// ask reads the results of the first n, and puts those that are open behind all others.
func (r *run) ask(ctx context.Context, n int) error {
	f, err := r.fates(ctx, r.open[:n])
	if err != nil {
		return err
	}
	r.open = append(r.open[n:], f.Open...)
	r.res.Open = int64(len(r.open))
	if f.Done > 0 {
		r.futile = 0
	} else {
		r.futile += f.Failed
	}
	if r.still += n; f.Done+f.Failed > 0 {
		r.still = 0
	}
	r.res.Done += int64(f.Done)
	if r.res.Failed += int64(f.Failed); f.Failed > 0 {
		r.res.Reason, r.res.Error = f.Reason, f.Error
	}
	return nil
}

func (r *run) stalled(ctx context.Context) string {
	text := fmt.Sprintf("waiting: %d replayed events are not settled yet", len(r.open))
	if len(r.open) == 1 {
		text = "waiting: 1 replayed event is not settled yet"
	}
	led, unknown := r.led(ctx)
	if unknown == nil && !led {
		text += "; nobody leads"
	}
	switch h, err := r.holds(ctx); {
	case err != nil:
	case h.Pause != nil:
		text += "; the projection is " + h.Pause.String()
	case len(h.Quarantines) > 0:
		text += fmt.Sprintf("; entities in quarantine: %d", len(h.Quarantines))
	case h.Throttle != nil:
		text += "; the projection is " + h.Throttle.String()
	case led: // an outage or an open breaker is not in the database
		text += "; /health/ready of the leader, on its own host, says what stands in the way"
	}
	return text
}

func (r *run) tell() {
	r.changed = time.Now()
	r.res.Open = int64(len(r.open))
	r.cfg.Progress(r.res.Progress)
}

// settle watches the last ones, at most for the wait.
func (r *run) settle(ctx context.Context) error {
	if !r.res.Watched {
		return nil
	}
	for until := time.Now().Add(r.cfg.Wait); len(r.open) > 0 && time.Now().Before(until); {
		if err := pause(ctx, min(look, time.Until(until))); err != nil {
			return err
		}
		if err := r.look(ctx); err != nil && !errors.Is(err, errFutile) { // everything is sent
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
