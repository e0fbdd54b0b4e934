package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

// ExportOptions of [Export].
type ExportOptions struct {
	Out       io.Writer
	Evidence  string
	Run       string // empty: the newest
	JaegerURL string // empty: the spans that the run has received itself
	Service   string // empty: that of the run
	Lookback  time.Duration
	Limit     int      // traces of one query, and events where none are named
	Events    []string // ids of outbox rows
	Batches   []string // claim batch ids
}

// traceSource answers questions for traces, in Jaeger's form.
type traceSource interface {
	find(ctx context.Context, q verdict.Query) (json.RawMessage, error) // an array of traces
	names(ctx context.Context, service string) (services, operations []string, err error)
	hint(ctx context.Context) string
}

// Export writes the traces of events and batches of a run beside its evidence. An event or
// batch that has none is an error, after all were asked for.
func Export(ctx context.Context, opts ExportOptions, scenario string) error {
	x := &export{ExportOptions: opts}
	return x.Play(ctx, func() { x.run(scenario) })
}

// export is one, as a script.
type export struct {
	rig.Script
	ExportOptions
}

func (x *export) run(scenario string) {
	rig.Try(lookUp([]string{scenario})).Must(x)
	d := rig.Try(verdict.Find(x.Evidence, scenario, x.Run)).Must(x)
	e := rig.Try(verdict.Open(d)).Must(x)
	service := cmp.Or(x.Service, e.Recipe.Service)
	var source traceSource = capture{e.Spans}
	out := verdict.Exported{Source: "capture", Service: service, At: time.Now().UTC(), Queries: x.queries(e)}
	if x.JaegerURL != "" {
		out.Source = verdict.Address(x.JaegerURL)
		source = jaeger{rig.Try(watch.NewTraces(x.JaegerURL)).MustDo(x, "JAEGER_URL"), service, x.Lookback, x.Limit}
	}
	x.Expect(len(e.Recipe.Settings) > 0, "export: no instance of weft takes part in this drill, and so there are no traces")
	x.Expect(len(out.Queries) > 0, "export: the run has no event; name one with --event or --batch")
	x.snapshot(source, service, d)
	seen := map[string]int{}
	var missing []string
	for i := range out.Queries {
		q := &out.Queries[i]
		traces := rig.Try(source.find(x.Ctx, *q)).MustDo(x, "export")
		var found []watch.Trace
		x.MustDo("export", json.Unmarshal(traces, &found))
		for _, t := range found {
			q.Spans += len(t.Spans)
			seen[t.ID] = len(t.Spans)
		}
		if q.Traces = len(found); q.Traces == 0 {
			missing = append(missing, q.By+" "+q.ID)
		}
		x.Must(d.Write(q.File, map[string]any{"data": traces}))
	}
	out.Traces = len(seen)
	for _, n := range seen {
		out.Spans += n
	}
	x.Must(d.Write(verdict.ExportedFile, out))
	verdict.WriteRows(x.Out, []any{"BY", "ID", "OPERATION", "TRACES", "SPANS", "FILE"}, rig.Map(out.Queries, func(q verdict.Query) []any {
		return []any{q.By, q.ID, q.Operation, q.Traces, q.Spans, q.File}
	})...)
	fmt.Fprintf(x.Out, "%s with %s from %s, service %s, in %s\n", counted(out.Traces, "trace"), counted(out.Spans, "span"), out.Source, out.Service, d)
	if len(missing) > 0 {
		x.Must(fmt.Errorf("export: no trace of %s in %s; %s", strings.Join(missing, ", "), out.Source, source.hint(x.Ctx)))
	}
}

// queries returns a query for each named event and batch, or else for the run's first events,
// their batches and entities, and for the batches and claims of this vocabulary.
func (o ExportOptions) queries(e *verdict.Evidence) []verdict.Query {
	events, batches := o.Events, o.Batches
	if len(events)+len(batches) == 0 {
		for _, event := range e.Recipe.Events {
			if len(events) == o.Limit {
				break
			}
			events = append(events, event.ID.String())
		}
		for _, s := range e.SpansOf(spanEvent) {
			batch := fmt.Sprint(s.Attrs["wordloom.claim_batch_id"])
			if slices.Contains(events, fmt.Sprint(s.Attrs["wordloom.outbox_event_id"])) && !slices.Contains(batches, batch) {
				batches = append(batches, batch)
			}
		}
	}
	var out []verdict.Query
	add := func(by, operation, tag string, ids []string) {
		for _, id := range ids {
			file := fmt.Sprintf("%s/traces-%s-%s.json", verdict.ExportDir, by, unsafe.ReplaceAllString(id, "_"))
			out = append(out, verdict.Query{By: by, ID: id, Operation: operation, Tag: tag, File: file})
		}
	}
	add("event", spanEvent, "wordloom.outbox_event_id", events)
	add("batch", spanBatch, "wordloom.claim_batch_id", batches)
	if len(o.Events)+len(o.Batches) > 0 {
		return out
	}
	// What this vocabulary has sent, where another worker may run beside it; and what has
	// happened to the first of the entities.
	add("schema", spanBatch, obsSchema, []string{telemetry.Schema})
	add("claims", spanClaim, obsSchema, []string{telemetry.Schema})
	var entities []string
	for _, event := range e.Recipe.Events {
		_, id, _ := strings.Cut(event.Entity, ":")
		if len(entities) < o.Limit && !slices.Contains(entities, id) {
			entities = append(entities, id)
		}
	}
	add("entity", spanEvent, "wordloom.entity_id", entities)
	return out
}

const obsSchema = "wordloom.obs_schema"

// snapshot writes which services the source knows, and the operations of the run's, as
// Jaeger's API answers.
func (x *export) snapshot(source traceSource, service string, d verdict.Dir) {
	services, operations, err := source.names(x.Ctx, service)
	x.MustDo("export", err)
	for file, names := range map[string][]string{"services": services, "operations": operations} {
		slices.Sort(names)
		x.Must(d.Write(verdict.ExportDir+"/"+file+".json", map[string]any{"data": names, "total": len(names)}))
	}
}

// unsafe is what of an id is no part of a file's name.
var unsafe = regexp.MustCompile(`[^0-9A-Za-z-]`)

// jaeger is a Jaeger as a source.
type jaeger struct {
	traces   *watch.Traces
	service  string
	lookback time.Duration
	limit    int
}

func (j jaeger) find(ctx context.Context, q verdict.Query) (json.RawMessage, error) {
	return j.traces.FindRaw(ctx, watch.Query{
		Service: j.service, Operation: q.Operation, Tags: map[string]string{q.Tag: q.ID}, Limit: j.limit, Lookback: j.lookback,
	})
}

func (j jaeger) names(ctx context.Context, service string) (services, operations []string, err error) {
	if services, err = j.traces.Services(ctx); err == nil {
		operations, err = j.traces.Operations(ctx, service)
	}
	return services, operations, err
}

func (j jaeger) hint(ctx context.Context) string {
	names, err := j.traces.Services(ctx)
	if err != nil {
		return err.Error()
	}
	slices.Sort(names)
	return fmt.Sprintf("Jaeger knows the services %v; was the run given its OTLP endpoint (OTEL_EXPORTER_OTLP_ENDPOINT)?", names)
}

// capture is the run's own receiver as a source.
type capture struct{ spans []collector.Span }

func (c capture) hint(context.Context) string {
	return fmt.Sprintf("the run has received %d spans", len(c.spans))
}

func (c capture) names(_ context.Context, service string) (services, operations []string, err error) {
	for _, s := range c.spans {
		name := fmt.Sprint(s.Resource["service.name"])
		if !slices.Contains(services, name) {
			services = append(services, name)
		}
		if name == service && !slices.Contains(operations, s.Name) {
			operations = append(operations, s.Name)
		}
	}
	return services, operations, nil
}

func (c capture) find(_ context.Context, q verdict.Query) (json.RawMessage, error) {
	var order []string
	of := map[string][]collector.Span{}
	for _, s := range c.spans {
		if s.Name == q.Operation && fmt.Sprint(s.Attrs[q.Tag]) == q.ID && of[s.Trace] == nil {
			of[s.Trace] = []collector.Span{}
			order = append(order, s.Trace)
		}
	}
	for _, s := range c.spans {
		if of[s.Trace] != nil {
			of[s.Trace] = append(of[s.Trace], s)
		}
	}
	return json.Marshal(rig.Map(order, func(id string) any { return inJaegersForm(id, of[id]) }))
}

// inJaegersForm writes a trace as Jaeger's API does, so that what reads the one reads the
// other.
func inJaegersForm(id string, spans []collector.Span) any {
	type tag struct {
		Key   string `json:"key"`
		Type  string `json:"type"`
		Value any    `json:"value"`
	}
	tagsOf := func(attrs map[string]any) []tag {
		tags := []tag{}
		for _, k := range slices.Sorted(maps.Keys(attrs)) {
			kind := "string"
			switch v := attrs[k].(type) {
			case bool:
				kind = "bool"
			case json.Number:
				kind = "int64"
				if strings.ContainsAny(v.String(), ".eE") {
					kind = "float64"
				}
			}
			tags = append(tags, tag{k, kind, attrs[k]})
		}
		return tags
	}
	processes, known := map[string]any{}, map[string]string{}
	out := make([]any, 0, len(spans))
	for _, s := range spans {
		instance := fmt.Sprint(s.Resource["service.instance.id"])
		if known[instance] == "" {
			known[instance] = fmt.Sprintf("p%d", len(known)+1)
			processes[known[instance]] = map[string]any{"serviceName": fmt.Sprint(s.Resource["service.name"]), "tags": tagsOf(s.Resource)}
		}
		references := []watch.Reference{}
		if s.Parent != "" {
			references = append(references, watch.Reference{Type: "CHILD_OF", TraceID: s.Trace, SpanID: s.Parent})
		}
		for _, l := range s.Links {
			references = append(references, watch.Reference{Type: "FOLLOWS_FROM", TraceID: l.Trace, SpanID: l.Span})
		}
		tags := append(tagsOf(s.Attrs), tag{"span.kind", "string", strings.ToLower(s.Kind)})
		if s.Error {
			tags = append(tags, tag{"error", "bool", true}, tag{"otel.status_description", "string", s.Status})
		}
		out = append(out, map[string]any{
			"traceID": s.Trace, "spanID": s.ID, "operationName": s.Name, "references": references,
			"startTime": s.Start.UnixMicro(), "duration": s.End.Sub(s.Start).Microseconds(), "tags": tags, "processID": known[instance],
		})
	}
	return map[string]any{"traceID": id, "spans": out, "processes": processes}
}

const forwardBound = 5 * time.Second

// forwarder passes on what a run receives to the collector that the caller's environment
// names, so that the traces of a drill can be looked at where all others are.
type forwarder struct {
	client otlptrace.Client
	to     string
	lost   atomic.Int64 // requests that it did not take
}

// newForwarder returns nil when nobody else wants the spans. Where they go is said as for
// any program that exports traces, by OTEL_EXPORTER_OTLP_ENDPOINT and its relatives; a
// Jaeger that is named alone takes OTLP on its usual port.
func newForwarder(ctx context.Context, environ []string) (*forwarder, error) {
	to := cmp.Or(valueOf(environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), valueOf(environ, "OTEL_EXPORTER_OTLP_ENDPOINT"))
	protocol := valueOf(environ, "OTEL_EXPORTER_OTLP_PROTOCOL")
	var client otlptrace.Client
	switch jaeger := valueOf(environ, "JAEGER_URL"); {
	case to == "" && jaeger == "":
		return nil, nil //nolint:nilnil // nobody wants them
	case to == "":
		u, err := url.Parse(jaeger)
		if err != nil || u.Hostname() == "" {
			return nil, fmt.Errorf("JAEGER_URL: want a URL with a host")
		}
		to = "http://" + net.JoinHostPort(u.Hostname(), "4318")
		client = otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(to + "/v1/traces"))
	case protocol == "grpc" || protocol == "" && strings.HasSuffix(strings.TrimRight(to, "/"), ":4317"):
		client = otlptracegrpc.NewClient() // reads the rest of the environment itself
	default:
		client = otlptracehttp.NewClient()
	}
	if err := client.Start(ctx); err != nil {
		return nil, fmt.Errorf("forward spans to %s: %w", to, err)
	}
	return &forwarder{client: client, to: to}, nil
}

// valueOf returns the value of a name in an environment, where the last one counts.
func valueOf(environ []string, name string) string {
	for _, e := range slices.Backward(environ) {
		if value, found := strings.CutPrefix(e, name+"="); found {
			return value
		}
	}
	return ""
}

// attach makes the forwarder see what c receives.
func (f *forwarder) attach(c *collector.Collector) {
	if f == nil {
		return
	}
	c.Answer(func(ctx context.Context, spans collector.Sent) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forwardBound)
		defer cancel()
		if err := f.client.UploadTraces(ctx, spans); err != nil {
			f.lost.Add(1)
		}
		return nil
	})
}

// close says on out what the receiver has not taken.
func (f *forwarder) close(ctx context.Context, out io.Writer) error {
	if f == nil {
		return nil
	}
	if lost := f.lost.Load(); lost > 0 {
		fmt.Fprintf(out, "%s did not take %d exports of spans; the evidence has them\n", f.to, lost)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forwardBound)
	defer cancel()
	return rig.Wrap("forward spans to "+f.to, f.client.Stop(ctx))
}
