package trail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

const (
	job         = "weft"
	environment = "dev"
	index       = "weft-trail"

	interval = 500 * time.Millisecond // of scrapes
	poll     = 50 * time.Millisecond
	// bound is for what takes a second or two on an idle machine.
	bound = time.Minute
)

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads, builds and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped

	Calm   time.Duration // before, between and after what happens
	Outage time.Duration // how long Elasticsearch is away, at least

	Root string // of the sources, where the dashboard is read; empty means to ask the go command
	Docs string // directory of observability.md; empty writes no file

	Dir    string // for logs and the binary; empty means a temporary one, kept on failure
	Binary string // weft; empty means to build it
	HeapMB int    // of Elasticsearch

	DatabaseURL, ElasticURL, Index string // servers to use instead of starting some
}

// lab is a pair of instances with everything around it.
type lab struct {
	opts       Options
	dir        string
	servers    *stack.Stack
	link       *proxy.Link // to Elasticsearch
	pool       *pgxpool.Pool
	prometheus *watch.Prometheus
	jaeger     *watch.Jaeger
	app        *application
	fleet      *fleet.Fleet
	instances  []*fleet.Instance
	marks      []mark
}

// mark is a moment of the run.
type mark struct {
	At   time.Time
	Text string
}

func (l *lab) mark(text string) (at time.Time) {
	at = time.Now()
	l.marks = append(l.marks, mark{at, text})
	fmt.Fprintln(l.opts.Out, text)
	return at
}

// open starts everything. What it has started is for close, also beside an error.
func open(ctx context.Context, opts Options) (l *lab, err error) {
	l = &lab{opts: opts}
	if l.dir, err = filepath.Abs(opts.Dir); err != nil {
		return l, fmt.Errorf("directory for logs: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		l.servers, err = stack.Start(gctx, stack.Options{
			Progress: opts.Progress, DatabaseURL: opts.DatabaseURL, ElasticURL: opts.ElasticURL, HeapMB: opts.HeapMB,
		})
		return err
	})
	g.Go(func() (err error) {
		l.jaeger, err = watch.StartJaeger(gctx, watch.JaegerOptions{Dir: l.dir, Progress: opts.Progress})
		return err
	})
	g.Go(func() (err error) {
		l.prometheus, err = watch.StartPrometheus(gctx, watch.PrometheusOptions{Dir: l.dir, Interval: interval})
		return err
	})
	binary := opts.Binary
	g.Go(func() (err error) {
		if binary == "" {
			binary, err = fleet.Build(gctx, l.dir, nil)
			return err
		}
		binary, err = filepath.Abs(binary)
		return err
	})
	if err := g.Wait(); err != nil {
		return l, err
	}
	if err := l.startPair(ctx, binary); err != nil {
		return l, err
	}
	l.app, err = newApplication(ctx, l.pool, l.jaeger.OTLPHTTP())
	return l, err
}

func (l *lab) startPair(ctx context.Context, binary string) error {
	elastic, err := l.cuttable(l.servers.ElasticURL())
	if err != nil {
		return err
	}
	name := l.opts.Index
	if name == "" {
		name = index
	}
	l.fleet = &fleet.Fleet{Binary: binary, Dir: l.dir, Env: fleet.Environment(l.opts.Environ, l.opts.ElasticURL != "",
		"DATABASE_URL="+l.servers.DatabaseURL(), "ELASTIC_URL="+elastic, "ELASTIC_INDEX="+name, "WEFT_LOG_LEVEL=debug",
		"WORDLOOM_TRACING_ENABLED=true", "OTEL_BSP_SCHEDULE_DELAY=100")}
	if err := l.fleet.Run(ctx, "migrate", "up"); err != nil {
		return err
	}
	l.fleet.Env = append(l.fleet.Env, "WORDLOOM_ENV="+environment) // now the database can say the same
	if l.pool, err = pgxpool.New(ctx, l.servers.DatabaseURL()); err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	if _, err := l.pool.Exec(ctx, "insert into environment_sentinel (id, env) values (1, $1)", environment); err != nil {
		return fmt.Errorf("name the environment: %w", err)
	}
	var targets []watch.Target
	for _, instance := range []struct{ name, protocol, collector string }{
		{"a", "grpc", l.jaeger.OTLPGRPC()},
		{"b", "http/protobuf", l.jaeger.OTLPHTTP()},
	} {
		i, err := l.fleet.Start(ctx, instance.name,
			"OTEL_EXPORTER_OTLP_PROTOCOL="+instance.protocol, "OTEL_EXPORTER_OTLP_ENDPOINT="+instance.collector)
		if err != nil {
			return err
		}
		if err := i.Ready(ctx); err != nil {
			return err
		}
		l.instances = append(l.instances, i)
		targets = append(targets, watch.Target{Job: job, Address: strings.TrimPrefix(i.URL(""), "http://")})
	}
	return l.prometheus.SetTargets(targets...)
}

func (l *lab) close() error {
	var errs []error
	if l.fleet != nil {
		errs = append(errs, l.fleet.Stop())
	}
	if l.app != nil {
		errs = append(errs, l.app.close())
	}
	if l.pool != nil {
		l.pool.Close()
	}
	if l.prometheus != nil {
		errs = append(errs, l.prometheus.Close())
	}
	if l.jaeger != nil {
		errs = append(errs, l.jaeger.Close())
	}
	if l.link != nil {
		errs = append(errs, l.link.Close())
	}
	if l.servers != nil {
		errs = append(errs, l.servers.Close())
	}
	return errors.Join(errs...)
}

// await asks until the answer is true. The error of an answer is kept for the case that
// none is.
func (l *lab) await(ctx context.Context, what string, ask func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("not within %v: %s", bound, what))
	defer cancel()
	var last error
	for {
		ok, err := ask(ctx)
		if context.Cause(ctx) != nil {
			return errors.Join(context.Cause(ctx), last)
		}
		if ok {
			return nil
		}
		last = err
		if err := l.fleet.Died(func(*fleet.Instance) bool { return false }); err != nil {
			return err
		}
		if err := sleep(ctx, poll); err != nil {
			return errors.Join(err, last)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// ErrInterrupted is the error of a run whose context ended.
var ErrInterrupted = errors.New("interrupted; what was started is down again")

// Run breaks things and follows them, and writes what it found to the files that are
// asked for.
func Run(ctx context.Context, opts Options) (err error) {
	temporary := opts.Dir == ""
	if temporary {
		if opts.Dir, err = os.MkdirTemp("", "weft-trail-"); err != nil {
			return fmt.Errorf("directory for logs: %w", err)
		}
	} else if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		return fmt.Errorf("directory for logs: %w", err)
	}
	defer func() {
		switch {
		case !temporary:
		case err == nil || errors.Is(err, ErrInterrupted):
			err = errors.Join(err, os.RemoveAll(opts.Dir))
		default:
			err = fmt.Errorf("%w\nlogs: %s", err, opts.Dir)
		}
	}()
	if opts.Root == "" {
		if opts.Root, err = watch.Sources(ctx); err != nil {
			return err
		}
	}
	l, err := open(ctx, opts)
	defer func() { err = errors.Join(err, l.close()) }()
	if err == nil {
		err = l.report(ctx)
	}
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}
