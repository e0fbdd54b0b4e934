package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
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
	Binary       string // weft; empty means to build it
	HeapMB       int    // of Elasticsearch; 0 is the stack's default
}

// Run runs scenarios one after the other, on the same servers, and returns an error when
// one of them could not be carried out. [Verify] says whether the evidence shows what it
// must.
func Run(ctx context.Context, opts Options, names ...string) error {
	scenarios, err := lookUp(names)
	if err != nil {
		return err
	}
	set, err := fill(scenarios, opts.Set)
	if err != nil {
		return err
	}
	sayLeftOut(opts.Out, names)
	return runAll(ctx, opts, set, scenarios)
}

// runAll starts what the scenarios need and runs them.
func runAll(ctx context.Context, opts Options, set map[string]string, scenarios []Scenario) (err error) {
	build, err := os.MkdirTemp("", "weft-drill-")
	if err != nil {
		return fmt.Errorf("directory for the binary: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(build)) }()
	sites := &sites{opts, map[string]*site{}}
	defer func() { err = errors.Join(err, sites.close(ctx)) }()
	var fleet *rig.Fleet
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := sites.of(gctx, scenarios[0])
		return err
	})
	g.Go(func() (err error) {
		fleet, err = rig.NewFleet(gctx, opts.Binary, build)
		return err
	})
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return rig.ErrInterrupted
		}
		return err
	}
	version, err := fleet.Output(ctx, "version")
	if err != nil {
		return err
	}
	spec := runSpec{Options: opts, set: set, binary: fleet.Binary}
	spec.version, _, _ = strings.Cut(string(version), "\n")
	return perform(ctx, spec, sites, scenarios)
}

// sites are the servers that the caller named, if any, and those that were started here.
type sites struct {
	opts Options
	open map[string]*site // by what they are, from when the first scenario needs them
}

// of returns the site of a scenario. A scenario that stops servers gets servers that were
// started for it, even if the caller has named some.
func (p *sites) of(ctx context.Context, s Scenario) (_ *site, err error) {
	opts := stack.Options{Progress: p.opts.Progress, HeapMB: p.opts.HeapMB}
	kind, want := "own", ""
	if !s.Owned && (p.opts.DatabaseURL != "" || p.opts.ElasticURL != "") {
		kind, want = "given", p.opts.Environment
		opts.DatabaseURL, opts.ElasticURL = p.opts.DatabaseURL, p.opts.ElasticURL
	}
	if s.nodes > 1 {
		kind, opts.Quick = "cluster", true
		opts.ElasticNodes, opts.Cables = s.nodes, stack.CanCutOff()
	}
	if p.open[kind] == nil {
		p.open[kind], err = openSite(ctx, opts, want)
	}
	return p.open[kind], err
}

func (p *sites) close(ctx context.Context) error {
	var errs []error
	for _, one := range p.open {
		if one != nil {
			errs = append(errs, one.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// perform runs the scenarios and prints what became of them.
func perform(ctx context.Context, spec runSpec, sites *sites, scenarios []Scenario) (err error) {
	if spec.forward, err = newForwarder(ctx, spec.Environ); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, spec.forward.close(ctx, spec.Out)) }()
	var outcomes [][]any
	var failed []string
	for n, s := range scenarios {
		if ctx.Err() != nil {
			return rig.ErrInterrupted
		}
		fmt.Fprintf(spec.Out, "==> %s (%d of %d): %s\n", s.Name, n+1, len(scenarios), s.About)
		began := time.Now()
		if spec.site, err = sites.of(ctx, s); err != nil {
			return err
		}
		spec.scenario = s
		path, result := "", "done"
		r, err := newRun(ctx, spec)
		if err == nil {
			path = r.dir.String()
			err = r.carryOut(ctx)
		}
		if err != nil {
			result = "FAILED"
			failed = append(failed, s.Name)
			fmt.Fprintf(spec.Out, "%s: %v\n", s.Name, err)
		}
		outcomes = append(outcomes, []any{s.Name, result, fmt.Sprintf("%.1f s", time.Since(began).Seconds()), path})
		if path != "" {
			fmt.Fprintf(spec.Out, "evidence: %s\n", path)
		}
		if errors.Is(err, rig.ErrEnvironment) {
			return err
		}
	}
	if len(scenarios) > 1 {
		verdict.WriteRows(spec.Out, []any{"SCENARIO", "RUN", "TOOK", "EVIDENCE"}, outcomes...)
	}
	if ctx.Err() != nil {
		return rig.ErrInterrupted
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
	sayLeftOut(out, names)
	var bad []string
	var lines [][]any
	for _, s := range scenarios {
		d, err := verdict.Find(root, s.Name, run)
		var result *verdict.Result
		if err == nil {
			result, err = Verify(d)
		}
		word := "FAILED"
		switch {
		case err != nil:
			fmt.Fprintf(out, "%s: %v\n", s.Name, err)
			word += ": " + err.Error()
		default:
			result.WriteTable(out)
			fmt.Fprintln(out)
			if result.OK {
				word = fmt.Sprintf("ok, %d assertions", len(result.Checks))
			}
		}
		if err != nil || !result.OK {
			bad = append(bad, s.Name)
		}
		lines = append(lines, []any{s.Name, d.Run, word})
	}
	if len(scenarios) > 1 {
		verdict.WriteRows(out, []any{"SCENARIO", "RUN", "VERDICT"}, lines...)
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
		p, err := openSite(ctx, stack.Options{DatabaseURL: opts.DatabaseURL, ElasticURL: opts.ElasticURL}, opts.Environment)
		if err != nil {
			return err
		}
		for _, s := range scenarios {
			if err = p.clean(ctx, s.Name, opts.Out); err != nil {
				break
			}
		}
		if err := errors.Join(err, p.Close(ctx)); err != nil {
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
	scenarios := Scenarios()
	if len(names) != 1 || names[0] != "all" { // where they cannot be run, too
		var err error
		if scenarios, err = lookUp(names); err != nil {
			return err
		}
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
		for _, page := range Runbooks(s.Name) {
			fmt.Fprintf(out, "  read   %s\n", page)
		}
		tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, p := range s.Params {
			fmt.Fprintf(tw, "  set    %s=%s\t%s\n", p.Name, p.Default, p.About)
		}
		_ = tw.Flush()
	}
	return nil
}
