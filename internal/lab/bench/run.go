package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

const defaultRounds = 5

// Command returns `weftlab bench`.
func Command() *cobra.Command {
	var opts Options
	var about strings.Builder
	for _, s := range scenarios() {
		fmt.Fprintf(&about, "\n  %-9s %s", s.name, s.about)
	}
	cmd := &cobra.Command{
		Use:   "bench SCENARIO…",
		Short: "Measure weft against a bare bulk loader, or one build against another",
		Long: `Start a PostgreSQL and an Elasticsearch and let weft, with its default settings, drain
a backlog of events, in turns with a bare loader that sends the same documents to the
same Elasticsearch: 1,000 per request, two requests in flight, nothing else to do. The
ratio of the two rates says what weft costs, whatever the machine.

Scenarios:` + about.String() + `

backlog, retrying and longtx compare the time of lists and leases with that at 20,000
pending; adopted and adopted-archive compare with the same run on weft's own tables, traced
with one that exports no traces; shards-2 and shards-4 with tables that have none; waiting, blocked and single say what such a backlog costs;
verify, rebuild and scrub, what comparing and rebuilding cost. With --compare or --against every scenario compares two builds of weft
instead: rates, or where the scenario is about times, times. With --least the exit code is 1
when a median ratio is worse than that.

The servers that DATABASE_URL and ELASTIC_URL name are left alone. Leave the machine
alone while it runs: the figures are of the whole machine.`,
		Example: `  weftlab bench distinct hot mixed
  weftlab bench distinct --rounds 9 --json bench.json --svg bench.svg
  weftlab bench backlog --events 200000 --rounds 1
  weftlab bench distinct --against main --least 0.9`,
		Args: cobra.MatchAll(cobra.MinimumNArgs(1), func(_ *cobra.Command, args []string) error {
			_, err := pick(args)
			return err
		}),
		ValidArgs: scenarioNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Rounds < 1 || opts.Events < 0 {
				return fmt.Errorf("%d rounds of %d events: want at least one round, and no negative number", opts.Rounds, opts.Events)
			}
			if !(opts.Least >= 0) {
				return fmt.Errorf("least ratio %v: want no negative number", opts.Least)
			}
			opts.Scenarios, opts.Environ = args, os.Environ()
			opts.Out, opts.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return rig.RunE(func(ctx context.Context, _ *cobra.Command) error { return Run(ctx, opts) })(cmd, args)
		},
	}
	f := cmd.Flags()
	f.IntVar(&opts.Rounds, "rounds", defaultRounds, "times that each side has its turn")
	f.IntVar(&opts.Events, "events", 0, "`N` events instead of each scenario's own number, all else in proportion")
	f.StringVar(&opts.JSON, "json", "", "write the figures to `FILE` as JSON")
	f.StringVar(&opts.SVG, "svg", "", "write a chart of the ratios to `FILE`")
	f.StringVar(&opts.Binary, "weft", "", "measure this weft `BINARY` instead of building one")
	f.StringVar(&opts.Compare, "compare", "", "measure against this weft `BINARY`")
	f.StringVar(&opts.Against, "against", "", "measure against the weft of this git `REVISION`")
	f.Float64Var(&opts.Least, "least", 0, "fail when a median ratio is below `RATIO`, or above 1/RATIO where less is better (default no judgement)")
	f.IntVar(&opts.HeapMB, "elastic-heap", 0, "Elasticsearch's heap in MiB (default that of the stack)")
	return cmd
}

// warmEvents is the most events of the pass that makes the servers warm.
const warmEvents = 100_000

// Options say what [Run] measures, and where it writes.
type Options struct {
	Out      io.Writer // gets a line for each turn, and the table at the end
	Progress io.Writer // gets lines about downloads and servers
	Environ  []string  // NAME=VALUE, of the weft processes; names of settings in it are dropped

	Scenarios []string // their names, in the order of the run; at least one
	Rounds    int      // turns of each side; at least 1
	Events    int      // instead of a scenario's own number, with all else in proportion; 0 for its own
	Binary    string   // path of the weft to measure; empty means to build it
	Compare   string   // path of another weft to measure it against; empty for none
	Against   string   // git revision to build that one from; not together with Compare
	JSON, SVG string   // files for the result; empty means none
	Least     float64  // worst median ratio that passes; where less is better its inverse counts; 0: all pass
	HeapMB    int      // of Elasticsearch, in MiB; 0 means the stack's default
}

type bench struct {
	rig.Script
	opts  Options
	place *place
	dir   string // of logs

	screen       *rig.Screen
	begun, steps int
}

// The sides besides weft itself.
const (
	sideRaw       = "raw"
	sideOwn       = "own"
	sideUntraced  = "untraced"
	sideOne       = "one"
	sideReference = "reference"
	sideBase      = "base"
)

// side is one of those that take turns: weft, and what it is compared with.
type side struct {
	name    string
	run     func() sample
	samples []sample
}

// Run builds what it measures, starts servers, measures the scenarios one after the other, and stops
// the servers. After each scenario it writes what has been measured to the files; the table comes at
// the end. It returns an error for options that do not go together, for a side whose events are not all
// done, and for a median ratio that Least does not let pass, after all are measured.
func Run(ctx context.Context, opts Options) error {
	picked, err := pick(opts.Scenarios)
	if err != nil {
		return err
	}
	if opts.Compare != "" && opts.Against != "" {
		return errors.New("compare with a binary or with a revision, not with both")
	}
	if opts.Least > 0 {
		for _, s := range picked {
			if !s.kind.compares(opts.Compare != "" || opts.Against != "") {
				return fmt.Errorf("%s is compared with nothing, so it has no ratio to judge", s.name)
			}
		}
	}
	builds, err := os.MkdirTemp("", "weft-bench-build-")
	if err != nil {
		return fmt.Errorf("directory for builds: %w", err)
	}
	logs := rig.Dir{Program: "bench", Holds: "logs"}
	err = logs.Run(ctx, func(ctx context.Context, dir string) (err error) {
		b := &bench{opts: opts, dir: dir, screen: rig.NewScreen(opts.Out, time.Minute)}
		defer func() {
			b.screen.Refresh("")
			if b.place != nil {
				err = errors.Join(err, b.place.close(ctx))
			}
		}()
		var results []*Result
		err = b.Play(ctx, func() {
			head, base := b.binaries(builds)
			b.open()
			results = b.all(picked, head, base)
		})
		if err != nil {
			return err
		}
		b.screen.Refresh("")
		writeTable(opts.Out, results)
		return tooSlow(results, opts.Least)
	})
	return errors.Join(err, os.RemoveAll(builds))
}

// all warms the servers and measures the scenarios. It writes what was measured so far after each.
func (b *bench) all(picked []scenario, head, base string) (results []*Result) {
	b.steps = 2 + 2*b.opts.Rounds*len(picked)
	b.Part("warm-up", 0, func() { b.warm(head, picked[0].load.scaled(b.opts.Events).events) })
	for _, s := range picked {
		b.Part(s.name, 0, func() { results = append(results, b.measure(s, head, base)) })
		if b.opts.JSON != "" {
			b.Must(writeJSON(b.opts.JSON, results))
		}
		if b.opts.SVG != "" {
			b.Must(writeChart(b.opts.SVG, results))
		}
	}
	return results
}

// measure runs all rounds of a scenario and returns the figures.
func (b *bench) measure(s scenario, head, base string) *Result {
	w, result := s.load.scaled(b.opts.Events), &Result{Scenario: s.name, Rounds: b.opts.Rounds}
	switch s.kind {
	case writers:
		result.Triggers = b.triggers()
	case upkeep:
		result.Upkeep = &Upkeep{Rows: w.entities, Rounds: b.opts.Rounds}
		map[string]func(string, workload, *Upkeep){
			verifyScenario: b.verifies, rebuildScenario: b.rebuilds, scrubScenario: b.scrubs,
		}[s.name](head, w, result.Upkeep)
	default:
		sides := b.sides(s, head, base)
		b.takeTurns(s, sides)
		result = newResult(s, w, sides)
	}
	return result
}

// step shows what begins, and how much of the run is over.
func (b *bench) step(what string) {
	b.screen.Refresh(fmt.Sprintf("%3d %%  %s", 100*b.begun/b.steps, what))
	b.begun++
}

// binaries builds in dir what has to be built. It returns the weft to measure and the one to measure it
// against, or "".
func (b *bench) binaries(dir string) (head, base string) {
	var err error
	switch {
	case b.opts.Compare != "":
		base, err = filepath.Abs(b.opts.Compare)
	case b.opts.Against != "":
		base, err = rig.BuildRevision(b.Ctx, dir, b.opts.Against)
	}
	b.Must(err)
	fleet := rig.Try(rig.NewFleet(b.Ctx, b.opts.Binary, dir)).Must(b)
	return fleet.Binary, base
}

// warm runs both the loader and weft once, uncounted, until what the servers compile and cache is there.
func (b *bench) warm(binary string, events int) {
	w := scenarios()[0].load.scaled(min(events, warmEvents))
	for _, s := range []*side{b.rawSide(binary, w), b.weftSide("weft", binary, w)} {
		b.step("warming up: " + s.name)
		s.run()
	}
}

// weftSide returns the side of a weft that drains w.
func (b *bench) weftSide(name, binary string, w workload) *side {
	return &side{name: name, run: func() sample { return b.drain(binary, w) }}
}

// rawSide returns the side of the bare loader. It has binary make the documents of w, before any turn.
func (b *bench) rawSide(binary string, w workload) *side {
	w.declared, w.loads = false, false // the documents are the same
	var c *corpus
	b.onSite(binary, w, func(s *site) {
		s.fill(w)
		c = s.render()
	})
	return &side{name: sideRaw, run: func() sample { return b.loadRaw(c) }}
}

// sides returns the side that the scenario is about and, unless there is none, the one that it is
// compared with: another build, if there is one, instead of the scenario's own.
func (b *bench) sides(s scenario, head, base string) []*side {
	w := s.load.scaled(b.opts.Events)
	of := func(name, binary string, w workload) *side {
		if s.kind != trickle {
			return b.weftSide(name, binary, w)
		}
		return &side{name: name, run: func() sample { return b.trickle(binary, w) }}
	}
	other := w
	switch out := []*side{of("weft", head, w)}; {
	case base != "":
		return append(out, of(sideBase, base, w))
	case s.kind == againstRaw:
		return append(out, b.rawSide(head, w))
	case s.kind == againstOwn:
		other.adopted = false
		return append(out, of(sideOwn, head, other))
	case s.kind == againstUntraced:
		other.traced = false
		return append(out, of(sideUntraced, head, other))
	case s.kind == againstOne:
		other.shards = 0
		return append(out, of(sideOne, head, other))
	case s.kind == claims:
		return append(out, of(sideReference, head, w.reference()))
	default:
		return out
	}
}

// takeTurns runs every side once in each round. In each round another side begins.
func (b *bench) takeTurns(s scenario, sides []*side) {
	for round := range b.opts.Rounds {
		for turn := range sides {
			side := sides[(turn+round+1)%len(sides)]
			what := fmt.Sprintf("%s %d/%d %s", s.name, round+1, b.opts.Rounds, side.name)
			b.step(what)
			var got sample
			b.Part(fmt.Sprintf("round %d, %s", round+1, side.name), 0, func() { got = side.run() })
			side.samples = append(side.samples, got)
			b.screen.Line("%-26s %s", what, got.brief(s.kind))
		}
	}
}
