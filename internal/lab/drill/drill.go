package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
	"github.com/samuelhu324-dev/weft/internal/lab/sentinel"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// Options of [Run] and [Clean].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped
	Evidence string    // directory of the evidence

	// DatabaseURL and ElasticURL name servers to use instead of starting some; Environment
	// is the one that they are expected to be of, empty for either of test and dev.
	DatabaseURL, ElasticURL, Environment string

	Set          []string // parameters, as NAME=VALUE
	WithoutFault bool
	Binary       string   // weft; empty means to build it
	HeapMB       int      // of Elasticsearch; 0 is the stack's default
	Guardian     []string // see [stack.Options]
}

// ErrInterrupted is the error of a run whose context ended.
var ErrInterrupted = errors.New("interrupted; the fault is undone, and what was started is down again")

// Run runs scenarios one after the other, on the same servers, and returns an error when
// one of them could not be carried out. Whether the evidence shows what it must is for
// [Verify] to say.
func Run(ctx context.Context, opts Options, names ...string) (err error) {
	scenarios, err := lookUp(names)
	if err != nil {
		return err
	}
	set, err := fill(scenarios, opts.Set)
	if err != nil {
		return err
	}
	build, err := os.MkdirTemp("", "weft-drill-")
	if err != nil {
		return fmt.Errorf("directory for the binary: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(build)) }()
	places := &places{opts: opts}
	defer func() { err = errors.Join(err, places.close()) }()
	binary := opts.Binary
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := places.of(gctx, scenarios[0])
		return err
	})
	g.Go(func() (err error) {
		if binary == "" {
			binary, err = fleet.Build(gctx, build, nil)
			return err
		}
		binary, err = filepath.Abs(binary)
		return err
	})
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return ErrInterrupted
		}
		return err
	}
	version, err := (&fleet.Fleet{Binary: binary, Dir: build}).Output(ctx, "version")
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(version), "\n")
	return perform(ctx, opts, places, scenarios, set, binary, first)
}

// places are the servers that the caller named, if any, and those that were started here.
type places struct {
	opts       Options
	given, own *place // opened when the first scenario needs it
}

// of returns the place of a scenario. One that stops servers has its own, whatever is named.
func (p *places) of(ctx context.Context, s Scenario) (*place, error) {
	into, database, elastic, want := &p.own, "", "", ""
	if !s.Owned && (p.opts.DatabaseURL != "" || p.opts.ElasticURL != "") {
		into, database, elastic, want = &p.given, p.opts.DatabaseURL, p.opts.ElasticURL, p.opts.Environment
	}
	if *into != nil {
		return *into, nil
	}
	one, err := openPlace(ctx, database, elastic, want, stack.Options{Progress: p.opts.Progress, HeapMB: p.opts.HeapMB, Guardian: p.opts.Guardian})
	if err != nil {
		return nil, err
	}
	*into = one
	return one, nil
}

func (p *places) close() error {
	var errs []error
	for _, one := range []*place{p.given, p.own} {
		if one != nil {
			errs = append(errs, one.close())
		}
	}
	return errors.Join(errs...)
}

// perform runs the scenarios and prints what became of them.
func perform(ctx context.Context, opts Options, places *places, scenarios []Scenario, set map[string]string, binary, version string) (err error) {
	forward, err := newForwarder(ctx, opts.Environ)
	if err != nil {
		return err
	}
	defer func() {
		if forward != nil && forward.lost.Load() > 0 {
			fmt.Fprintf(opts.Out, "%s did not take %d exports of spans; the evidence has them\n", forward.to, forward.lost.Load())
		}
		err = errors.Join(err, forward.close(ctx))
	}()
	type outcome struct {
		name, result, path string
		took               time.Duration
	}
	var outcomes []outcome
	var failed []string
	for n, s := range scenarios {
		if ctx.Err() != nil {
			return ErrInterrupted
		}
		fmt.Fprintf(opts.Out, "==> %s (%d of %d): %s\n", s.Name, n+1, len(scenarios), s.About)
		began := time.Now()
		p, err := places.of(ctx, s)
		if err != nil {
			return err
		}
		r, err := newRun(ctx, runSpec{
			place: p, scenario: s, set: set, without: opts.WithoutFault, out: opts.Out, environ: opts.Environ,
			binary: binary, version: version, evidence: opts.Evidence, forward: forward,
		})
		path := ""
		if err == nil {
			path = r.dir.String()
			err = r.carryOut(ctx)
		}
		o := outcome{s.Name, "done", path, time.Since(began)}
		if err != nil {
			o.result = "FAILED"
			failed = append(failed, s.Name)
			fmt.Fprintf(opts.Out, "%s: %v\n", s.Name, err)
		}
		outcomes = append(outcomes, o)
		if path != "" {
			fmt.Fprintf(opts.Out, "evidence: %s\n", path)
		}
		if errors.Is(err, sentinel.ErrEnvironment) {
			return err
		}
	}
	if len(scenarios) > 1 {
		tw := tabwriter.NewWriter(opts.Out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "SCENARIO\tRUN\tTOOK\tEVIDENCE")
		for _, o := range outcomes {
			fmt.Fprintf(tw, "%s\t%s\t%.1f s\t%s\n", o.name, o.result, o.took.Seconds(), o.path)
		}
		_ = tw.Flush()
	}
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	if len(failed) > 0 {
		return fmt.Errorf("not carried out: %s", strings.Join(failed, ", "))
	}
	return nil
}

// VerifyAll judges the newest run of each scenario, or the named run of the only one, and
// prints what was asserted.
func VerifyAll(out io.Writer, root, run string, names ...string) error {
	scenarios, err := lookUp(names)
	if err != nil {
		return err
	}
	if run != "" && len(scenarios) != 1 {
		return errors.New("a run is of one scenario")
	}
	var bad []string
	type line struct{ name, run, verdict string }
	var lines []line
	for _, s := range scenarios {
		d, err := verdict.Find(root, s.Name, run)
		var result *verdict.Result
		if err == nil {
			result, err = Verify(d)
		}
		switch {
		case err != nil:
			fmt.Fprintf(out, "%s: %v\n", s.Name, err)
			bad = append(bad, s.Name)
			lines = append(lines, line{s.Name, d.Run, "FAILED: " + err.Error()})
		default:
			result.WriteTable(out)
			fmt.Fprintln(out)
			verdict := fmt.Sprintf("ok, %d assertions", len(result.Checks))
			if !result.OK {
				bad = append(bad, s.Name)
				verdict = "FAILED"
			}
			lines = append(lines, line{s.Name, d.Run, verdict})
		}
	}
	if len(scenarios) > 1 {
		tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "SCENARIO\tRUN\tVERDICT")
		for _, l := range lines {
			fmt.Fprintf(tw, "%s\t%s\t%s\n", l.name, l.run, l.verdict)
		}
		_ = tw.Flush()
	}
	if len(bad) > 0 {
		return fmt.Errorf("the evidence does not show what it must: %s", strings.Join(bad, ", "))
	}
	return nil
}

// Clean undoes what killed runs of scenarios have left on the servers that the caller
// names, and removes all evidence but the newest keepLast runs of each, unless that is
// negative. It may be called again.
func Clean(ctx context.Context, opts Options, keepLast int, names ...string) error {
	scenarios, err := lookUp(names)
	if err != nil {
		return err
	}
	if opts.DatabaseURL != "" && opts.ElasticURL != "" {
		p, err := openPlace(ctx, opts.DatabaseURL, opts.ElasticURL, opts.Environment, stack.Options{})
		if err != nil {
			return err
		}
		for _, s := range scenarios {
			if err = p.clean(ctx, s.Name, opts.Out); err != nil {
				break
			}
		}
		if err := errors.Join(err, p.close()); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(opts.Out, "no servers are named by DATABASE_URL and ELASTIC_URL; a run's own ones are gone with it")
	}
	if keepLast < 0 {
		return nil
	}
	for _, s := range scenarios {
		removed, err := verdict.Keep(opts.Evidence, s.Name, keepLast)
		if err != nil {
			return err
		}
		for _, d := range removed {
			fmt.Fprintf(opts.Out, "%s: removed evidence %s\n", s.Name, d)
		}
	}
	return nil
}

// List prints the scenarios.
func List(out io.Writer, names ...string) error {
	scenarios, err := lookUp(names)
	if err != nil {
		return err
	}
	for n, s := range scenarios {
		if n > 0 {
			fmt.Fprintln(out)
		}
		note := ""
		if s.Owned {
			note = " (always on servers that it starts)"
		}
		fmt.Fprintf(out, "%s%s\n  does   %s\n  shows  %s\n", s.Name, note, s.About, s.Shows)
		tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, p := range s.Params {
			fmt.Fprintf(tw, "  set    %s=%s\t%s\n", p.Name, p.Default, p.About)
		}
		_ = tw.Flush()
	}
	return nil
}
