package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// warmEvents bound the pass that makes the servers warm.
const warmEvents = 100_000

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped

	Scenarios []string
	Rounds    int
	Events    int     // instead of a scenario's own number, with all else in proportion; 0 for that
	Binary    string  // weft; empty means to build it
	Compare   string  // another weft to measure it against
	Against   string  // a revision to build that one from
	JSON, SVG string  // files for the result; empty means none
	Least     float64 // median ratio that each scenario has to reach; see [tooSlow]; 0 for none
	HeapMB    int     // of Elasticsearch; 0 means the stack's default
	Guardian  []string
}

// bench is one run.
type bench struct {
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

// side is one of two that take turns.
type side struct {
	name    string
	run     func(ctx context.Context, progress func(share float64)) (sample, error)
	samples []sample
}

// Run measures the scenarios, one after the other. What has been measured is written to
// the files after each of them.
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
		b := &bench{opts: opts, dir: dir}
		head, base, err := b.binaries(ctx, builds)
		if err != nil {
			return err
		}
		b.place, err = openPlace(ctx, stack.Options{Progress: opts.Progress, HeapMB: opts.HeapMB, Guardian: opts.Guardian})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.place.close(ctx)) }()
		return b.all(ctx, picked, head, base)
	})
	return errors.Join(err, os.RemoveAll(builds))
}

func (b *bench) all(ctx context.Context, picked []scenario, head, base string) error {
	b.screen = rig.NewScreen(b.opts.Out, time.Minute)
	defer b.screen.Refresh("")
	b.steps = 2 + 2*b.opts.Rounds*len(picked)
	if err := b.warm(ctx, head, picked[0].load.scaled(b.opts.Events).events); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	var results []*Result
	for _, s := range picked {
		result := &Result{Scenario: s.name, Rounds: b.opts.Rounds}
		var err error
		switch s.kind {
		case writers:
			result.Triggers, err = b.triggers(ctx)
		case upkeep:
			result.Upkeep, err = b.measureUpkeep(ctx, s, head)
		default:
			var sides []*side
			if sides, err = b.measure(ctx, s, head, base); err == nil {
				result = newResult(s, s.load.scaled(b.opts.Events), sides)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		results = append(results, result)
		if err := b.write(results); err != nil {
			return err
		}
	}
	b.screen.Refresh("")
	writeTable(b.opts.Out, results)
	return tooSlow(results, b.opts.Least)
}

// step begins the next step and returns what tells its share, 0 to 1.
func (b *bench) step(what string) func(share float64) {
	b.begun++
	n := b.begun
	return func(share float64) {
		b.screen.Refresh(fmt.Sprintf("%3.0f %%  %s", 100*(float64(n-1)+share)/float64(b.steps), what))
	}
}

func (b *bench) write(results []*Result) error {
	if b.opts.JSON != "" {
		if err := writeJSON(b.opts.JSON, results); err != nil {
			return err
		}
	}
	if b.opts.SVG != "" {
		return writeChart(b.opts.SVG, results)
	}
	return nil
}

// binaries returns the weft to measure and the one to measure it against, or "".
func (b *bench) binaries(ctx context.Context, dir string) (head, base string, err error) {
	switch {
	case b.opts.Compare != "":
		base, err = filepath.Abs(b.opts.Compare)
	case b.opts.Against != "":
		base, err = buildRevision(ctx, dir, b.opts.Against)
	}
	if err != nil {
		return "", "", err
	}
	fleet, err := rig.NewFleet(ctx, b.opts.Binary, dir)
	if err != nil {
		return "", "", err
	}
	return fleet.Binary, base, nil
}

// warm brings what compiles and caches as it goes to where it stays.
func (b *bench) warm(ctx context.Context, binary string, events int) error {
	w := scenarios()[0].load.scaled(min(events, warmEvents))
	raw, err := b.rawSide(ctx, binary, w)
	if err != nil {
		return err
	}
	for _, s := range []*side{raw, b.weftSide("weft", binary, w)} {
		if _, err := s.run(ctx, b.step("warming up: "+s.name)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) weftSide(name, binary string, w workload) *side {
	return &side{name: name, run: func(ctx context.Context, progress func(float64)) (sample, error) {
		return b.drain(ctx, binary, w, progress)
	}}
}

func (b *bench) rawSide(ctx context.Context, binary string, w workload) (_ *side, err error) {
	w.declared, w.loads = false, false // the documents are the same
	s, err := b.newSite(ctx, binary, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := w.fill(ctx, s.pool); err != nil {
		return nil, err
	}
	c, err := render(ctx, s.pool)
	return &side{name: sideRaw, run: func(ctx context.Context, progress func(float64)) (sample, error) {
		return b.place.loadRaw(ctx, c, progress)
	}}, err
}

// sides returns the one that the scenario is about and, unless there is none, the one
// that it is compared with.
func (b *bench) sides(ctx context.Context, s scenario, head, base string) ([]*side, error) {
	w := s.load.scaled(b.opts.Events)
	of := func(name, binary string, w workload) *side {
		if s.kind != trickle {
			return b.weftSide(name, binary, w)
		}
		return &side{name: name, run: func(ctx context.Context, progress func(float64)) (sample, error) {
			return b.trickle(ctx, binary, w, progress)
		}}
	}
	out := []*side{of("weft", head, w)}
	switch {
	case base != "":
		return append(out, of(sideBase, base, w)), nil
	case s.kind == againstRaw:
		raw, err := b.rawSide(ctx, head, w)
		return append(out, raw), err
	case s.kind == againstOwn:
		own := w
		own.adopted = false
		return append(out, of(sideOwn, head, own)), nil
	case s.kind == againstUntraced:
		quiet := w
		quiet.traced = false
		return append(out, of(sideUntraced, head, quiet)), nil
	case s.kind == againstOne:
		one := w
		one.shards = 0
		return append(out, of(sideOne, head, one)), nil
	case s.kind == claims:
		return append(out, of(sideReference, head, w.reference())), nil
	default:
		return out, nil
	}
}

// measure runs all rounds of a scenario.
func (b *bench) measure(ctx context.Context, s scenario, head, base string) ([]*side, error) {
	sides, err := b.sides(ctx, s, head, base)
	if err != nil {
		return nil, err
	}
	return sides, b.takeTurns(ctx, s, sides)
}

// takeTurns lets another side begin in each round.
func (b *bench) takeTurns(ctx context.Context, s scenario, sides []*side) error {
	for round := range b.opts.Rounds {
		for turn := range sides {
			side := sides[(turn+round+1)%len(sides)]
			what := fmt.Sprintf("%s %d/%d %s", s.name, round+1, b.opts.Rounds, side.name)
			got, err := side.run(ctx, b.step(what))
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, side.name, err)
			}
			side.samples = append(side.samples, got)
			b.screen.Line("%-26s %s", what, got.brief(s.kind))
		}
	}
	return nil
}
