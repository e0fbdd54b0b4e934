package trail

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	appService  = "editor" // the application, among Jaeger's services
	searchTable = "search_outbox_events"

	tickPeriod   = 50 * time.Millisecond
	perTick      = 3
	goodOnes     = 7 // beside the poisoned document
	appGrace     = 5 * time.Second
	writeTimeout = 30 * time.Second
)

// application writes rows and their events, each transaction in a trace of its own.
type application struct {
	pool     *pgxpool.Pool
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	version  atomic.Int64
}

func newApplication(ctx context.Context, pool *pgxpool.Pool, collector string) (*application, error) {
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(collector+"/v1/traces"))
	if err != nil {
		return nil, fmt.Errorf("traces of the application: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), // whoever has seen a write can ask for its trace
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", appService))))
	return &application{pool: pool, provider: provider, tracer: provider.Tracer("")}, nil
}

func (a *application) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), appGrace)
	defer cancel()
	return a.provider.Shutdown(ctx)
}

// change is one of a transaction.
type change struct {
	op   outbox.Op
	rank float64
}

// poison is a rank that Postgres holds and Elasticsearch's float does not.
const poison = math.MaxFloat64

// write makes the changes in one transaction, each to an entity of its own, and returns
// their events.
func (a *application) write(ctx context.Context, what string, changes ...change) (events []outbox.NewEvent, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout) // a commit that is cut off has no known fate
	defer cancel()
	ctx, span := a.tracer.Start(ctx, what, trace.WithSpanKind(trace.SpanKindProducer))
	defer span.End()
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	err = pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		for _, c := range changes {
			e := outbox.NewEvent{
				ID: outbox.UUID(uuid.New()), Key: outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}, Op: c.op,
				Version:     time.Now().UnixMicro() + a.version.Add(1),
				Traceparent: carrier.Get("traceparent"), Tracestate: carrier.Get("tracestate"),
			}
			events = append(events, e)
			if c.op == outbox.Delete {
				continue
			}
			if _, err := tx.Exec(ctx, `insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, event_version)
				values (gen_random_uuid(), $1, $2, 'The weft crosses the warp.', 'weft', $3, $4)`,
				e.Key.Type, &e.Key.ID, c.rank, e.Version); err != nil {
				return err
			}
		}
		return outbox.Enqueue(ctx, tx, searchTable, events...)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return events, nil
}

// everyday writes until ctx ends, which is no error.
func (a *application) everyday(ctx context.Context) error {
	tick := time.NewTicker(tickPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		changes := make([]change, perTick)
		for i := range changes {
			changes[i] = change{outbox.Upsert, 1}
		}
		if _, err := a.write(ctx, "save blocks", changes...); err != nil {
			return err
		}
	}
}

// publish writes good documents and the poisoned one among them.
func (a *application) publish(ctx context.Context) (poisoned outbox.NewEvent, err error) {
	changes := make([]change, goodOnes+1)
	for i := range changes {
		changes[i] = change{outbox.Upsert, 1}
	}
	changes[goodOnes/2].rank = poison
	events, err := a.write(ctx, "publish book", changes...)
	if err != nil {
		return outbox.NewEvent{}, err
	}
	return events[goodOnes/2], nil
}
