package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/console"
	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped

	Instances int
	Duration  time.Duration // of the faults; 0 is no limit
	Faults    int           // 0 is no limit
	Only      []Kind        // empty: all
	Seed      uint64
	Rate      int // events per second

	Finished outbox.Finished // what becomes of events that are done; empty: weft's default
	Upgrade  string          // binary or revision of another build, which leads in turns with this one; empty means none

	JSON     string // file for the result; empty means none
	Evidence string // directory for the evidence, kept in any case; empty: a temporary one, kept on failure
	Binary   string // weft; empty means to build it
	HeapMB   int    // of Elasticsearch; 0 is the stack's default

	// DatabaseURL and ElasticURL name servers to use instead of starting some: a
	// database that is the run's alone, and an Index that does not exist. They are not
	// stopped; faults that need that are skipped.
	DatabaseURL, ElasticURL, Index string
}

// quietPeriod is between two status lines where they cannot be rewritten in place.
const quietPeriod = 10 * time.Second

const (
	queryTimeout = 10 * time.Second
	probeTimeout = 2 * time.Second
)

// run is one run.
type run struct {
	opts    Options
	console *console.Console
	dir     string // evidence
	began   time.Time
	opened  time.Time // by the database's clock, before weft was there

	place       *place
	fleet       *fleet.Fleet
	skewed      string // binary with a wrong wall clock; empty when none was built
	otherBinary string // of the other build; empty when there is none
	starts      []start
	recorder    *proxy.Recorder
	members     []*member
	writer      *writer
	snapshot    *snapshot // open, or nil

	injections []*injection
	surprises  []string // instances that ended by themselves
	clocks     []string // times in tables that are not the database's
	step       step     // for the status line
}

// ErrInterrupted is the error of a run whose context ended.
var ErrInterrupted = errors.New("interrupted; what was started is down again")

// Run starts the servers and the instances, injects faults, heals everything, and
// judges. It returns an error when something could not be done, and when a figure of
// the verdict is not what it must be.
func Run(ctx context.Context, opts Options) (err error) {
	r := &run{opts: opts, console: console.New(opts.Out, quietPeriod), began: time.Now(), recorder: proxy.NewRecorder()}
	defer r.console.Refresh("")
	if err := r.makeDir(); err != nil {
		return err
	}
	defer func() {
		r.console.Refresh("")
		switch {
		case err != nil && ctx.Err() != nil:
			err = ErrInterrupted
		case err != nil:
			err = fmt.Errorf("%w\nseed %d, evidence: %s", err, opts.Seed, r.dir)
			return
		}
		if opts.Evidence == "" {
			err = errors.Join(err, os.RemoveAll(r.dir))
		}
	}()
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.prepare(ctx); err != nil {
		return err
	}
	result, err := r.perform(ctx)
	r.console.Refresh("")
	if err != nil {
		if ctx.Err() == nil {
			err = errors.Join(err, r.keepLogs(ctx), r.keepSchedule())
			if log, unread := history.Read(ctx, r.place.pool, outboxTable, group); unread == nil {
				err = errors.Join(err, r.keepRecord(log, r.recorder.Applied()))
			}
		}
		return err
	}
	result.write(r.console)
	if opts.JSON != "" {
		if err := console.WriteResult(opts.JSON, result); err != nil {
			return err
		}
	}
	return result.Err()
}

func (r *run) makeDir() (err error) {
	if r.dir = r.opts.Evidence; r.dir == "" {
		r.dir, err = os.MkdirTemp("", "weft-chaos-")
	} else if r.dir, err = filepath.Abs(r.dir); err == nil {
		err = os.MkdirAll(r.dir, 0o755)
	}
	if err == nil {
		err = os.MkdirAll(r.builds(), 0o755)
	}
	if err != nil {
		return fmt.Errorf("directory for evidence: %w", err)
	}
	return nil
}

// builds is where binaries are; they are no evidence.
func (r *run) builds() string { return filepath.Join(r.dir, "build") }

func (r *run) close() error {
	var errs []error
	if r.snapshot != nil {
		r.snapshot.close()
	}
	if r.fleet != nil {
		_ = r.fleet.Stop() // a clean end has been looked at before
	}
	for _, m := range r.members {
		errs = append(errs, m.Close())
	}
	if r.place != nil {
		errs = append(errs, r.place.close())
	}
	return errors.Join(append(errs, os.RemoveAll(r.builds()))...)
}

// prepare starts the servers and builds weft, at once, and then the instances.
func (r *run) prepare(ctx context.Context) error {
	binary := r.opts.Binary
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		r.place, err = openPlace(gctx, r.opts)
		return err
	})
	g.Go(func() (err error) {
		start := time.Now()
		if binary != "" {
			return nil // and nothing is built
		}
		if binary, err = fleet.Build(gctx, r.builds(), nil); err != nil {
			return err
		}
		if r.schedules(SkewedClock) {
			r.console.Line("Building weft with a wrong wall clock …")
			overlay, err := fleet.SkewedClock(gctx, skew(r.opts.Seed))
			if err != nil {
				return err
			}
			if r.skewed, err = fleet.Build(gctx, r.builds(), overlay); err != nil {
				return err
			}
		}
		r.console.Line("Built weft in %.1f s", time.Since(start).Seconds())
		return nil
	})
	g.Go(func() (err error) {
		r.otherBinary, err = otherBuild(gctx, r.opts.Upgrade, r.builds())
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	r.fleet = &fleet.Fleet{Binary: binary, Dir: r.dir, Env: fleet.Environment(r.opts.Environ, false,
		"DATABASE_URL="+r.place.databaseURL, "ELASTIC_URL="+r.place.elasticURL, "ELASTIC_INDEX="+r.place.index,
		"WEFT_GROUP="+group, "GOTRACEBACK=all")}
	if r.opts.Finished != "" {
		r.fleet.Env = append(r.fleet.Env, "OUTBOX_FINISHED="+string(r.opts.Finished))
	}
	if r.opened, err = r.now(ctx); err != nil {
		return err
	}
	if err := r.fleet.Run(ctx, "migrate", "up"); err != nil {
		return err
	}
	if err := history.Install(ctx, r.place.pool, outboxTable); err != nil {
		return err
	}
	if err := history.InstallSource(ctx, r.place.pool); err != nil {
		return err
	}
	if err := r.place.makeProbe(ctx); err != nil {
		return err
	}
	for n := range r.opts.Instances {
		m, err := newMember(string(rune('a'+n)), r.place, r.recorder)
		m.other = n%2 == 1 // its first process is of the other build than that of its neighbour
		r.members = append(r.members, m)
		if err != nil {
			return err
		}
		if err := r.start(ctx, m, ""); err != nil {
			return err
		}
	}
	for _, m := range r.members {
		if err := m.instance.Ready(ctx); err != nil {
			return err
		}
	}
	r.writer = &writer{pool: r.place.pool, seed: r.opts.Seed, rate: r.opts.Rate}
	return nil
}

// schedules reports whether the faults of this run may be of kind k: within the first
// decks, if their number is limited.
func (r *run) schedules(k Kind) bool {
	s := newSchedule(r.opts.Seed, r.opts.Only)
	if r.opts.Faults == 0 {
		return slices.Contains(s.kinds, k)
	}
	for range min(r.opts.Faults, len(s.kinds)) {
		if s.next().Kind == k {
			return true
		}
	}
	return false
}

// perform runs writer and faults, heals, drains and judges.
func (r *run) perform(ctx context.Context) (*Result, error) {
	g, gctx := errgroup.WithContext(ctx)
	writing, stopWriting := context.WithCancel(gctx)
	watching, stopWatching := context.WithCancel(gctx)
	defer stopWatching()
	g.Go(func() error { return r.writer.run(writing) })
	g.Go(func() error { r.watch(watching); return nil })
	g.Go(func() error {
		defer stopWriting()
		defer stopWatching()
		return r.torment(gctx)
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := r.settle(ctx); err != nil {
		return nil, err
	}
	return r.judge(ctx)
}

// now is the database's clock.
func (r *run) now(ctx context.Context) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := r.place.pool.QueryRow(ctx, "select clock_timestamp()").Scan(&at); err != nil {
		return at, fmt.Errorf("read the database's clock: %w", err)
	}
	return at, nil
}
