package observe

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// The results of a batch and of an event.
const (
	resultOK      = "ok"
	resultPartial = "partial"
	resultRetry   = "retry"
	resultFailed  = "failed"
)

// summary is what has become of a batch in the table.
type summary struct {
	at                            time.Time           // database clock
	settlements                   []outbox.Settlement // without those of entities that were not settled
	left                          []outbox.Left
	ok, superseded, retry, failed int
	mismatch                      int // events of entities that were not settled
	reason                        outbox.Reason
}

func summarize(b *schedule.Batch, s outbox.Settled) *summary {
	sum := &summary{at: s.At, left: s.Left, settlements: b.Settlements, reason: b.Reason}
	left := map[outbox.Key]bool{}
	for _, l := range s.Left {
		left[l.Key] = true
	}
	if len(left) > 0 {
		sum.settlements = slices.DeleteFunc(slices.Clone(b.Settlements), func(st outbox.Settlement) bool { return left[st.Event.Key] })
		for i := range b.Groups {
			if left[b.Groups[i].Key] {
				sum.mismatch += len(b.Groups[i].Events)
			}
		}
	}
	for i := range sum.settlements {
		switch sum.settlements[i].Verdict {
		case outbox.Done:
			sum.ok++
		case outbox.Superseded:
			sum.superseded++
		case outbox.Retry:
			sum.retry++
		case outbox.Failed:
			sum.failed++
		}
	}
	return sum
}

// result is what became of a batch; decided once, here.
func (s *summary) result() string {
	switch {
	case s.failed > 0 && s.ok+s.retry == 0:
		return resultFailed
	case s.failed > 0, s.retry > 0 && s.ok > 0:
		return resultPartial
	case s.retry > 0:
		return resultRetry
	default:
		return resultOK
	}
}

// eventResult is what became of an event, in the same words.
func eventResult(v outbox.Verdict) string {
	switch v {
	case outbox.Retry:
		return resultRetry
	case outbox.Failed:
		return resultFailed
	default:
		return resultOK
	}
}

// report counts and logs a settled batch. A batch that did not go through is told at info, one
// that did at debug.
func (o *Observer) report(b *Batch, s *summary) {
	took := time.Since(b.started)
	if len(s.settlements)+len(s.left) == 0 {
		return // released: nothing was sent
	}
	o.metrics.batch(b.Context(context.Background()), o.projection, s)
	level, result := zapcore.DebugLevel, s.result()
	if result != resultOK || s.mismatch > 0 {
		level = zapcore.InfoLevel
	}
	if ce := o.log.Check(level, "batch settled"); ce != nil {
		op, attempt := common(b.of)
		ce.Write(zap.String("event", "projection.batch"), zap.String("result", result), zap.String("reason", string(s.reason)),
			zap.String("claim_batch_id", b.id), zap.String("op", op), zap.Int("attempt", attempt), zap.Int("batch_size", b.size),
			zap.Int("ok_count", s.ok+s.superseded), zap.Int("retry_count", s.retry), zap.Int("failed_count", s.failed),
			zap.Int("mismatch_count", s.mismatch), zap.Float64("latency_ms", milliseconds(took)), b.ids())
	}
	for _, l := range s.left {
		o.reportLeft(b, l)
	}
	every := o.log.Core().Enabled(zapcore.DebugLevel)
	for i := range s.settlements {
		st := &s.settlements[i]
		outcome := st.Outcome
		if st.Verdict == outbox.Superseded {
			outcome = &outbox.Outcome{Noop: outbox.NoopSuperseded}
		}
		if every || !through(st) {
			o.reportEvent(b, st, outcome, took)
		}
	}
}

// through reports whether an event was done and changed something, itself or by a newer event
// of its entity.
func through(st *outbox.Settlement) bool {
	return st.Verdict == outbox.Superseded || st.Verdict == outbox.Done && st.Outcome.Noop == outbox.NoopNone
}

// Kept tells that finished events were left in the table instead of being moved.
func (b *Batch) Kept(err error) {
	b.o.metrics.kept.WithLabelValues(b.o.projection).Inc()
	b.o.log.Error("finished events stay in the table: they could not be moved or deleted", zap.String("event", "outbox.kept"), zap.Error(err), b.ids())
}

// reportLeft names an entity that could not be settled.
func (o *Observer) reportLeft(b *Batch, l outbox.Left) {
	id := ""
	for i := range b.of.Groups {
		if g := &b.of.Groups[i]; g.Key == l.Key {
			id = g.Earliest().ID.String()
		}
	}
	o.log.Error("an entity could not be settled; it is tried again later, and its later events wait",
		zap.String("event", "outbox.settle_left"), zap.String("event_id", id), zap.String("entity_type", l.Key.Type),
		zap.String("entity_id", l.Key.ID.String()), zap.Error(l.Err), b.ids())
}

// common returns the op of a batch, "mixed" when there are several, and its highest attempt.
func common(b *schedule.Batch) (op string, attempt int) {
	for i := range b.Groups {
		attempt = max(attempt, b.Groups[i].Earliest().Attempts+1)
		op = commonOp(op, b.Groups[i].Newest().Op)
	}
	return op, attempt
}

func commonOp(so string, op outbox.Op) string {
	switch of := opLabel(op); so {
	case "", of:
		return of
	default:
		return "mixed"
	}
}

// reportEvent logs what an operator must be able to find by the event's id: at error every dead
// letter, at warn a retry that no outage explains, at info any other retry and what changed
// nothing, at debug the rest. The logger sums up what comes in storms, all but dead letters.
func (o *Observer) reportEvent(b *Batch, st *outbox.Settlement, outcome *outbox.Outcome, took time.Duration) {
	reason := string(st.Reason)
	var level zapcore.Level
	var msg string
	switch {
	case st.Verdict == outbox.Failed:
		level, msg = zapcore.ErrorLevel, "event failed"
	case st.Verdict == outbox.Retry && (!st.Reason.Transient() || b.of.Apart()):
		level, msg = zapcore.WarnLevel, "event is retried"
	case st.Verdict == outbox.Retry:
		level, msg = zapcore.InfoLevel, "event is retried"
	case through(st):
		level, msg, reason = zapcore.DebugLevel, "event done", string(outcome.Noop)
	default:
		level, msg, reason = zapcore.InfoLevel, "event had nothing to do", string(outcome.Noop)
	}
	if ce := o.log.Check(level, msg); ce != nil {
		ce.Write(zap.String("event", "projection.event"), zap.String("result", eventResult(st.Verdict)), zap.String("reason", reason),
			zap.Inline(&eventLine{b: b, st: st, correlation: cmp.Or(outcome.Correlation, st.Event.Correlation), took: took}), b.span.eventIDs(st.Event))
	}
}

// eventLine is what a line says of an event. Its fields are made when the line is written,
// which in a storm it seldom is.
type eventLine struct {
	b           *Batch
	st          *outbox.Settlement
	correlation string
	took        time.Duration
}

// MarshalLogObject implements [zapcore.ObjectMarshaler].
func (l *eventLine) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	e, correlation := l.st.Event, zap.Skip()
	if l.correlation != "" {
		correlation = zap.String("correlation_id", l.correlation)
	}
	for _, f := range []zap.Field{
		zap.String("claim_batch_id", l.b.id), zap.String("event_id", e.ID.String()), zap.String("entity_type", e.Key.Type),
		zap.String("entity_id", e.Key.ID.String()), zap.String("op", string(e.Op)), zap.Int64("event_version", e.Version),
		zap.Int("attempt", e.Attempts+1), zap.Int("attempts", e.Attempts+1), zap.Int("batch_size", l.b.size), zap.String("error", l.st.Detail),
		zap.Float64("latency_ms", milliseconds(l.took)), correlation,
	} {
		f.AddTo(enc)
	}
	return nil
}
