package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/lab/console"
	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// run is one run of a scenario.
type run struct {
	*corner
	scenario Scenario
	set      map[string]string // parameters
	without  bool              // the fault
	console  *console.Console
	dir      evidence.Dir
	cancel   context.CancelCauseFunc

	fleet     *fleet.Fleet
	collector *collector.Collector
	recorder  *proxy.Recorder
	members   []*member // all that there ever were
	undone    []undo

	mu       sync.Mutex // of what follows
	recipe   evidence.Recipe
	timeline []evidence.Mark
	terminal []byte
	probed   map[string]bool
	before   map[string]evidence.Families
	after    map[string]evidence.Families
	changes  []evidence.Change
}

// undo takes a fault back.
type undo struct {
	what string
	do   func(context.Context) error
}

// runSpec is what a run is given.
type runSpec struct {
	place    *place
	scenario Scenario
	set      map[string]string
	without  bool
	out      io.Writer
	environ  []string
	binary   string
	version  string
	evidence string
	forward  *forwarder
}

// quietPeriod is between two status lines where they cannot be rewritten in place.
const quietPeriod = 5 * time.Second

// newRun makes the directory and the corner of a run.
func newRun(ctx context.Context, s runSpec) (r *run, err error) {
	r = &run{
		scenario: s.scenario, set: s.set, without: s.without, console: console.New(s.out, quietPeriod), recorder: proxy.NewRecorder(),
		probed: map[string]bool{}, before: map[string]evidence.Families{}, after: map[string]evidence.Families{},
	}
	if r.corner, err = s.place.newCorner(ctx, s.scenario.Name); err != nil {
		return nil, err
	}
	if r.collector, err = collector.Start(ctx); err == nil {
		r.dir, err = evidence.Create(s.evidence, s.scenario.Name, time.Now())
	}
	if err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	s.forward.attach(r.collector)
	servers := "embedded"
	if !s.place.own.postgres || !s.place.own.elastic {
		servers = "given"
	}
	environ := fleet.Environment(s.environ, !s.place.own.elastic,
		"DATABASE_URL="+r.databaseURL, "ELASTIC_URL="+r.elasticURL, "ELASTIC_INDEX="+r.index, "WEFT_GROUP="+r.group,
		"WORDLOOM_ENV="+r.environment, "WEFT_PROJECTIONS="+searchProjection, "WEFT_LOG_LEVEL=debug", "GOTRACEBACK=all",
		"WORDLOOM_TRACING_ENABLED=true", "OTEL_SERVICE_NAME="+service(s.environ), "OTEL_TRACES_SAMPLER=always_on", "OTEL_BSP_SCHEDULE_DELAY=200",
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT="+r.collector.HTTP)
	r.fleet = &fleet.Fleet{Binary: s.binary, Dir: r.dir.File(evidence.LogDir), Env: environ}
	r.recipe = evidence.Recipe{
		Scenario: s.scenario.Name, Run: r.dir.Run, About: s.scenario.About, Outcome: evidence.Running, Started: time.Now().UTC(),
		Environment: r.environment, Servers: servers, Postgres: evidence.Address(r.base), Elastic: evidence.Address(r.elasticURL),
		Schema: r.schema, Index: r.index, Group: r.group, Weft: s.version, Service: service(s.environ), WithoutFault: s.without,
		Parameters: map[string]any{}, Settings: map[string]map[string]string{}, Faults: []string{}, Events: []evidence.Event{},
	}
	for _, p := range s.scenario.Params {
		r.recipe.Parameters[p.Name] = r.param(p.Name)
	}
	return r, nil
}

const defaultService = "weft"

// service is the name under which the instances send spans.
func service(environ []string) string {
	for _, e := range slices.Backward(environ) {
		if name, found := cutName(e, "OTEL_SERVICE_NAME"); found && name != "" {
			return name
		}
	}
	return defaultService
}

func cutName(entry, name string) (value string, found bool) {
	if len(entry) > len(name) && entry[:len(name)] == name && entry[len(name)] == '=' {
		return entry[len(name)+1:], true
	}
	return "", false
}

// carryOut runs the scenario from its first step to its last and leaves the evidence, also
// when something goes wrong.
func (r *run) carryOut(ctx context.Context) (err error) {
	caller := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, runBound, fmt.Errorf("the drill is not over within %v", runBound))
	defer cancel()
	ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	if err := r.keepRecipe(); err != nil {
		return errors.Join(err, r.close(ctx))
	}
	stopWatching := r.watch(ctx)
	err = r.prepare(ctx)
	if err == nil {
		err = r.scenario.run(ctx, r)
	}
	err = errors.Join(err, r.heal(context.WithoutCancel(ctx)))
	stopWatching()
	r.console.Refresh("")
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	err = errors.Join(err, r.finish(context.WithoutCancel(ctx), err == nil))
	r.recipe.Outcome, r.recipe.Ended = evidence.Completed, time.Now().UTC()
	switch {
	case caller.Err() != nil:
		r.recipe.Outcome = evidence.Interrupted
	case err != nil:
		r.recipe.Outcome, r.recipe.Error = evidence.Failed, err.Error()
	}
	return errors.Join(err, r.keepRecipe(), r.close(ctx))
}

// prepare makes the tables and starts the instances.
func (r *run) prepare(ctx context.Context) error {
	r.step("migrating schema %s of %s (%s)", r.schema, r.recipe.Postgres, r.environment)
	if err := r.fleet.Run(ctx, "migrate", "up"); err != nil {
		return err
	}
	for _, table := range []string{searchOutbox, chronicleOutbox} {
		if err := history.Install(ctx, r.pool, table); err != nil {
			return err
		}
	}
	if err := history.InstallSource(ctx, r.pool); err != nil {
		return err
	}
	for n, i := range r.scenario.instances {
		m, err := r.start(ctx, i.name, i.env...)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := r.leads(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish takes the last metrics and probes, stops everything that runs, and writes it all
// down.
func (r *run) finish(ctx context.Context, well bool) error {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	var errs []error
	for _, m := range r.members {
		if !m.instance.HasEnded() {
			r.scrape(ctx, m)
		}
	}
	errs = append(errs, r.probes(ctx))
	for _, m := range r.members {
		r.expectEnd(m)
	}
	if err := r.fleet.Stop(); well {
		errs = append(errs, err) // otherwise it is no news
	}
	for _, m := range r.members {
		errs = append(errs, m.Close())
	}
	r.collector.Close()
	errs = append(errs,
		r.probe("bulk", r.recorder.Applied()),
		evidence.WriteLines(r.dir, evidence.SpansFile, r.collector.Spans()),
		r.keepMetrics(),
	)
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.timeline, func(a, b evidence.Mark) int { return a.At.Compare(b.At) })
	errs = append(errs, evidence.WriteLines(r.dir, evidence.TimelineFile, r.timeline),
		r.dir.WriteText(evidence.LogDir+"/drill.log", r.terminal))
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
	return r.dir.Write(evidence.RecipeFile, r.recipe)
}

// probe keeps what was found.
func (r *run) probe(name string, v any) error {
	r.mu.Lock()
	again := r.probed[name]
	r.probed[name] = true
	r.mu.Unlock()
	if again {
		return fmt.Errorf("evidence: probe %s was taken already", name)
	}
	return r.dir.Write(evidence.ProbeFile(name), v)
}

// step says what is done next.
func (r *run) step(format string, args ...any) { r.mark(evidence.Step, format, args...) }

func (r *run) mark(kind evidence.MarkKind, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	m := evidence.Mark{At: time.Now().UTC(), Kind: kind, What: what}
	r.mu.Lock()
	r.timeline = append(r.timeline, m)
	line := fmt.Sprintf("%6.1f s  %-5s  %s\n", m.At.Sub(r.recipe.Started).Seconds(), kind, what)
	r.terminal = append(r.terminal, line...)
	r.mu.Unlock()
	_, _ = io.WriteString(r.console, line)
}

// inject carries out a fault, unless the run is one without, and reports whether it did.
// back, if there is one, takes the fault away again: at the call of heal, or in the end.
func (r *run) inject(ctx context.Context, what string, do func(context.Context) error, back func(context.Context) error) (bool, error) {
	if r.without {
		r.step("left out: %s", what)
		return false, nil
	}
	if err := r.guard(ctx); err != nil {
		return false, err
	}
	if back != nil {
		r.undone = append(r.undone, undo{what, back})
	}
	r.mark(evidence.Fault, "%s", what)
	r.mu.Lock()
	r.recipe.Faults = append(r.recipe.Faults, what)
	r.mu.Unlock()
	if err := r.keepRecipe(); err != nil {
		return false, err
	}
	if err := do(ctx); err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	return true, nil
}

// heal takes all faults away, the last one first.
func (r *run) heal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	var errs []error
	for _, u := range slices.Backward(r.undone) {
		if err := u.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", u.what, err))
		}
		r.mark(evidence.Heal, "over: %s", u.what)
	}
	r.undone = nil
	return errors.Join(errs...)
}

// await waits for what a scenario needs to go on.
func (r *run) await(ctx context.Context, what string, well func(context.Context) error) error {
	return r.awaitWithin(ctx, awaitBound, what, well)
}

func (r *run) awaitWithin(ctx context.Context, bound time.Duration, what string, well func(context.Context) error) error {
	return await.Await(ctx, bound, pollPeriod, what, func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, queryBound)
		defer cancel()
		return well(limited)
	})
}

// param is a parameter as text.
func (r *run) param(name string) string {
	if v, ok := r.set[name]; ok {
		return v
	}
	for _, p := range r.scenario.Params {
		if p.Name == name {
			return p.Default
		}
	}
	return ""
}

// number is a parameter that is a number.
func (r *run) number(name string) (float64, error) {
	v, err := strconv.ParseFloat(r.param(name), 64)
	if err != nil {
		return 0, fmt.Errorf("parameter %s: %q is no number", name, r.param(name))
	}
	return v, nil
}

// count is a parameter that is a whole number within limits.
func (r *run) count(name string, low, high int) (int, error) {
	v, err := strconv.Atoi(r.param(name))
	if err != nil || v < low || v > high {
		return 0, fmt.Errorf("parameter %s: %q is no number from %d to %d", name, r.param(name), low, high)
	}
	return v, nil
}

// keepMetrics writes the first and the last scrape of each instance, and what changed in
// between.
func (r *run) keepMetrics() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for file, scrapes := range map[string]map[string]evidence.Families{evidence.BeforeFile: r.before, evidence.AfterFile: r.after} {
		text, err := evidence.Merge(scrapes)
		errs = append(errs, err, r.dir.WriteText(file, text))
	}
	return errors.Join(append(errs, evidence.WriteLines(r.dir, evidence.SeriesFile, r.changes))...)
}

// compact is for a probe that is large.
func (r *run) compact(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("probe %s: %w", name, err)
	}
	return os.WriteFile(r.dir.File(evidence.ProbeFile(name)), append(text, '\n'), 0o644)
}
