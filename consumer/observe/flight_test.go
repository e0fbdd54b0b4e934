package observe

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

const projName = "test"

// theBatch is the id of the first batch of a flight.
var theBatch = uuid.UUID{15: 0xba}

// watched are the spans that a pipeline has ended.
type watched struct {
	t   *testing.T
	rec *tracetest.SpanRecorder
}

func watch(t *testing.T) (*watched, Tracing) {
	w := &watched{t, tracetest.NewSpanRecorder()}
	tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(w.rec))
	return w, Tracing{Tracer: tp.Tracer("test")}
}

func (w *watched) named(name string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(w.rec.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() != name })
}

// only returns the one span of that name.
func (w *watched) only(name string) sdktrace.ReadOnlySpan {
	w.t.Helper()
	spans := w.named(name)
	if len(spans) != 1 {
		w.t.Fatalf("%s: got %d spans, want 1", name, len(spans))
	}
	return spans[0]
}

// attributes returns those of s as they are shown.
func attributes(s sdktrace.ReadOnlySpan) map[string]string {
	m := map[string]string{}
	for _, kv := range s.Attributes() {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

const (
	aTrace  = "0af7651916cd43dd8448eb211c80319c"
	aParent = "b7ad6b7169203331"
)

func eventID(n byte) outbox.ID { return outbox.UUID(uuid.UUID{15: n}) }

func entityID(n byte) outbox.ID { return outbox.UUID(uuid.UUID{0: 0xee, 15: n}) }

// aRow is an event of an entity of its own, at its second attempt.
func aRow(n byte, op outbox.Op) outbox.Event {
	return outbox.Event{
		Row: outbox.Row{ID: eventID(n), Key: outbox.Key{Type: "book", ID: entityID(n)}, Version: int64(n)},
		Op:  op, Attempts: 1, LeasedAt: time.Unix(1, 0),
	}
}

// before is an event of the entity of e, of a lower version.
func before(e outbox.Event, n byte) outbox.Event {
	b := aRow(n, e.Op)
	b.Key, b.Version = e.Key, e.Version-1
	return b
}

func traced(e outbox.Event, flags string) outbox.Event {
	e.Traceparent = "00-" + aTrace + "-" + aParent + "-" + flags
	e.Tracestate = "vendor=1"
	return e
}

// flight is what a pipeline tells of one batch, from its lease to its settle.
type flight struct {
	t    testing.TB
	o    *Observer
	reg  *prometheus.Registry
	base time.Time
}

func newFlight(t testing.TB, tracing Tracing, log *zap.Logger) *flight {
	t.Helper()
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg, []string{projName})
	if err != nil {
		t.Fatal(err)
	}
	return &flight{t: t, o: New(projName, 2, log, m, tracing), reg: reg, base: time.Unix(1_700_000_000, 0)}
}

// carry leases groups as one batch, has them answered, and settles them as a scheduler
// decides. outcomes are those of the newest event of each group; settled says what the
// database has answered.
func (f *flight) carry(settled outbox.Settled, outcomes []outbox.Outcome, groups ...[]outbox.Event) {
	f.t.Helper()
	b, told := f.answered(outcomes, groups...)
	told.Settled(b, settled, time.Now())
}

// answered is a batch that is about to be settled.
func (f *flight) answered(outcomes []outbox.Outcome, groups ...[]outbox.Event) (*schedule.Batch, *Batch) {
	f.t.Helper()
	s := schedule.New(schedule.Config{
		BatchSize: 1000, Concurrency: 1, Page: 1000, Poll: time.Second, BreakerThreshold: 1000,
		Retry:  schedule.RetryPolicy{MaxAttempts: 4, BaseBackoff: time.Second, MaxBackoff: time.Second},
		Jitter: func(d time.Duration) time.Duration { return d }, NewID: func() uuid.UUID { return theBatch },
	})
	of, answer := map[outbox.Key][]outbox.Event{}, map[outbox.Key]outbox.Outcome{}
	list := &outbox.List{}
	for i, events := range groups {
		of[events[0].Key], answer[events[0].Key] = events, outcomes[i]
		for _, e := range events {
			list.Ready = append(list.Ready, e.Row)
		}
	}
	slices.SortFunc(list.Ready, outbox.Row.Compare)
	var told *Batch
	for range 100 {
		a, _, ok := s.Next(f.base)
		if !ok {
			f.t.Fatal("the scheduler waits for something")
		}
		switch a.Kind {
		case schedule.DoList:
			s.Listed(f.base, a.List, list, nil)
		case schedule.DoNamePutOff:
			s.PutOffNamed(f.base, nil, nil, outbox.ID{}, nil)
		case schedule.DoLease:
			l := &outbox.Lease{Events: make([][]outbox.Event, len(a.Groups)), Obstacles: make([]*outbox.Obstacle, len(a.Groups))}
			for i, g := range a.Groups {
				l.Events[i] = of[g.Key]
			}
			if told = f.o.Leased(context.Background(), a.Batch.ID, len(a.Groups), time.Now(), l, nil); told == nil {
				f.t.Fatal("nothing is told of the lease")
			}
			s.Leased(f.base, a.Batch, l, nil)
		case schedule.DoSend:
			var out []outbox.Outcome
			for _, e := range a.Part.Events() {
				out = append(out, answer[e.Key])
			}
			told.Projected(told.Context(context.Background()), time.Now())
			s.Sent(f.base, a.Part, out, nil, time.Millisecond)
		case schedule.DoSettle:
			return a.Batch, told
		case schedule.DoProbe, schedule.DoWake, schedule.DoPutOff:
			f.t.Fatalf("the scheduler asks for %d", a.Kind)
		}
	}
	f.t.Fatal("nothing is settled")
	return nil, nil
}

// wantMetric holds that the series with these labels sum up to want.
func (f *flight) wantMetric(want float64, name string, labels ...string) {
	f.t.Helper()
	if got, n := testenv.Metric(f.t, f.reg, name, labels...); got != want || n == 0 {
		f.t.Errorf("%s%v is %v in %d series, want %v", name, labels, got, n, want)
	}
}
