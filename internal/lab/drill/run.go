package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

type run struct {
	*rig.Group // its place is the corner
	rig.Script
	corner   *corner
	scenario Scenario
	set      map[string]string // parameters
	without  bool              // the fault
	screen   *rig.Screen
	dir      verdict.Dir
	cancel   context.CancelCauseFunc

	app       *traffic.Application
	collector *collector.Collector
	undone    []undo

	mu       sync.Mutex // of what follows
	recipe   verdict.Recipe
	timeline []verdict.Mark
	terminal []byte
	probed   map[string]bool
	before   map[string]verdict.Families
	after    map[string]verdict.Families
	last     map[string]map[string]float64 // values by instance and series
	changes  []verdict.Change
}

type undo struct {
	what string
	do   func(context.Context) error
}

type runSpec struct {
	Options
	site     *site
	scenario Scenario
	set      map[string]string
	binary   string
	version  string
	forward  *forwarder
}

// quietPeriod is between two status lines where they cannot be rewritten in place.
const quietPeriod = 5 * time.Second

// newRun makes the directory and the corner of a run.
func newRun(ctx context.Context, s runSpec) (r *run, err error) {
	r = &run{
		scenario: s.scenario, set: s.set, without: s.WithoutFault, screen: rig.NewScreen(s.Out, quietPeriod), probed: map[string]bool{},
		before: map[string]verdict.Families{}, after: map[string]verdict.Families{}, last: map[string]map[string]float64{},
	}
	if r.corner, err = s.site.newCorner(ctx, s.scenario.Name); err != nil {
		return nil, err
	}
	if r.collector, err = collector.Start(ctx); err == nil {
		r.dir, err = verdict.Create(s.Evidence, s.scenario.Name, time.Now())
	}
	if err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	s.forward.attach(r.collector)
	servers := "embedded"
	if !s.site.Started.Postgres || !s.site.Started.Elastic {
		servers = "given"
	}
	p := r.corner.Place
	environ := rig.Environment(s.Environ, !s.site.Started.Elastic, append(p.Settings(),
		"WORDLOOM_ENV="+s.site.environment, "WEFT_PROJECTIONS="+searchProjection,
		"WORDLOOM_TRACING_ENABLED=true", "OTEL_SERVICE_NAME="+service(s.Environ), "OTEL_TRACES_SAMPLER=always_on", "OTEL_BSP_SCHEDULE_DELAY=200",
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT="+r.collector.HTTP,
		"WEFT_LEADER_TRUST=20s", "WEFT_LEADER_IDLE_SESSION=25s")...) // so that a machine that stands still for a moment ends no term
	r.app = &traffic.Application{Pool: p.Pool, Timeout: queryBound}
	r.Group = &rig.Group{Place: p, Recorder: proxy.NewRecorder(), Fleet: &rig.Fleet{Binary: s.binary, Dir: r.dir.File(verdict.LogDir), Env: environ}}
	r.recipe = verdict.Recipe{
		Scenario: s.scenario.Name, Run: r.dir.Run, About: s.scenario.About, Outcome: verdict.Running, Started: time.Now().UTC(),
		Environment: s.site.environment, Servers: servers, Postgres: verdict.Address(s.site.DatabaseURL), Elastic: verdict.Address(p.ElasticURL),
		Schema: p.Schema, Index: p.Index, Group: p.Group, Weft: s.version, Service: service(s.Environ), WithoutFault: s.WithoutFault,
		Parameters: map[string]any{}, Settings: map[string]map[string]string{}, Faults: []string{}, Events: []verdict.Event{},
	}
	for _, p := range s.scenario.Params {
		r.recipe.Parameters[p.Name] = r.param(p.Name)
	}
	return r, nil
}

// service is the name under which the instances send spans.
func service(environ []string) string { return cmp.Or(valueOf(environ, "OTEL_SERVICE_NAME"), "weft") }

// carryOut runs the scenario from its first step to its last and leaves the evidence, also
// when something goes wrong.
func (r *run) carryOut(ctx context.Context) (err error) {
	caller := ctx
	bound := cmp.Or(r.scenario.bound, runBound)
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the drill is not over within %v", bound))
	defer cancel()
	ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	if err := r.keepRecipe(); err != nil {
		return errors.Join(err, r.close(ctx))
	}
	stopWatching := r.watch(ctx)
	err = errors.Join(r.Play(ctx, func() { r.prepare(); r.scenario.run(r) }), r.undoFaults(context.WithoutCancel(ctx)))
	stopWatching()
	r.screen.Refresh("")
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	err = errors.Join(err, r.finish(context.WithoutCancel(ctx), err == nil))
	r.recipe.Outcome, r.recipe.Ended = verdict.Completed, time.Now().UTC()
	switch {
	case caller.Err() != nil:
		r.recipe.Outcome = verdict.Interrupted
	case err != nil:
		r.recipe.Outcome, r.recipe.Error = verdict.Failed, err.Error()
	}
	return errors.Join(err, r.keepRecipe(), r.close(ctx))
}

// prepare makes the tables and starts the instances.
func (r *run) prepare() {
	r.step("migrating schema %s of %s (%s)", r.Schema, r.recipe.Postgres, r.recipe.Environment)
	r.Must(r.Fleet.Run(r.Ctx, "migrate", "up"))
	r.Must(r.Record(r.Ctx))
	r.Must(history.Install(r.Ctx, r.Pool, chronicleOutbox))
	if r.scenario.nodes > 1 {
		r.Must(r.MakeIndex(r.Ctx, r.Index, rig.ClusterIndex))
	}
	for n, i := range r.scenario.instances {
		m := r.start(i.name, i.env...)
		if n == 0 {
			r.awaitLeader(m)
		}
	}
}

// finish takes the last metrics and probes, stops everything that runs, and writes it all
// down.
func (r *run) finish(ctx context.Context, well bool) error {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	var errs []error
	for _, m := range r.Members() {
		if i := m.Instance(); i != nil && !i.HasEnded() {
			r.scrape(ctx, m)
		}
	}
	errs = append(errs, r.lastProbes(ctx))
	if err := r.Stop(); well {
		errs = append(errs, err) // otherwise it is no news
	}
	r.collector.Close()
	errs = append(errs,
		r.keepProbe("bulk", r.Recorder.Applied()),
		verdict.WriteLines(r.dir, verdict.SpansFile, r.collector.Spans()),
		r.keepMetrics(),
	)
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.timeline, func(a, b verdict.Mark) int { return a.At.Compare(b.At) })
	errs = append(errs, verdict.WriteLines(r.dir, verdict.TimelineFile, r.timeline),
		r.dir.WriteText(verdict.LogDir+"/drill.log", r.terminal))
	return errors.Join(errs...)
}

func (r *run) close(ctx context.Context) error {
	if r.collector != nil {
		r.collector.Close()
	}
	return r.corner.close(ctx)
}

func (r *run) keepRecipe() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dir.Write(verdict.RecipeFile, r.recipe)
}

func (r *run) probe(name string, v any) { r.Must(r.keepProbe(name, v)) }

func (r *run) keepProbe(name string, v any) error { return r.takeProbe(name, r.dir.Write, v) }

// keepCompact is for a probe that is large.
func (r *run) keepCompact(name string, v any) error {
	return r.takeProbe(name, func(file string, v any) error { return verdict.WriteLines(r.dir, file, []any{v}) }, v)
}

func (r *run) takeProbe(name string, write func(file string, v any) error, v any) error {
	r.mu.Lock()
	taken := r.probed[name]
	r.probed[name] = true
	r.mu.Unlock()
	if taken {
		return fmt.Errorf("evidence: probe %s was taken already", name)
	}
	return write(verdict.ProbeFile(name), v)
}

func (r *run) step(format string, args ...any) { r.mark(verdict.Step, format, args...) }

func (r *run) mark(kind verdict.MarkKind, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	m := verdict.Mark{At: time.Now().UTC(), Kind: kind, What: what}
	r.mu.Lock()
	r.timeline = append(r.timeline, m)
	line := fmt.Sprintf("%6.1f s  %-5s  %s\n", m.At.Sub(r.recipe.Started).Seconds(), kind, what)
	r.terminal = append(r.terminal, line...)
	r.mu.Unlock()
	_, _ = io.WriteString(r.screen, line)
}

// keepMetrics writes the first and the last scrape of each instance, and what changed in
// between.
func (r *run) keepMetrics() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for file, scrapes := range map[string]map[string]verdict.Families{verdict.BeforeFile: r.before, verdict.AfterFile: r.after} {
		text, err := verdict.Merge(scrapes)
		errs = append(errs, err, r.dir.WriteText(file, text))
	}
	return errors.Join(append(errs, verdict.WriteLines(r.dir, verdict.SeriesFile, r.changes))...)
}
