package failover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/console"
	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
	"github.com/samuelhu324-dev/weft/internal/lab/producer"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	index = "weft-failover"
	group = "failover"

	poll = 10 * time.Millisecond
	// bound is for what takes a second or two on an idle machine.
	bound = time.Minute
	// warm is how many events are to be settled before the primary is lost.
	warm = 100
)

// Entities that the producer leaves alone: what is done to them while the replica is cut
// off is lost for certain.
const (
	edited = producer.Entities + iota
	removed
	created
)

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped

	Times       int // how often the primary is lost
	Replication stack.Replication
	Lag         time.Duration // asynchronous: the replica is cut off this long before
	Seed        uint64

	Binary     string   // weft; empty means to build it
	ElasticURL string   // a server to use instead of starting one
	Index      string   // empty means one of our own name
	Guardian   []string // see [stack.Options]
	Dir        string   // for logs and the binary; empty means a temporary one, kept on failure
	JSON       string   // file for the result; empty means none
}

// run is one run of the command.
type run struct {
	opts    Options
	dir     string
	random  *rand.Rand
	servers *stack.Stack
	fleet   *fleet.Fleet
	writer  *producer.Producer
	es      *reconcile.Client

	primary, replica stack.Server
	pool             *pgxpool.Pool // of the primary

	instances []*fleet.Instance
	judged    int // acknowledged events that were looked for on a new primary
	gone      map[history.Enqueued]bool
}

// ErrInterrupted is the error of a run whose context ended.
var ErrInterrupted = errors.New("interrupted; what was started is down again")

// Run loses the primary as often as it is told. It returns an error when something
// could not be done and when the verdict is not clean.
func Run(ctx context.Context, opts Options) (err error) {
	if opts.Times < 1 {
		return fmt.Errorf("times: %d, want 1 or more", opts.Times)
	}
	r := &run{
		opts: opts, random: rand.New(rand.NewPCG(opts.Seed, 1)), dir: opts.Dir,
		primary: stack.Postgres, replica: stack.Replica, gone: map[history.Enqueued]bool{},
	}
	if r.opts.Index == "" {
		r.opts.Index = index
	}
	if r.dir == "" {
		r.dir, err = os.MkdirTemp("", "weft-failover-")
	} else if r.dir, err = filepath.Abs(r.dir); err == nil {
		err = os.MkdirAll(r.dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("directory for logs: %w", err)
	}
	defer func() {
		switch {
		case opts.Dir != "":
		case err == nil || errors.Is(err, ErrInterrupted):
			err = errors.Join(err, os.RemoveAll(r.dir))
		default:
			err = fmt.Errorf("%w\nlogs: %s", err, r.dir)
		}
	}()
	result, err := r.all(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return ErrInterrupted
		}
		return err
	}
	result.write(opts.Out)
	if opts.JSON != "" {
		if err := console.WriteResult(opts.JSON, result); err != nil {
			return err
		}
	}
	return result.Err()
}

func (r *run) say(format string, args ...any) { fmt.Fprintf(r.opts.Out, format+"\n", args...) }

// all starts everything, plays the rounds, and ends everything.
func (r *run) all(ctx context.Context) (result *Result, err error) {
	if err := r.prepare(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var writing sync.WaitGroup
	writingCtx, stop := context.WithCancel(ctx)
	defer writing.Wait()
	defer stop()
	writing.Go(func() { r.writer.Run(writingCtx) })
	if err := r.writer.Write(ctx, []producer.Change{producer.Upsert(producer.Entity(edited)), producer.Upsert(producer.Entity(removed))}); err != nil {
		return nil, err
	}
	if err := r.awaitDone(ctx, warm); err != nil {
		return nil, err
	}
	result = &Result{Replication: r.opts.Replication, Seed: r.opts.Seed}
	for n := range r.opts.Times {
		round, err := r.round(ctx)
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", n+1, err)
		}
		r.say("%d of %d: %s", n+1, r.opts.Times, round)
		result.Rounds = append(result.Rounds, *round)
	}
	stop()
	writing.Wait()
	return result, r.judge(ctx, result)
}

func (r *run) prepare(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		r.servers, err = stack.Start(gctx, stack.Options{
			Progress: r.opts.Progress, ElasticURL: r.opts.ElasticURL, Replication: r.opts.Replication, Guardian: r.opts.Guardian,
		})
		return err
	})
	binary := r.opts.Binary
	g.Go(func() (err error) {
		if binary == "" {
			binary, err = fleet.Build(gctx, r.dir, nil)
			return err
		}
		binary, err = filepath.Abs(binary)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	r.fleet = &fleet.Fleet{Binary: binary, Dir: r.dir, Env: fleet.Environment(r.opts.Environ, r.opts.ElasticURL != "",
		"DATABASE_URL="+r.servers.PairURL(), "ELASTIC_URL="+r.servers.ElasticURL(), "ELASTIC_INDEX="+r.opts.Index,
		"WEFT_GROUP="+group, "WEFT_PROJECTIONS=search_index_to_elastic", "GOTRACEBACK=all")}
	if err := r.fleet.Run(ctx, "migrate", "up"); err != nil {
		return err
	}
	var err error
	if err = r.open(ctx); err != nil {
		return err
	}
	if err := history.Install(ctx, r.pool, producer.Table); err != nil {
		return err
	}
	if r.es, err = reconcile.NewClient(r.servers.ElasticURL()); err != nil {
		return err
	}
	if r.writer, err = producer.New(ctx, r.servers.PairURL(), r.opts.Seed); err != nil {
		return err
	}
	for _, name := range []string{"a", "b"} {
		i, err := r.fleet.Start(ctx, name)
		if err != nil {
			return err
		}
		r.instances = append(r.instances, i)
	}
	for _, i := range r.instances {
		if err := i.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open connects to the server that is the primary now.
func (r *run) open(ctx context.Context) error {
	if r.pool != nil {
		r.pool.Close()
	}
	var err error
	if r.pool, err = pgxpool.New(ctx, r.servers.URL(r.primary)); err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	return nil
}

func (r *run) close() error {
	var errs []error
	if r.fleet != nil {
		errs = append(errs, r.fleet.Stop())
	}
	if r.writer != nil {
		r.writer.Close()
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

// await asks until the answer is true.
func (r *run) await(ctx context.Context, what string, ask func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("not within %v: %s", bound, what))
	defer cancel()
	for {
		ok, err := ask(ctx)
		switch {
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case ok:
			return nil
		}
		if err := r.fleet.Died(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

func (r *run) awaitQuery(ctx context.Context, what, sql string, args ...any) error {
	return r.await(ctx, what, func(ctx context.Context) (ok bool, err error) {
		err = r.pool.QueryRow(ctx, sql, args...).Scan(&ok)
		return ok, err
	})
}

func (r *run) awaitDone(ctx context.Context, n int) error {
	return r.awaitQuery(ctx, fmt.Sprintf("%d events done", n), `select count(*) >= $1 from search_outbox_events where status = 'done'`, n)
}

// awaitDrained is for a time without a writer.
func (r *run) awaitDrained(ctx context.Context) error {
	return r.awaitQuery(ctx, "the outbox is drained", `select not exists (select from search_outbox_events where status in ('pending', 'processing'))`)
}
