package observe

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Observer records what one pipeline does in metrics, spans and log lines. Its methods are
// safe for concurrent use. Of a batch Context, Projected and Unsettled are, until Settled or
// Abandoned.
type Observer struct {
	projection string
	log        *zap.Logger
	metrics    *Metrics
	spans      *spans
}

// New returns the observer of a projection. version is that of its documents, 0 for none.
func New(projection string, version int, log *zap.Logger, m *Metrics, t Tracing) *Observer {
	return &Observer{projection: projection, log: log, metrics: m, spans: newSpans(t, projection, version)}
}

// Phase records a change of the phase. batch is the one that caused it; nil for none.
func (o *Observer) Phase(before, now schedule.State, batch *Batch) {
	o.metrics.show(o.projection, now.Phase)
	reason := zap.String("reason", string(now.Reason))
	switch {
	case now.Phase == before.Phase:
	case now.Phase == schedule.Outage && before.Phase != schedule.Trial:
		message := "destination unusable: nothing is sent until it answers"
		if !now.Reason.Elastic() { // what is read and written may both be in Postgres
			message = "source or destination unusable, as the error says: nothing is sent until it answers"
		}
		o.log.Warn(message,
			zap.String("event", "projection.outage"), reason, zap.String("error", now.Detail), batch.ids())
	case now.Phase == schedule.Broken:
		o.log.Error("breaker open: too many entities have failed in a row, one at a time is tried",
			zap.String("event", "projection.breaker_open"), reason, zap.String("detail", now.Detail), batch.ids())
	case now.Phase == schedule.Trial:
		o.log.Debug("destination answers", zap.String("event", "projection.probe"))
	case now.Phase == schedule.Running && before.Phase != schedule.Idle:
		o.log.Info("projection resumes", zap.String("event", "projection.resumed"), batch.ids())
	}
}

// Waits shows how many entities wait, and how many are tried apart.
func (o *Observer) Waits(blocked, apart int) {
	o.metrics.blocked.WithLabelValues(o.projection).Set(float64(blocked))
	o.metrics.apart.WithLabelValues(o.projection).Set(float64(apart))
}

// Fenced records that the database refused a write under an epoch.
func (o *Observer) Fenced(epoch int64, err error) {
	o.metrics.fenced.WithLabelValues(o.projection).Inc()
	o.log.Warn("write refused: a newer epoch has taken over", zap.String("event", "outbox.fenced"), zap.Int64("epoch", epoch), zap.Error(err))
}

// DatabaseFault records that the outbox does not answer; call names the failed call.
func (o *Observer) DatabaseFault(call string, err error) {
	o.log.Warn("outbox does not answer", zap.String("event", "outbox.fault"), zap.String("call", call), zap.Error(err))
}

// DatabaseAnswers records that the outbox answers again.
func (o *Observer) DatabaseAnswers() {
	o.log.Info("outbox answers", zap.String("event", "outbox.recovered"))
}

// Foreign records that another worker claims events of the table, or no longer does.
func (o *Observer) Foreign(yes bool, owner string) {
	if yes {
		o.log.Error("another worker claims events of the table: stop it; nothing is leased while it does", zap.String("event", "outbox.foreign"), zap.String("owner", owner))
		return
	}
	o.log.Info("the other worker claims no more events", zap.String("event", "outbox.foreign"), zap.String("owner", owner))
}

// Holds records what operators hold back, where that has changed.
func (o *Observer) Holds(before, now outbox.Holds) {
	switch p := now.Pause; {
	case (p == nil) == (before.Pause == nil):
	case p != nil:
		o.log.Warn("projection paused: nothing is leased until weft resume", zap.String("event", "projection.paused"),
			zap.String("by", p.By), zap.String("why", p.Why), zap.Time("paused_at", p.At))
	default:
		o.log.Info("projection resumed", zap.String("event", "projection.resumed"))
	}
	switch t := now.Throttle; {
	case t == nil && before.Throttle != nil:
		o.log.Info("throttle of the projection ended", zap.String("event", "projection.unthrottled"))
	case t != nil && (before.Throttle == nil || before.Throttle.Rate != t.Rate):
		o.log.Warn("projection throttled until weft throttle --off", zap.String("event", "projection.throttled"),
			zap.Float64("rate", t.Rate), zap.String("by", t.By), zap.String("why", t.Why), zap.Time("throttled_at", t.At))
	}
	in, was := len(now.Quarantines), len(before.Quarantines)
	switch {
	case in > was || in > 0 && now.Quarantines[in-1].At.After(before.Quarantines[was-1].At):
		q := now.Quarantines[in-1]
		o.log.Warn("entity quarantined: its events wait until weft release", zap.String("event", "entity.quarantined"),
			zap.String("entity_type", q.EntityType), zap.String("entity_id", q.EntityID), zap.Int("quarantined", in),
			zap.String("by", q.By), zap.String("why", q.Why), zap.Time("quarantined_at", q.At))
	case in < was:
		o.log.Info("entities released from quarantine", zap.String("event", "entity.released"), zap.Int("quarantined", in))
	}
}

// Panic records a panic of the projection.
func (o *Observer) Panic(ctx context.Context, value any, stack []byte) {
	o.log.Error("projection panicked", zap.String("event", "projection.panic"), zap.Any("panic", value), zap.ByteString("stack", stack), spanlog.IDs(ctx))
}

// SettleRepeated records the first lost answer to a settle.
func (o *Observer) SettleRepeated(b *Batch, err error) {
	b.unsettled.Store(&err)
	o.log.Warn("settle is repeated until the database answers", zap.String("event", "outbox.settle_fault"), zap.Error(err), b.ids())
}

// DrainTimeout records how many batches are left to the successor.
func (o *Observer) DrainTimeout(batches int) {
	o.log.Warn("grace is over: batches left to the successor", zap.String("event", "projection.drain_timeout"), zap.Int("batches", batches))
}

// Listed records an answer of the outbox to the question for open events. One without events
// is an empty look.
func (o *Observer) Listed(l *outbox.List) {
	found := foundRows
	if len(l.Due)+len(l.Ready) == 0 {
		found = foundNone
	}
	o.metrics.looks.WithLabelValues(o.projection, found).Inc()
}

// Batch records one batch. A nil Batch is none.
type Batch struct {
	o         *Observer
	of        *schedule.Batch // nil until it is settled
	id        string
	started   time.Time
	size      int
	op        string // mixed when there are several
	attempt   int    // the highest
	unsettled atomic.Pointer[error]

	span   trace.Span                          // nil: it has none
	ctx    context.Context                     // carries span
	events map[*outbox.Event]trace.SpanContext // of those that have a span
	links  int                                 // from span to producers
}

// Unsettled returns why the batch could not be settled at once, while its settle is repeated. It is
// safe for concurrent use.
func (b *Batch) Unsettled() error {
	if err := b.unsettled.Load(); err != nil {
		return *err
	}
	return nil
}

// Leased records a lease that began at started, and returns its batch; nil after an error or
// when nothing was leased.
func (o *Observer) Leased(ctx context.Context, id uuid.UUID, asked int, started time.Time, l *outbox.Lease, err error) *Batch {
	n, blocked := 0, 0
	if err == nil {
		n = l.Count()
		for _, x := range l.Obstacles {
			if x != nil {
				blocked++
			}
		}
	}
	claim := o.spans.claim(ctx, started, asked, l, n, blocked, err)
	if err != nil || n+blocked == 0 {
		return nil
	}
	o.metrics.stage(ctx, o.projection, stageClaim, started)
	if ce := o.log.Check(zap.DebugLevel, "leased"); ce != nil {
		due := l.Due()
		ce.Write(zap.String("event", "outbox.claim"), zap.String("claim_batch_id", id.String()), zap.Int("due", due),
			zap.Int("ready", n-due), zap.Int("blocked", blocked), zap.Float64("latency_ms", milliseconds(time.Since(started))))
	}
	if n == 0 {
		return nil
	}
	o.metrics.flying(o.projection, n)
	b := &Batch{o: o, id: id.String(), started: time.Now(), size: n}
	for _, g := range l.Events {
		if len(g) > 0 {
			op := opLabel(g[len(g)-1].Op)
			if b.op != "" && op != b.op {
				op = "mixed"
			}
			b.op, b.attempt = op, max(b.attempt, g[0].Attempts+1)
		}
	}
	o.spans.batch(ctx, b, claim)
	return b
}

// Context returns the context that carries the batch's span, or else ctx.
func (b *Batch) Context(ctx context.Context) context.Context {
	if b == nil || b.span == nil {
		return ctx
	}
	return b.ctx
}

// Projected records a call of the projection that began at started and has ended.
func (b *Batch) Projected(ctx context.Context, started time.Time) {
	b.o.metrics.stage(ctx, b.o.projection, stageProject, started)
	if b.span != nil {
		b.span.AddEvent("projected")
	}
}

// Settled records a settle that began at started.
func (b *Batch) Settled(of *schedule.Batch, s outbox.Settled, started time.Time) {
	b.o.metrics.stage(b.Context(context.Background()), b.o.projection, stageSettle, started)
	b.o.metrics.flying(b.o.projection, -b.size)
	b.of = of
	sum := summarize(of, s)
	b.finish(sum)
	b.o.report(b, sum)
	if s.Kept != nil {
		b.o.metrics.kept.WithLabelValues(b.o.projection).Inc()
		b.o.log.Error("finished events stay in the table: they could not be moved or deleted", zap.String("event", "outbox.kept"), zap.Error(s.Kept), b.ids())
	}
}

// Abandoned records a batch whose fate is unknown because the term is over.
func (b *Batch) Abandoned(err error) {
	b.o.metrics.flying(b.o.projection, -b.size)
	b.abandon(err)
	b.o.log.Info("batch given up: the term is over", b.facts(zap.String("event", "projection.batch"), resultRetry, "", zap.Error(err))...)
}

// ids is the log field of the batch's span.
func (b *Batch) ids() zap.Field {
	if b == nil || b.span == nil {
		return zap.Skip()
	}
	return spanlog.Of(b.span.SpanContext())
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
