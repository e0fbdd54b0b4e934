package observe

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/internal/spanlog"
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
	outbox.Settled
	settlements []outbox.Settlement    // without those of entities that were not settled
	count       [outbox.Failed + 1]int // of them, by verdict
	mismatch    int                    // events of entities that were not settled
	reason      outbox.Reason
}

func summarize(b *schedule.Batch, s outbox.Settled) *summary {
	sum := &summary{Settled: s, settlements: b.Settlements, reason: b.Reason}
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
		sum.count[sum.settlements[i].Verdict]++
	}
	return sum
}

// ok is how many events are done.
func (s *summary) ok() int { return s.count[outbox.Done] + s.count[outbox.Superseded] }

// result is what became of a batch; decided once, here.
func (s *summary) result() string {
	ok, retry, failed := s.ok(), s.count[outbox.Retry], s.count[outbox.Failed]
	switch {
	case failed > 0 && ok+retry == 0:
		return resultFailed
	case failed > 0, retry > 0 && ok > 0:
		return resultPartial
	case retry > 0:
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

// noopOf returns why an event changed nothing; the outcome of a superseded one is that of a newer event.
func noopOf(st *outbox.Settlement) outbox.Noop {
	if st.Verdict == outbox.Superseded {
		return outbox.NoopSuperseded
	}
	return st.Outcome.Noop
}

// reasonOf returns why an event failed, is retried, or changed nothing; "" when it was done and did.
func reasonOf(st *outbox.Settlement) string {
	if eventResult(st.Verdict) == resultOK {
		return string(noopOf(st))
	}
	return string(st.Reason)
}

// report counts and logs a settled batch. A batch that did not go through is told at info, one
// that did at debug.
func (o *Observer) report(b *Batch, s *summary) {
	took := time.Since(b.started)
	if len(s.settlements)+len(s.Left) == 0 {
		return // released: nothing was sent
	}
	o.metrics.batch(b.Context(context.Background()), o.projection, s)
	level, result := zapcore.DebugLevel, s.result()
	if result != resultOK || s.mismatch > 0 {
		level = zapcore.InfoLevel
	}
	if ce := o.log.Check(level, "batch settled"); ce != nil {
		ce.Write(b.facts(zap.String("event", "projection.batch"), result, s.reason,
			zap.Int("ok_count", s.ok()), zap.Int("retry_count", s.count[outbox.Retry]),
			zap.Int("failed_count", s.count[outbox.Failed]), zap.Int("mismatch_count", s.mismatch))...)
	}
	for _, l := range s.Left {
		o.reportLeft(b, l)
	}
	every := o.log.Core().Enabled(zapcore.DebugLevel)
	for i := range s.settlements {
		st := &s.settlements[i]
		if every || !through(st) {
			o.reportEvent(b, st, took)
		}
	}
}

// facts are the fields of a line about the batch, with what else it tells.
func (b *Batch) facts(event zap.Field, result string, reason outbox.Reason, more ...zap.Field) []zap.Field {
	fields := []zap.Field{
		event, zap.String("result", result), zap.String("reason", string(reason)), zap.String("claim_batch_id", b.id),
		zap.String("op", b.op), zap.Int("attempt", b.attempt), zap.Int("batch_size", b.size),
	}
	return append(append(fields, more...), zap.Float64("latency_ms", milliseconds(time.Since(b.started))), b.ids())
}

// correlationOf returns the id that joins an event to what its producer did; "" for none.
func correlationOf(st *outbox.Settlement) string {
	if st.Verdict == outbox.Superseded {
		return st.Event.Correlation
	}
	return cmp.Or(st.Outcome.Correlation, st.Event.Correlation)
}

// through reports whether an event was done and changed something, itself or by a newer event
// of its entity.
func through(st *outbox.Settlement) bool {
	return st.Verdict == outbox.Superseded || st.Verdict == outbox.Done && st.Outcome.Noop == outbox.NoopNone
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

// reportEvent logs what an operator must be able to find by the event's id: at error every dead
// letter, at warn a retry that no outage explains, at info any other retry and what changed
// nothing, at debug the rest. The logger sums up what comes in storms, all but dead letters.
func (o *Observer) reportEvent(b *Batch, st *outbox.Settlement, took time.Duration) {
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
		level, msg = zapcore.DebugLevel, "event done"
	default:
		level, msg = zapcore.InfoLevel, "event had nothing to do"
	}
	if ce := o.log.Check(level, msg); ce != nil {
		ce.Write(zap.String("event", "projection.event"), zap.String("result", eventResult(st.Verdict)), zap.String("reason", reasonOf(st)),
			zap.Inline(&eventLine{b: b, st: st, took: took}), spanlog.Of(b.events[st.Event]))
	}
}

// eventLine is what a line says of an event. Its fields are made when the line is written,
// which in a storm it seldom is.
type eventLine struct {
	b    *Batch
	st   *outbox.Settlement
	took time.Duration
}

// MarshalLogObject implements [zapcore.ObjectMarshaler].
func (l *eventLine) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	e, correlation := l.st.Event, zap.Skip()
	if id := correlationOf(l.st); id != "" {
		correlation = zap.String("correlation_id", id)
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
