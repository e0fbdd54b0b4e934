package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/console"
	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
)

// quietPeriod is between two status lines where they cannot be rewritten in place.
const quietPeriod = 2 * time.Second

const (
	// wholeLimit is for everything but downloads and the build. How much of the time
	// until the servers were up was download is not known here: shortLimit remains
	// for the rest in any case.
	wholeLimit = 87 * time.Second
	shortLimit = 50 * time.Second
)

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped

	DatabaseURL, ElasticURL string // servers to use instead of starting some
	Binary                  string // weft; empty means to build it
	Dir                     string // for logs and the binary; empty means a temporary one
	JSON                    string // file for the result; empty means none
	Keep                    bool   // leave servers and instances up
}

// run is one run of the demo.
type run struct {
	opts     Options
	console  *console.Console
	began    time.Time // of the part after the servers are up
	deadline time.Time
	dir      string

	place     *place
	pool      *pgxpool.Pool
	source    *source
	fleet     *fleet.Fleet
	instances map[string]*fleet.Instance // by name, the newest
	killed    map[*fleet.Instance]bool

	mu   sync.Mutex
	step string // for the message when the time is over
}

// ErrInterrupted is the error of a run whose context ended.
var ErrInterrupted = errors.New("interrupted; what was started is down again")

// Run shows the demo. It returns an error when something could not be done, when time
// ran out, and when a loss figure is not 0.
func Run(ctx context.Context, opts Options) (err error) {
	caller := ctx
	r := &run{opts: opts, console: console.New(opts.Out, quietPeriod), began: time.Now(),
		instances: map[string]*fleet.Instance{}, killed: map[*fleet.Instance]bool{}}
	if err := r.makeDir(); err != nil {
		return err
	}
	kept := false
	defer func() {
		switch {
		case opts.Dir != "" || kept:
		case err == nil || errors.Is(err, ErrInterrupted):
			err = errors.Join(err, os.RemoveAll(r.dir))
		default:
			err = fmt.Errorf("%w\nlogs: %s", err, r.dir)
		}
	}()
	docs, err := r.prepare(ctx)
	if r.place != nil {
		defer func() {
			if !kept {
				err = errors.Join(err, r.place.close(context.WithoutCancel(ctx)))
			}
		}()
	}
	if err != nil {
		if caller.Err() != nil {
			return ErrInterrupted
		}
		return err
	}
	r.began, r.deadline = time.Now(), time.Now().Add(max(shortLimit, wholeLimit-time.Since(r.began)))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := time.AfterFunc(time.Until(r.deadline), func() {
		cancel(fmt.Errorf("out of time %.0f s after the servers were up, in the step: %s", time.Since(r.began).Seconds(), r.at()))
	})
	defer over.Stop()

	r.pool, err = pgxpool.New(ctx, r.place.databaseURL)
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	defer r.pool.Close()
	r.source = &source{pool: r.pool}
	defer func() {
		if !kept {
			err = errors.Join(err, r.fleet.Stop())
		}
	}()
	v, err := r.show(ctx, docs)
	r.console.Refresh("")
	switch cause := context.Cause(ctx); {
	case err == nil:
	case caller.Err() != nil:
		return ErrInterrupted
	case cause != nil && !errors.Is(err, cause):
		return fmt.Errorf("%w (%w)", cause, err)
	default:
		return err
	}
	if opts.Keep {
		if err := r.detach(ctx); err != nil {
			return err
		}
		kept = true
	}
	v.took = time.Since(r.began)
	v.write(r.console)
	if opts.JSON != "" {
		if err := console.WriteResult(opts.JSON, v.result); err != nil {
			return err
		}
	}
	if kept {
		r.lookAround(r.console, v.leader())
	}
	return v.result.Err()
}

func (r *run) makeDir() (err error) {
	if r.dir = r.opts.Dir; r.dir == "" {
		r.dir, err = os.MkdirTemp("", "weft-demo-")
	} else if r.dir, err = filepath.Abs(r.dir); err == nil {
		err = os.MkdirAll(r.dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("directory for logs: %w", err)
	}
	return nil
}

func (r *run) enter(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step = step
}

func (r *run) at() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.step
}

// prepare starts the servers, builds weft and reads the corpus, all at once. place is
// set when the servers are up, whatever else fails.
func (r *run) prepare(ctx context.Context) (docs []Document, err error) {
	root, err := fleet.GoRoot(ctx)
	if err != nil {
		return nil, err
	}
	binary := r.opts.Binary
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		r.place, err = openPlace(gctx, r.opts.DatabaseURL, r.opts.ElasticURL, r.opts.Progress)
		return err
	})
	if binary == "" {
		g.Go(func() (err error) {
			start := time.Now()
			r.console.Line("Building weft …")
			if binary, err = fleet.Build(gctx, r.dir, nil); err == nil {
				r.console.Line("Built weft in %.1f s", time.Since(start).Seconds())
			}
			return err
		})
	}
	g.Go(func() (err error) {
		start := time.Now()
		if docs, err = ReadCorpus(gctx, filepath.Join(root, "src")); err != nil {
			return err
		}
		size := 0
		for _, d := range docs {
			size += len(d.Text)
		}
		r.console.Line("Read the documentation of %s symbols below %s in %.1f s (%.1f MB)",
			console.Number(len(docs)), filepath.Join(root, "src"), time.Since(start).Seconds(), float64(size)/1e6)
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return nil, err
	}
	r.fleet = &fleet.Fleet{Binary: binary, Dir: r.dir, Keep: r.opts.Keep, Env: fleet.Environment(r.opts.Environ, r.opts.ElasticURL != "",
		"DATABASE_URL="+r.place.databaseURL, "ELASTIC_URL="+r.place.elasticURL, "ELASTIC_INDEX="+r.place.index,
		"WEFT_GROUP="+r.place.group, "WEFT_PROJECTIONS=search_index_to_elastic", "GOTRACEBACK=all")}
	return docs, nil
}
