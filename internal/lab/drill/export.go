package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

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
	find(ctx context.Context, q verdict.Query) (json.RawMessage, map[string]int, error) // spans by trace
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
		source = jaeger{watch.NewTraces(x.JaegerURL), service, x.Lookback, x.Limit}
	}
	x.Expect(len(e.Recipe.Settings) > 0, "export: no instance of weft takes part in this drill, and so there are no traces")
	x.Expect(len(out.Queries) > 0, "export: the run has no event; name one with --event or --batch")
	x.snapshot(source, service, d)
	seen := map[string]int{}
	var missing []string
	for i := range out.Queries {
		q := &out.Queries[i]
		traces, spans, err := source.find(x.Ctx, *q)
		x.MustDo("export", err)
		for _, n := range spans {
			q.Spans += n
		}
		q.Traces = len(spans)
		maps.Copy(seen, spans)
		if q.Traces == 0 {
			missing = append(missing, q.By+" "+q.ID)
		}
		x.Must(d.Write(q.File, map[string]any{"data": traces}))
	}
	out.Traces = len(seen)
	for _, n := range seen {
		out.Spans += n
	}
	x.Must(d.Write(verdict.ExportedFile, out))
	rows := make([][]any, len(out.Queries))
	for i, q := range out.Queries {
		rows[i] = []any{q.By, q.ID, q.Operation, q.Traces, q.Spans, q.File}
	}
	verdict.WriteRows(x.Out, []any{"BY", "ID", "OPERATION", "TRACES", "SPANS", "FILE"}, rows...)
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

func (j jaeger) find(ctx context.Context, q verdict.Query) (json.RawMessage, map[string]int, error) {
	found, raw, err := j.traces.FindRaw(ctx, watch.Query{
		Service: j.service, Operation: q.Operation, Tags: map[string]string{q.Tag: q.ID}, Limit: j.limit, Lookback: j.lookback,
	})
	spans := map[string]int{}
	for _, t := range found {
		spans[t.ID] = len(t.Spans)
	}
	return raw, spans, err
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

func (c capture) find(_ context.Context, q verdict.Query) (json.RawMessage, map[string]int, error) {
	var order []string
	of := map[string][]collector.Span{}
	for _, s := range c.spans {
		if s.Name == q.Operation && fmt.Sprint(s.Attrs[q.Tag]) == q.ID && of[s.Trace] == nil {
			of[s.Trace] = []collector.Span{}
			order = append(order, s.Trace)
		}
	}
	counts := map[string]int{}
	for _, s := range c.spans {
		if of[s.Trace] != nil {
			of[s.Trace] = append(of[s.Trace], s)
			counts[s.Trace]++
		}
	}
	traces := make([]any, 0, len(order))
	for _, id := range order {
		traces = append(traces, inJaegersForm(id, of[id]))
	}
	raw, err := json.Marshal(traces)
	return raw, counts, err
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
