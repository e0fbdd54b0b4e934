//go:build observability

package trail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	environment = "dev"
	appService  = "editor" // the application, among Jaeger's services
	shown       = "search_index_to_elastic"

	interval = 500 * time.Millisecond // of scrapes
	poll     = 50 * time.Millisecond
	// bound is for what takes a second or two on an idle machine.
	bound = time.Minute

	tickPeriod = 50 * time.Millisecond
	perTick    = 3
	goodOnes   = 7 // beside the poisoned document
)

// lab is a pair of instances with everything around it.
type lab struct {
	link       *proxy.Link // to Elasticsearch
	pool       *pgxpool.Pool
	prometheus *watch.Prometheus
	jaeger     *watch.Jaeger
	fleet      *rig.Fleet
	instances  []*rig.Instance
	app        *traffic.Application
	tracer     trace.Tracer
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// atEnd closes something when the test is over.
func atEnd(t *testing.T, closing func() error) {
	t.Cleanup(func() {
		if err := closing(); err != nil {
			t.Error(err)
		}
	})
}

// newLab starts everything.
func newLab(t *testing.T) *lab {
	t.Helper()
	l, dir := &lab{}, t.TempDir()
	databaseURL := testenv.Database(t)
	l.pool = testenv.Pool(t, databaseURL)
	g, ctx := errgroup.WithContext(t.Context())
	g.Go(func() (err error) {
		l.jaeger, err = watch.StartJaeger(ctx, dir, os.Stderr)
		return err
	})
	g.Go(func() (err error) {
		l.prometheus, err = watch.StartPrometheus(ctx, watch.PrometheusOptions{Dir: dir, Interval: interval})
		return err
	})
	g.Go(func() (err error) {
		l.fleet, err = rig.NewFleet(ctx, "", dir)
		return err
	})
	err := g.Wait()
	if l.jaeger != nil {
		atEnd(t, l.jaeger.Close)
	}
	if l.prometheus != nil {
		atEnd(t, l.prometheus.Close)
	}
	must(t, err)
	elastic, err := url.Parse(testenv.ElasticURL(t))
	must(t, err)
	l.link, err = proxy.NewLink(net.JoinHostPort(elastic.Hostname(), elastic.Port()))
	must(t, err)
	atEnd(t, l.link.Close)
	through, err := l.link.Through(elastic.String())
	must(t, err)
	l.fleet.Env = rig.Environment(os.Environ(), true, "DATABASE_URL="+databaseURL, "ELASTIC_URL="+through, "ELASTIC_INDEX="+testenv.Index(t),
		"WEFT_LOG_LEVEL=debug", "WORDLOOM_TRACING_ENABLED=true", "OTEL_BSP_SCHEDULE_DELAY=100")
	atEnd(t, l.fleet.Stop)
	l.startPair(t)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(l.jaeger.OTLPHTTP()+"/v1/traces"))
	must(t, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), // whoever has seen a write can ask for its trace
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", appService))))
	atEnd(t, func() error { return provider.Shutdown(context.Background()) })
	l.app, l.tracer = &traffic.Application{Pool: l.pool}, provider.Tracer("")
	return l
}

func (l *lab) startPair(t *testing.T) {
	t.Helper()
	must(t, l.fleet.Run(t.Context(), "migrate", "up"))
	l.fleet.Env = append(l.fleet.Env, "WORDLOOM_ENV="+environment) // now the database can say the same
	_, err := l.pool.Exec(t.Context(), "insert into environment_sentinel (id, env) values (1, $1)", environment)
	must(t, err)
	var targets []watch.Target
	for _, instance := range []struct{ name, protocol, collector string }{
		{"a", "grpc", l.jaeger.OTLPGRPC()},
		{"b", "http/protobuf", l.jaeger.OTLPHTTP()},
	} {
		i, err := l.fleet.Start(t.Context(), instance.name,
			"OTEL_EXPORTER_OTLP_PROTOCOL="+instance.protocol, "OTEL_EXPORTER_OTLP_ENDPOINT="+instance.collector)
		must(t, err)
		must(t, i.Ready(t.Context()))
		l.instances = append(l.instances, i)
		targets = append(targets, watch.Target{Job: "weft", Address: strings.TrimPrefix(i.URL(""), "http://")})
	}
	must(t, l.prometheus.SetTargets(targets...))
}

// await asks until the answer is true.
func (l *lab) await(ctx context.Context, what string, ask func(context.Context) (bool, error)) error {
	return rig.Await(ctx, bound, poll, what, func(ctx context.Context) error {
		if err := l.fleet.Alive(ctx); err != nil {
			return err
		}
		ok, err := ask(ctx)
		if err == nil && !ok {
			err = errors.New("not yet")
		}
		return err
	})
}

func (l *lab) awaitQuery(ctx context.Context, what, sql string, args ...any) error {
	return l.await(ctx, what, func(ctx context.Context) (ok bool, err error) {
		err = l.pool.QueryRow(ctx, sql, args...).Scan(&ok)
		return ok, err
	})
}

// write makes changes of new entities in one transaction, in a trace of its own.
func (l *lab) write(ctx context.Context, what string, op outbox.Op, ranks ...float64) ([]outbox.NewEvent, error) {
	ctx, span := l.tracer.Start(ctx, what, trace.WithSpanKind(trace.SpanKindProducer))
	defer span.End()
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	var changes []traffic.Change
	for _, rank := range ranks {
		c := traffic.Upsert(traffic.NewKey(), "The weft crosses the warp.")
		c.Op, c.Rank, c.Traceparent, c.Tracestate = op, rank, carrier.Get("traceparent"), carrier.Get("tracestate")
		changes = append(changes, c)
	}
	return l.app.Write(ctx, changes...)
}

// everyday writes until ctx ends, which is no error.
func (l *lab) everyday(ctx context.Context) error {
	for rig.Sleep(ctx, tickPeriod) == nil {
		if _, err := l.write(ctx, "save blocks", outbox.Upsert, make([]float64, perTick)...); err != nil {
			return err
		}
	}
	return nil
}

// publish writes good documents and one among them whose rank PostgreSQL holds and
// Elasticsearch's float does not.
func (l *lab) publish(ctx context.Context) (poisoned outbox.NewEvent, err error) {
	ranks := make([]float64, goodOnes+1)
	ranks[goodOnes/2] = math.MaxFloat64
	events, err := l.write(ctx, "publish book", outbox.Upsert, ranks...)
	if err != nil {
		return outbox.NewEvent{}, err
	}
	var id [16]byte
	err = l.pool.QueryRow(ctx, `select entity_id from search_index where rank_score = $1`, math.MaxFloat64).Scan(&id)
	for _, e := range events {
		if e.Key.ID == outbox.UUID(id) {
			return e, err
		}
	}
	return outbox.NewEvent{}, errors.Join(errors.New("no event is of the poisoned row"), err)
}

// Line is a line of a log.
type Line struct {
	Instance string
	Raw      string
	Fields   map[string]any
}

// text is a field as text.
func (l Line) text(key string) string {
	s, _ := l.Fields[key].(string)
	return s
}

// grep returns the lines of all instances that contain a text, in the order of the files.
func (l *lab) grep(text string) (found []Line, err error) {
	for _, i := range l.instances {
		content, err := os.ReadFile(i.Log)
		if err != nil {
			return nil, fmt.Errorf("log of %s: %w", i.Name, err)
		}
		for line := range bytes.Lines(content) {
			if !bytes.Contains(line, []byte(text)) || !bytes.HasSuffix(line, []byte("\n")) {
				continue
			}
			found = append(found, Line{Instance: i.Name, Raw: string(bytes.TrimSpace(line))})
			if err := json.Unmarshal(line, &found[len(found)-1].Fields); err != nil {
				return nil, fmt.Errorf("log of %s: %w in %s", i.Name, err, line)
			}
		}
	}
	return found, nil
}
