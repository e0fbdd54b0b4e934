package observe

import (
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

// report counts and logs a settled batch.
func (o *Observer) report(b *Batch, s *summary) {
	took := time.Since(b.started)
	if len(s.settlements)+len(s.left) == 0 {
		return // released: nothing was sent
	}
	o.metrics.batch(b.Context(context.Background()), o.projection, s)
	if ce := o.log.Check(zapcore.DebugLevel, "batch settled"); ce != nil {
		op, attempt := common(b.of)
		ce.Write(zap.String("event", "projection.batch"), zap.String("claim_batch_id", b.id),
			zap.String("op", op), zap.Int("attempt", attempt), zap.Int("batch_size", b.size), zap.String("result", s.result()), zap.String("reason", string(s.reason)),
			zap.Int("ok_count", s.ok+s.superseded), zap.Int("retry_count", s.retry), zap.Int("failed_count", s.failed),
			zap.Int("mismatch_count", s.mismatch), zap.Float64("latency_ms", milliseconds(took)), b.ids())
	}
	for _, l := range s.left {
		o.reportLeft(b, l)
	}
	for i := range s.settlements {
		if st := &s.settlements[i]; st.Verdict != outbox.Superseded {
			o.reportEvent(b, st, st.Outcome, took)
		}
	}
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

// reportEvent logs what an operator must be able to find by the event's id: every
// dead letter, and retries that no outage explains.
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
		level, msg = zapcore.DebugLevel, "event is retried"
	case outcome.Noop != outbox.NoopNone:
		level, msg, reason = zapcore.DebugLevel, "event had nothing to do", string(outcome.Noop)
	default:
		return
	}
	if ce := o.log.Check(level, msg); ce != nil {
		e, correlation := st.Event, zap.Skip()
		if outcome.Correlation != "" {
			correlation = zap.String("correlation_id", outcome.Correlation)
		}
		ce.Write(zap.String("event", "projection.event"), zap.String("claim_batch_id", b.id),
			zap.String("event_id", e.ID.String()), zap.String("entity_type", e.Key.Type), zap.String("entity_id", e.Key.ID.String()),
			zap.String("op", string(e.Op)), zap.Int64("event_version", e.Version), zap.Int("attempts", e.Attempts+1),
			zap.String("result", eventResult(st.Verdict)), zap.String("reason", reason),
			zap.String("error", st.Detail), zap.Float64("latency_ms", milliseconds(took)), correlation, b.span.eventIDs(e))
	}
}
