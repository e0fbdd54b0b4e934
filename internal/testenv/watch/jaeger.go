package watch

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

const keptTraces = 200_000

// Jaeger is a running all-in-one that keeps its traces in memory. Its methods are safe
// for concurrent use.
type Jaeger struct {
	*server
	*Traces
	path  string // of its API: another Jaeger has none there
	ports struct{ query, queryGRPC, admin, grpc, http, legacyGRPC, legacyHTTP int }
}

// StartJaeger returns when it takes spans and answers questions. dir, which must exist, gets its log, and
// progress the steps of its build.
func StartJaeger(ctx context.Context, dir string, progress io.Writer) (_ *Jaeger, err error) {
	binary, err := buildJaeger(ctx, progress)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("jaeger: %w", err)
	}
	j := &Jaeger{path: "/" + rand.Text()}
	var admin *Traces
	j.server, err = launch(ctx, "jaeger", dir, []string{"SPAN_STORAGE_TYPE=memory"}, func() ([]string, error) {
		p := &j.ports
		err := process.FreePorts(&p.query, &p.queryGRPC, &p.admin, &p.grpc, &p.http, &p.legacyGRPC, &p.legacyHTTP)
		if err == nil {
			j.Traces, err = NewTraces(j.URL())
		}
		if err == nil {
			admin, err = NewTraces("http://" + loopback(p.admin))
		}
		if err != nil {
			return nil, err
		}
		return []string{
			binary,
			"--admin.http.host-port=" + loopback(j.ports.admin),
			"--collector.grpc-server.host-port=" + loopback(j.ports.legacyGRPC),
			"--collector.http-server.host-port=" + loopback(j.ports.legacyHTTP),
			"--collector.otlp.grpc.host-port=" + loopback(j.ports.grpc),
			"--collector.otlp.http.host-port=" + loopback(j.ports.http),
			"--query.http-server.host-port=" + loopback(j.ports.query),
			"--query.grpc-server.host-port=" + loopback(j.ports.queryGRPC),
			"--query.base-path=" + j.path,
			"--memory.max-traces=" + strconv.Itoa(keptTraces),
			"--log-level=warn",
		}, nil
	}, func(ctx context.Context) error {
		if err := admin.ask(ctx, "/", nil); err != nil {
			return err // one of its parts is not well
		}
		return j.ask(ctx, "/api/services", nil)
	})
	return j, err
}

// URL is where its HTTP API answers.
func (j *Jaeger) URL() string { return "http://" + loopback(j.ports.query) + j.path }

// OTLPGRPC is the endpoint for spans over gRPC.
func (j *Jaeger) OTLPGRPC() string { return "http://" + loopback(j.ports.grpc) }

// OTLPHTTP is the endpoint for spans over HTTP.
func (j *Jaeger) OTLPHTTP() string { return "http://" + loopback(j.ports.http) }

const (
	buildBound = 20 * time.Minute // cold caches on a slow machine
	ownModule  = "github.com/samuelhu324-dev/weft"
)

// buildJaeger returns Jaeger's binary, which the go command builds unless it has it.
func buildJaeger(ctx context.Context, progress io.Writer) (binary string, err error) {
	ctx, cancel := context.WithTimeout(ctx, buildBound)
	defer cancel()
	root, err := process.Go(ctx, "list", "-m", "-f", "{{.Dir}}", ownModule)
	if err != nil {
		return "", fmt.Errorf("sources of weft: %w", err)
	}
	fmt.Fprintln(progress, "watch: building Jaeger, which takes minutes the first time")
	compiler := process.Tool{Dir: filepath.Join(root, "tools", "jaeger"), Env: []string{"CGO_ENABLED=0", "GOWORK=off"}}
	if binary, err = compiler.Run(ctx, "go", "tool", "-n", "all-in-one"); err != nil {
		return "", fmt.Errorf("build Jaeger: %w", err)
	}
	return strings.TrimSpace(binary), nil
}

const defaultLimit = 100

// Trace is what Jaeger has of a trace.
type Trace struct {
	ID        string `json:"traceID"`
	Spans     []Span `json:"spans"`
	Processes map[string]struct {
		Service string `json:"serviceName"`
		Tags    Tags   `json:"tags"`
	} `json:"processes"`
}

// Span is one span of a [Trace].
type Span struct {
	TraceID    string      `json:"traceID"`
	ID         string      `json:"spanID"`
	Operation  string      `json:"operationName"`
	References []Reference `json:"references"`
	Process    string      `json:"processID"`
	Micros     int64       `json:"startTime"` // since 1970
	Duration   int64       `json:"duration"`  // microseconds
	Tags       Tags        `json:"tags"`

	Service  string    `json:"-"`
	Start    time.Time `json:"-"`
	Resource Tags      `json:"-"` // of the process that sent it
}

// Tags are values by key: string, bool, or float64 for every number.
type Tags map[string]any

// UnmarshalJSON implements json.Unmarshaler.
func (t *Tags) UnmarshalJSON(text []byte) error {
	var list []struct {
		Key   string
		Value any
	}
	err := json.Unmarshal(text, &list)
	*t = Tags{}
	for _, tag := range list {
		(*t)[tag.Key] = tag.Value
	}
	return err
}

// Reference is to the parent of a span (CHILD_OF), or to a span that it is linked with
// (FOLLOWS_FROM).
type Reference struct {
	Type    string `json:"refType"`
	TraceID string `json:"traceID"`
	SpanID  string `json:"spanID"`
}

// Traces asks a Jaeger over its HTTP API, wherever it runs. It is safe for concurrent use.
type Traces struct{ client *reconcile.Client }

// NewTraces returns a client of the Jaeger at url.
func NewTraces(url string) (*Traces, error) {
	client, err := reconcile.NewClient(url)
	if err != nil {
		return nil, err
	}
	client.HTTP = newHTTP()
	return &Traces{client}, nil
}

// ask reads the data of an answer into data, unless that is nil.
func (t *Traces) ask(ctx context.Context, path string, data any) error {
	if err := t.client.Do(ctx, http.MethodGet, path, nil, &struct{ Data any }{data}); err != nil {
		return fmt.Errorf("ask Jaeger: %w", err)
	}
	return nil
}

// Query selects traces with a span of the service that has the operation, and all tags,
// itself or by its process.
type Query struct {
	Service   string // required
	Operation string
	Tags      map[string]string
	Limit     int           // 0 is a hundred
	Lookback  time.Duration // 0 is an hour
}

func (q Query) values() url.Values {
	v := url.Values{"service": {q.Service}, "lookback": {"1h"}, "limit": {strconv.Itoa(defaultLimit)}}
	if q.Lookback > 0 {
		now := time.Now()
		v.Set("lookback", "custom")
		v.Set("start", strconv.FormatInt(now.Add(-q.Lookback).UnixMicro(), 10))
		v.Set("end", strconv.FormatInt(now.UnixMicro(), 10))
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Operation != "" {
		v.Set("operation", q.Operation)
	}
	if len(q.Tags) > 0 {
		tags, _ := json.Marshal(q.Tags) // texts always have an encoding
		v.Set("tags", string(tags))
	}
	return v
}

// Services lists who has sent spans.
func (t *Traces) Services(ctx context.Context) (names []string, err error) {
	err = t.ask(ctx, "/api/services", &names)
	return names, err
}

// Operations lists the names of a service's spans.
func (t *Traces) Operations(ctx context.Context, service string) (names []string, err error) {
	err = t.ask(ctx, "/api/services/"+url.PathEscape(service)+"/operations", &names)
	return names, err
}

// Trace returns the trace of that id, whole.
func (t *Traces) Trace(ctx context.Context, id string) (Trace, error) {
	var found []Trace
	if err := t.ask(ctx, "/api/traces/"+url.PathEscape(id), &found); err != nil {
		return Trace{}, err
	}
	if len(found) != 1 {
		return Trace{}, fmt.Errorf("ask Jaeger: %d traces of id %s", len(found), id)
	}
	complete(found)
	return found[0], nil
}

// Find returns the newest traces that q selects, whole.
func (t *Traces) Find(ctx context.Context, q Query) ([]Trace, error) {
	raw, err := t.FindRaw(ctx, q)
	if err != nil {
		return nil, err
	}
	var found []Trace
	if err := json.Unmarshal(raw, &found); err != nil {
		return nil, fmt.Errorf("answer of Jaeger: %w", err)
	}
	complete(found)
	return found, nil
}

// FindRaw returns them as Jaeger writes them, an array of JSON.
func (t *Traces) FindRaw(ctx context.Context, q Query) (raw json.RawMessage, err error) {
	err = t.ask(ctx, "/api/traces?"+q.values().Encode(), &raw)
	return raw, err
}

// complete fills in what Jaeger has elsewhere, or in another form.
func complete(traces []Trace) {
	for _, t := range traces {
		for i := range t.Spans {
			s := &t.Spans[i]
			process := t.Processes[s.Process]
			s.Service, s.Resource, s.Start = process.Service, process.Tags, time.UnixMicro(s.Micros)
		}
	}
}
