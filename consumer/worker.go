package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// result is what a worker answers.
type result struct {
	batch   *batch
	err     error // ends the term
	waits   []outbox.Wait
	back    []outbox.Event // still claimed, to be projected on their own
	at      time.Time      // of the settle; database clock
	unsure  bool           // rows were not as claimed, or an answer was lost: waits may be missing
	good    bool           // nothing of it failed or must be retried
	resumed bool           // it ended an outage or closed the breaker
	given   bool           // something is ready again
}

// work projects a batch and settles it.
func (r *run) work(b *batch) *result {
	started := time.Now()
	heads := make([]outbox.Event, len(b.groups))
	for i, g := range b.groups {
		heads[i] = *g.newest()
	}
	ctx := b.span.context(r.ctx)
	outcomes, err := r.p.project(ctx, b, heads)
	if err != nil { // the term is over, or the authority is
		b.span.abandon(err)
		return &result{batch: b, err: err}
	}
	b.span.projected()
	v := r.p.judge(b, outcomes)
	settled, err := r.settle(ctx, b, v.settlements)
	if err != nil {
		b.span.abandon(err)
		return &result{batch: b, err: err}
	}
	v.count()
	b.span.finish(b, v, settled)
	r.p.report(b, v, settled, started)
	return &result{
		batch: b, waits: settled.Waits, back: v.back, at: settled.At,
		unsure: settled.Mismatch > 0, good: v.retry+v.failed == 0, resumed: v.resumed, given: v.given,
	}
}

// project returns one outcome per event. A fault that names no shared cause is
// bisected until it stands alone; a shared one closes the gate and makes every
// event of unknown fate a retry. An error ends the term.
func (p *Pipeline) project(ctx context.Context, b *batch, events []outbox.Event) ([]outbox.Outcome, error) {
	outcomes, err := p.call(ctx, events)
	p.pulse.moved(b)
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return nil, cause
	}
	if err == nil {
		return outcomes, nil
	}
	if errors.Is(err, outbox.ErrFenced) {
		return nil, err
	}
	if aerr := outbox.CheckAuthority(ctx); aerr != nil {
		return nil, aerr
	}
	f := outbox.AsFault(err)
	if f.Shared {
		b.outage = true
		p.outage(ctx, f)
	} else if len(outcomes) == 0 && len(events) > 1 && (!f.Reason.Transient() || f.Reason == outbox.ReasonDBContention) {
		half := len(events) / 2
		left, err := p.project(ctx, b, events[:half])
		if err != nil {
			return nil, err
		}
		right, err := p.project(ctx, b, events[half:])
		if err != nil {
			return nil, err
		}
		return append(left, right...), nil
	}
	if len(outcomes) == len(events) { // the projection knows the fate of some
		return outcomes, nil
	}
	outcomes = make([]outbox.Outcome, len(events))
	for i := range outcomes {
		outcomes[i] = outbox.Outcome{Verdict: outbox.Retry, Reason: f.Reason, Detail: f.Err.Error(), RetryAfter: f.RetryAfter, Marks: f.Marks}
	}
	return outcomes, nil
}

// call runs the projection under its deadline. A panic and a wrong number of
// outcomes are faults of unknown reason, not the end of the process.
func (p *Pipeline) call(ctx context.Context, events []outbox.Event) (out []outbox.Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ProjectTimeout)
	defer cancel()
	defer p.metrics.stage(ctx, p.Name(), stageProject, time.Now())
	defer func() {
		if v := recover(); v != nil {
			p.log.Error("projection panicked", zap.String("event", "projection.panic"),
				zap.Any("panic", v), zap.ByteString("stack", debug.Stack()), spanlog.IDs(ctx))
			out, err = nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("panic: %v", v)}
		}
	}()
	out, err = p.proj.Project(ctx, events)
	if err == nil && len(out) != len(events) {
		err = fmt.Errorf("%d outcomes for %d events", len(out), len(events))
		return nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: err}
	}
	return out, err
}

func (p *Pipeline) outage(ctx context.Context, f *outbox.Fault) {
	if p.gate.outage(f) {
		p.log.Warn("destination unusable: claims stop until it answers",
			zap.String("event", "projection.outage"), zap.String("reason", string(f.Reason)), zap.Error(f.Err), spanlog.IDs(ctx))
	}
}

// verdicts is the judgement over a batch.
type verdicts struct {
	settlements                   []outbox.Settlement
	heads                         []int            // of each group's newest event, the place in settlements
	outcomes                      []outbox.Outcome // of each group's newest event
	ok, retry, failed, superseded int
	reason                        outbox.Reason  // of the worst
	back                          []outbox.Event // still claimed, to be projected on their own
	resumed, given                bool
}

// judge applies the retry policy and the breaker, and settles older events with
// the newest of their entity.
func (p *Pipeline) judge(b *batch, outcomes []outbox.Outcome) *verdicts {
	v := &verdicts{
		settlements: make([]outbox.Settlement, 0, b.events),
		heads:       make([]int, len(b.groups)),
		outcomes:    outcomes,
	}
	for i, g := range b.groups {
		st := p.decide(b, g.newest(), &outcomes[i], v)
		st.Older = g.older
		v.heads[i] = len(v.settlements)
		v.settlements = append(v.settlements, st)
		for j := range g.events[:len(g.events)-1] {
			older := outbox.Settlement{Event: &g.events[j]}
			switch st.Verdict {
			case outbox.Done:
				older.Verdict = outbox.Superseded
			case outbox.Failed: // that says nothing about the others, which stay claimed
				v.back = append(v.back, g.events[j])
				continue
			default:
				older.Verdict, older.Delay = outbox.Waiting, st.Delay
			}
			v.settlements = append(v.settlements, older)
		}
	}
	return v
}

// decide makes an outcome a settlement.
func (p *Pipeline) decide(b *batch, e *outbox.Event, o *outbox.Outcome, v *verdicts) outbox.Settlement {
	st := outbox.Settlement{Event: e, Verdict: o.Verdict, Reason: o.Reason, Detail: o.Detail}
	switch o.Verdict {
	case outbox.Done:
		if p.gate.success(b.openings) {
			v.resumed = true
			p.log.Info("projection resumes", zap.String("event", "projection.resumed"), b.span.ids())
		}
		return st
	case outbox.Retry:
		if !p.cfg.Retry.exhausted(e.Attempts, o.Reason.Transient() || b.outage) {
			st.Delay = p.cfg.Retry.delay(e.Attempts, o.RetryAfter)
			v.retry++
			v.worst(o.Reason)
			return st
		}
	case outbox.Failed:
	default:
		st.Reason, st.Detail = outbox.ReasonUnknown, "projection answered "+o.Verdict.String()
		st.Verdict, st.Delay = outbox.Retry, p.cfg.Retry.delay(e.Attempts, 0)
		v.retry++
		v.worst(st.Reason)
		return st
	}
	allowed, opened, after := p.gate.final(o.Reason, o.Detail)
	if opened {
		p.log.Error("breaker open: too many final failures in a row, one event at a time is tried",
			zap.String("event", "projection.breaker_open"), zap.Int("in_a_row", p.cfg.BreakerThreshold),
			zap.String("reason", string(o.Reason)), zap.String("detail", o.Detail), b.span.ids())
	}
	if !allowed {
		st.Verdict, st.Delay = outbox.Retry, after
		p.gate.attempted()
		v.retry++
		v.worst(o.Reason)
		return st
	}
	st.Verdict = outbox.Failed
	v.failed++
	v.reason = o.Reason
	return st
}

// count counts what is done, once it is settled: a settle may have changed its mind.
func (v *verdicts) count() {
	for i := range v.settlements {
		st := &v.settlements[i]
		switch st.Verdict {
		case outbox.Done:
			v.ok++
			v.superseded += len(st.Older)
		case outbox.Superseded:
			v.superseded++
		case outbox.GivenBack:
			v.given = true
		default: // counted when it was decided
		}
	}
}

// worst keeps the reason of a retry unless a failure has given one.
func (v *verdicts) worst(r outbox.Reason) {
	if v.failed == 0 {
		v.reason = r
	}
}

// newBatchID returns the claim_batch_id that joins the log lines of a batch.
func newBatchID() string {
	id, err := uuid.NewV7()
	if err != nil {
		id = uuid.New()
	}
	return id.String()
}
