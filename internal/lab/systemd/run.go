package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/nspawn"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const defaultOutage = 2 * time.Minute

// Command returns `weftlab systemd`.
func Command() *cobra.Command {
	var opts Options
	cmd := &cobra.Command{
		Use:   "systemd",
		Short: "Drill a pair in two machines with a systemd of their own, from installation to removal",
		Long: `Build the Debian package twice, under two versions, boot two containers with a systemd
of their own, install the package, and drill the pair under load against a PostgreSQL
and an Elasticsearch that are started here: start, reload, stop, kill, freeze, upgrade,
an outage of PostgreSQL, machines that are shut down and that go dark, instances of two
groups on one machine, removal.

It takes root, and a kernel that allows mounts and cgroups; where that is not so it says
so and fails. Debian's packages that are missing are installed. Nothing of it is left.

Exit code 0 means that every drill has shown what it has to show, that nothing was lost,
out of order or in the dead letter, and that no upgrade stopped the flow for more than a
second; 1 means anything else, and the evidence stays: journals, consoles, findings.`,
		Example: `  weftlab systemd
  weftlab systemd --outage 20s --json systemd.json
  weftlab systemd --only start,upgrade --evidence ./evidence`,
		Args: cobra.NoArgs,
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			opts.Out, opts.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return Run(ctx, opts)
		}),
	}
	f := cmd.Flags()
	f.DurationVar(&opts.Outage, "outage", defaultOutage, "how long PostgreSQL is away")
	f.StringSliceVar(&opts.Only, "only", nil, "these drills only: "+strings.Join(names(), ", "))
	f.StringSliceVar(&opts.Packages, "packages", nil, "two package `FILES`, the older one first, instead of building them")
	f.StringVar(&opts.JSON, "json", "", "write the figures to `FILE` as JSON")
	f.StringVar(&opts.Evidence, "evidence", "", "keep the evidence in `DIR`, also that of a clean run")
	f.IntVar(&opts.HeapMB, "elastic-heap", 0, "Elasticsearch's heap in MiB (default that of the stack)")
	return cmd
}

const (
	index = "weft-systemd"
	group = "weft"

	writers     = 4
	rate        = 320 // events per second
	entities    = 600
	quietPeriod = 10 * time.Second
)

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers

	Outage   time.Duration // how long PostgreSQL is away
	Only     []string      // names of drills; empty: all
	Packages []string      // two files; empty: they are built
	JSON     string        // file for the result; empty means none
	Evidence string        // directory, kept in any case; empty: a temporary one, kept on failure
	HeapMB   int           // of Elasticsearch; 0 is the stack's default
}

type run struct {
	*rig.Place
	rig.Script
	opts   Options
	screen *rig.Screen
	dir    string // evidence
	result Result

	stream   *traffic.Stream
	hosts    []*host
	older    string // package files
	newer    string
	settings string // what the administrator has added to weft.yaml
}

// Run drills the pair. It returns an error when something could not be done and when the
// verdict is not clean.
func Run(ctx context.Context, opts Options) error {
	for _, name := range opts.Only {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("drill %q: want one of %s", name, strings.Join(names(), ", "))
		}
	}
	if n := len(opts.Packages); n != 0 && n != 2 {
		return fmt.Errorf("packages: %d files, want two, the older one first", n)
	}
	screen := rig.NewScreen(opts.Out, quietPeriod)
	if err := provide(ctx, screen.Line); err != nil {
		return err
	}
	dir := rig.Dir{Path: opts.Evidence, Program: "systemd", Holds: "evidence"}
	return dir.Run(ctx, func(ctx context.Context, path string) (err error) {
		r := &run{opts: opts, screen: screen, dir: path}
		defer func() {
			screen.Refresh("")
			err = errors.Join(err, r.close(ctx))
		}()
		err = r.Play(ctx, r.prepare)
		if err == nil {
			err = r.all(ctx)
		}
		if err := errors.Join(err, r.keepJournals(ctx)); err != nil {
			return err
		}
		r.result.write(opts.Out)
		return errors.Join(rig.WriteResult(opts.JSON, r.result), r.result.Err())
	})
}

func (r *run) builds() string { return filepath.Join(r.dir, "build") }

// all plays the drills while the application writes, and judges.
func (r *run) all(ctx context.Context) error {
	var streamed error
	stop := rig.During(ctx, func(ctx context.Context) { streamed = r.stream.Run(ctx) })
	defer stop() // also when a drill fails
	began := time.Now()
	for _, d := range drills() {
		if len(r.opts.Only) > 0 && !slices.Contains(r.opts.Only, d.name) && d.name != first {
			continue
		}
		if err := r.Play(ctx, func() { r.play(d) }); err != nil {
			return fmt.Errorf("drill %s: %w", d.name, err)
		}
	}
	r.result.Seconds = time.Since(began).Round(100 * time.Millisecond).Seconds()
	stop()
	if streamed != nil {
		return streamed
	}
	return r.Play(ctx, r.judge)
}

// prepare starts the servers, builds the packages and boots the machines, at once.
func (r *run) prepare() {
	r.screen.Line("Starting the servers and two machines, building two packages …")
	r.MustDo("directory for packages", os.MkdirAll(r.builds(), 0o755))
	g, ctx := errgroup.WithContext(r.Ctx)
	g.Go(func() (err error) {
		r.Place, err = rig.Open(ctx, stack.Options{Progress: r.opts.Progress, HeapMB: r.opts.HeapMB}, writers+4)
		return err
	})
	g.Go(func() (err error) {
		if len(r.opts.Packages) > 0 {
			r.older, r.newer = r.opts.Packages[0], r.opts.Packages[1]
			return nil
		}
		r.older, r.newer, err = build(ctx, r.builds())
		return err
	})
	r.hosts = []*host{{ports: map[string]int{}}, {ports: map[string]int{}}}
	for i, h := range r.hosts {
		g.Go(func() (err error) {
			name := string(rune('a' + i))
			h.Machine, err = nspawn.Boot(ctx, name, filepath.Join(r.dir, "console-"+name+".log"))
			return err
		})
	}
	r.Must(g.Wait())
	r.result.Versions = rig.Try(versions(r.Ctx, r.older, r.newer)).Must(r)
	for _, h := range r.hosts {
		for _, unit := range append(instances(), service) {
			h.ports[unit] = rig.Try(process.FreePort()).MustDo(r, "free port")
		}
	}
	r.Index, r.Group = index, group
	r.settings = fmt.Sprintf("\nelastic:\n  url: %s\n  index: %s\n", r.ElasticURL, index)
	r.stream = &traffic.Stream{App: &traffic.Application{Pool: r.Pool}, Writers: writers, Rate: rate, Seed: 1, Entities: traffic.Entities(entities)}
	r.install()
}

func (r *run) close(ctx context.Context) error {
	var errs []error
	for _, h := range r.hosts {
		if h.Machine != nil {
			errs = append(errs, h.Close())
		}
	}
	if r.Place != nil {
		errs = append(errs, r.Place.Close(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(r.builds()))...)
}

// judge wants a stopped stream and an instance that leads.
func (r *run) judge() {
	r.screen.Line("Judging …")
	r.Must(r.Drained(r.Ctx, bound, nil))
	for _, h := range r.hosts {
		if !h.Up() {
			continue
		}
		lines := rig.Try(h.journal(r.Ctx, "weft*")).Must(r)
		looked, bad := misjudged(lines)
		r.result.LogLines += looked
		if bad != "" {
			r.result.Misjudged++
			r.result.findings = append(r.result.findings, "journal of "+h.Name+": "+bad)
		}
	}
	log := rig.Try(history.Read(r.Ctx, r.Pool, rig.Outbox, group)).Must(r)
	end := rig.Try(history.ReadEnd(r.Ctx, r.Pool, r.Elastic, index, reconcile.SearchIndex)).Must(r)
	acknowledged := r.stream.App.Acknowledged()
	v := history.Check(history.Run{Log: log, Acknowledged: acknowledged, End: end})
	out := &r.result
	out.Produced, out.Refused, out.Terms = len(acknowledged), r.stream.App.Refused(), len(log.Terms)
	out.Add(v)
	out.Converged = len(v.Diverged) == 0 && len(v.Unsettled) == 0 && end.Compared.Equal()
	out.findings = append(out.findings, v.Lines()...)
	out.measure(log)
}

// keepJournals writes those of the machines that are up to the evidence.
func (r *run) keepJournals(ctx context.Context) error {
	var errs []error
	for _, h := range r.hosts {
		if h.Machine == nil || !h.Up() || ctx.Err() != nil {
			continue
		}
		text, err := h.Exec(ctx, "journalctl", "--quiet", "--no-pager", "--output=short-iso-precise")
		if err == nil {
			err = os.WriteFile(filepath.Join(r.dir, "journal-"+h.Name+".log"), []byte(text), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("keep journal: %w", err))
		}
	}
	return errors.Join(errs...)
}
