package consumer

import (
	"context"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/samuelhu324-dev/weft/outbox"
)

// The results of a batch and of an event.
const (
	resultOK      = "ok"
	resultPartial = "partial"
	resultRetry   = "retry"
	resultFailed  = "failed"
)

// result is what became of a batch; decided once, here.
func (v *verdicts) result() string {
	switch {
	case v.failed > 0 && v.ok+v.retry == 0:
		return resultFailed
	case v.failed > 0:
		return resultPartial
	case v.retry > 0 && v.ok > 0:
		return resultPartial
	case v.retry > 0:
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
func (p *Pipeline) report(b *batch, v *verdicts, s outbox.Settled, started time.Time) {
	took := time.Since(started)
	p.metrics.batch(b.span.context(context.Background()), p.Name(), v, s)
	if ce := p.log.Check(zapcore.DebugLevel, "batch settled"); ce != nil {
		op, attempt := b.common()
		ce.Write(zap.String("event", "projection.batch"), zap.String("claim_batch_id", b.id),
			zap.String("op", op), zap.Int("attempt", attempt), zap.Int("batch_size", b.events), zap.String("result", v.result()), zap.String("reason", string(v.reason)),
			zap.Int("ok_count", v.ok+v.superseded), zap.Int("retry_count", v.retry), zap.Int("failed_count", v.failed),
			zap.Int("mismatch_count", s.Mismatch), zap.Float64("latency_ms", float64(took.Microseconds())/1000), b.span.ids())
	}
	for i := range v.heads {
		p.reportEvent(b, i, &v.settlements[v.heads[i]], &v.outcomes[i], took)
	}
}

// common returns the op of a batch, "mixed" when there are several, and its highest attempt.
func (b *batch) common() (op string, attempt int) {
	for _, g := range b.groups {
		e := g.newest()
		attempt = max(attempt, e.Attempts+1)
		switch of := opLabel(e.Op); op {
		case "", of:
			op = of
		default:
			op = "mixed"
		}
	}
	return op, attempt
}

// reportEvent logs what an operator must be able to find by the event's id: every
// dead letter, and retries that no outage explains.
func (p *Pipeline) reportEvent(b *batch, i int, st *outbox.Settlement, o *outbox.Outcome, took time.Duration) {
	reason := string(st.Reason)
	var level zapcore.Level
	var msg string
	switch {
	case st.Verdict == outbox.Failed:
		level, msg = zapcore.ErrorLevel, "event failed"
	case st.Verdict == outbox.Retry && !st.Reason.Transient():
		level, msg = zapcore.WarnLevel, "event is retried"
	case st.Verdict == outbox.Retry:
		level, msg = zapcore.DebugLevel, "event is retried"
	case o.Noop != outbox.NoopNone:
		level, msg, reason = zapcore.DebugLevel, "event had nothing to do", string(o.Noop)
	default:
		return
	}
	if ce := p.log.Check(level, msg); ce != nil {
		e, correlation := st.Event, zap.Skip()
		if o.Correlation != "" {
			correlation = zap.String("correlation_id", o.Correlation)
		}
		ce.Write(zap.String("event", "projection.event"), zap.String("claim_batch_id", b.id),
			zap.String("event_id", e.ID.String()), zap.String("entity_type", e.Key.Type), zap.String("entity_id", e.Key.ID.String()),
			zap.String("op", string(e.Op)), zap.Int64("event_version", e.Version), zap.Int("attempts", e.Attempts+1),
			zap.String("result", eventResult(st.Verdict)), zap.String("reason", reason),
			zap.String("error", st.Detail), zap.Float64("latency_ms", float64(took.Microseconds())/1000), correlation, b.span.eventIDs(i))
	}
}
