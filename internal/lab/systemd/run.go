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
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/console"
	"github.com/samuelhu324-dev/weft/internal/lab/nspawn"
	"github.com/samuelhu324-dev/weft/internal/lab/producer"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	index = "weft-systemd"
	group = "weft"

	queryTimeout = 10 * time.Second
	quietPeriod  = 10 * time.Second
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

// run is one run.
type run struct {
	opts    Options
	console *console.Console
	dir     string // evidence
	result  Result

	servers  *stack.Stack
	pool     *pgxpool.Pool
	es       *reconcile.Client
	producer *producer.Producer
	hosts    []*host
	older    string // package files
	newer    string
	settings string // what the administrator has added to weft.yaml
}

// ErrInterrupted is the error of a run whose context ended.
var ErrInterrupted = errors.New("interrupted; what was started is down again")

// Run drills the pair. It returns an error when something could not be done and when
// the verdict is not clean.
func Run(ctx context.Context, opts Options) (err error) {
	r := &run{opts: opts, console: console.New(opts.Out, quietPeriod)}
	for _, name := range opts.Only {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("drill %q: want one of %s", name, strings.Join(names(), ", "))
		}
	}
	if n := len(opts.Packages); n != 0 && n != 2 {
		return fmt.Errorf("packages: %d files, want two, the older one first", n)
	}
	if err := provide(ctx, r.console.Line); err != nil {
		return err
	}
	if r.dir = opts.Evidence; r.dir == "" {
		r.dir, err = os.MkdirTemp("", "weft-systemd-")
	} else if r.dir, err = filepath.Abs(r.dir); err == nil {
		err = os.MkdirAll(r.dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("directory for evidence: %w", err)
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(r.builds()))
		switch {
		case err != nil && ctx.Err() != nil:
			err = ErrInterrupted
		case err != nil:
			err = fmt.Errorf("%w\nevidence: %s", err, r.dir)
			return
		}
		if opts.Evidence == "" {
			err = errors.Join(err, os.RemoveAll(r.dir))
		}
	}()
	if err := r.all(ctx); err != nil {
		return err
	}
	r.result.write(opts.Out)
	if opts.JSON != "" {
		if err := console.WriteResult(opts.JSON, r.result); err != nil {
			return err
		}
	}
	return r.result.Err()
}

func (r *run) builds() string { return filepath.Join(r.dir, "build") }

// all starts everything, plays the drills, and ends everything.
func (r *run) all(ctx context.Context) (err error) {
	defer func() {
		r.console.Refresh("")
		err = errors.Join(err, r.close())
	}()
	if err := r.prepare(ctx); err != nil {
		return errors.Join(err, r.keepJournals(ctx))
	}
	var writing sync.WaitGroup
	writingCtx, stop := context.WithCancel(ctx)
	defer writing.Wait()
	defer stop()
	writing.Go(func() { r.producer.Run(writingCtx) })
	began := time.Now()
	for _, d := range drills() {
		if len(r.opts.Only) > 0 && !slices.Contains(r.opts.Only, d.name) && d.name != first {
			continue
		}
		if err := r.play(ctx, d); err != nil {
			return errors.Join(fmt.Errorf("drill %s: %w", d.name, err), r.keepJournals(ctx))
		}
	}
	r.result.Seconds = time.Since(began).Round(100 * time.Millisecond).Seconds()
	stop()
	writing.Wait()
	return errors.Join(r.judge(ctx), r.keepJournals(ctx))
}

// prepare starts the servers, builds the packages and boots the machines, at once.
func (r *run) prepare(ctx context.Context) error {
	r.console.Line("Starting the servers and two machines, building two packages …")
	if err := os.MkdirAll(r.builds(), 0o755); err != nil {
		return fmt.Errorf("directory for packages: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		r.servers, err = stack.Start(gctx, stack.Options{Progress: r.opts.Progress, HeapMB: r.opts.HeapMB})
		return err
	})
	g.Go(func() (err error) {
		if len(r.opts.Packages) > 0 {
			r.older, r.newer = r.opts.Packages[0], r.opts.Packages[1]
			return nil
		}
		r.older, r.newer, err = build(gctx, r.builds())
		return err
	})
	r.hosts = []*host{{ports: map[string]int{}}, {ports: map[string]int{}}}
	for i, h := range r.hosts {
		g.Go(func() (err error) {
			name := string(rune('a' + i))
			h.Machine, err = nspawn.Boot(gctx, name, filepath.Join(r.dir, "console-"+name+".log"))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	var err error
	if r.result.Versions, err = versions(ctx, r.older, r.newer); err != nil {
		return err
	}
	for _, h := range r.hosts {
		for _, unit := range append(instances(), service) {
			if h.ports[unit], err = process.FreePort(); err != nil {
				return fmt.Errorf("free port: %w", err)
			}
		}
	}
	r.settings = fmt.Sprintf("\nelastic:\n  url: %s\n  index: %s\n", r.servers.ElasticURL(), index)
	if r.pool, err = pgxpool.New(ctx, r.servers.DatabaseURL()); err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	if r.es, err = reconcile.NewClient(r.servers.ElasticURL()); err != nil {
		return err
	}
	if r.producer, err = producer.New(ctx, r.servers.DatabaseURL(), 1); err != nil {
		return err
	}
	return r.install(ctx)
}

func (r *run) close() error {
	var errs []error
	for _, h := range r.hosts {
		if h.Machine != nil {
			errs = append(errs, h.Close())
		}
	}
	if r.producer != nil {
		r.producer.Close()
	}
	if r.pool != nil {
		r.pool.Close()
	}
	if r.es != nil {
		r.es.Close()
	}
	if r.servers != nil {
		errs = append(errs, r.servers.Close())
	}
	return errors.Join(errs...)
}

// judge wants a stopped producer and an instance that leads.
func (r *run) judge(ctx context.Context) error {
	r.console.Line("Judging …")
	err := r.await(ctx, "drained outbox", func(ctx context.Context) error {
		return r.holds(ctx, `select not exists (select from search_outbox_events where status in ('pending', 'processing'))`)
	})
	if err != nil {
		return err
	}
	for _, h := range r.hosts {
		if !h.Up() {
			continue
		}
		lines, err := h.journal(ctx, "weft*")
		if err != nil {
			return err
		}
		looked, bad := misjudged(lines)
		r.result.LogLines += looked
		if bad != "" {
			r.result.Misjudged++
			r.result.findings = append(r.result.findings, "journal of "+h.Name+": "+bad)
		}
	}
	log, err := history.Read(ctx, r.pool, producer.Table, group)
	if err != nil {
		return err
	}
	end, err := history.ReadEnd(ctx, r.pool, r.es, index)
	if err != nil {
		return err
	}
	acknowledged := r.producer.Ledger()
	v := history.Check(history.Run{Log: log, Acknowledged: acknowledged, End: end})
	out := &r.result
	out.Produced, out.Refused, out.Terms = len(acknowledged), r.producer.Refusals(), len(log.Terms)
	out.Lost, out.OutOfOrder, out.TwoClaimers, out.Failed = len(v.Lost), len(v.OutOfOrder), len(v.TwoActive), len(v.DeadLetters)
	out.Converged = len(v.Diverged) == 0 && len(v.Unsettled) == 0 && end.Compared.Equal()
	for _, b := range v.Breaches() {
		for _, f := range b.Findings[:min(5, len(b.Findings))] {
			out.findings = append(out.findings, fmt.Sprintf("%s: %v", b.Invariant, f))
		}
	}
	out.measure(log)
	return nil
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
