package stack

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// guardianArgs are the arguments with which [Start] starts its own program again.
func guardianArgs() []string { return []string{"stack", "guardian"} }

// GuardIfAsked is the first line of the main function, or of TestMain, of a program that calls [Start]: where
// Start has started the program again, it is the guardian, and the process ends here.
func GuardIfAsked() {
	if !slices.Equal(os.Args[1:], guardianArgs()) {
		return
	}
	if err := guard(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

const childrenBound = 10 * time.Second

// guard is the guardian: it does what its owner calls for over in and out, and returns when in ends or it
// gets a SIGTERM and everything is stopped and removed. It takes over the process: signals, orphans and
// standard input and output.
func guard(in io.Reader, out io.Writer) error {
	// The terminal's signals are for the owner. Writing to an owner that died must be
	// an error, not the end.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTOU)
	if err := adoptOrphans(); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	g := &guardian{report: newReporter(os.Stderr), servers: map[Server]machine{}, up: map[Server]running{}}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	g.ctx, g.end = context.WithCancel(ctx)
	server := rpc.NewServer()
	if err := server.RegisterName("Guardian", calls{g}); err != nil {
		return err
	}
	// It is not joined: it may be in a read that nothing interrupts, and the process ends when guard returns.
	go server.ServeCodec(jsonrpc.NewServerCodec(&owner{in, out, g}))
	<-g.ctx.Done()
	g.mu.Lock() // the call under way has ended
	g.stopAll()
	if g.dir == nil {
		return nil
	}
	return g.dir.remove()
}

// owner is the connection to the owner. Its end is that of the guardian, which has not detached.
type owner struct {
	io.Reader
	io.Writer
	g *guardian
}

func (o *owner) Read(p []byte) (int, error) {
	n, err := o.Reader.Read(p)
	if err != nil && !o.g.detached.Load() {
		o.g.end()
	}
	return n, err
}

// Close implements io.Closer.
func (o *owner) Close() error { return nil }

type guardian struct {
	ctx      context.Context //nolint:containedctx // of the calls
	end      context.CancelFunc
	report   *reporter
	detached atomic.Bool

	mu      sync.Mutex // held by a call, and in the end
	spec    spec
	dir     *workDir
	servers map[Server]machine // complete before any of them is started
	cables  *cables            // nil without
	command command            // the owner's, to be killed with it
	state   *State             // once detached
	file    string

	upMu sync.Mutex
	up   map[Server]running
}

// calls are the methods that the owner calls. Each returns the servers that have been up.
type calls struct{ *guardian }

// Start comes first.
func (c calls) Start(what spec, up *map[Server]running) error {
	return c.serve(up, func() (err error) {
		c.spec = what
		for _, root := range append(inMemory(), what.DataRoot) {
			sweep(root)
		}
		if c.dir, err = newWorkDir(what.DataRoot, what.Account); err != nil {
			return err
		}
		if crashes, err := os.Create(filepath.Join(c.dir.path, "guardian.log")); err == nil {
			_ = debug.SetCrashOutput(crashes, debug.CrashOptions{})
			_ = crashes.Close()
		}
		return c.startAll(c.ctx)
	})
}

// Do does something to a server.
func (c calls) Do(r request, up *map[Server]running) error {
	return c.serve(up, func() error { return c.do(c.ctx, r) })
}

// Run notes which command is to be killed with the owner.
func (c calls) Run(cmd command, up *map[Server]running) error {
	return c.serve(up, func() error {
		c.command = cmd
		return nil
	})
}

// Detach has the servers outlive the owner, described in a file.
func (c calls) Detach(file string, up *map[Server]running) error {
	return c.serve(up, func() error {
		c.detached.Store(true)
		c.file, c.state = file, c.describe()
		return c.state.write(file)
	})
}

// serve carries out one call at a time, none once the guardian ends.
func (g *guardian) serve(up *map[Server]running, call func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return errClosed
	}
	err := call()
	g.upMu.Lock()
	defer g.upMu.Unlock()
	*up = maps.Clone(g.up)
	return err
}

func (g *guardian) startAll(ctx context.Context) error {
	var nodes []*elastic
	err := g.newPostgres()
	if err == nil && g.spec.ElasticHome != "" {
		nodes, err = g.newElastic()
	}
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if primary := g.cluster(Postgres); primary != nil {
		group.Go(func() error {
			began := time.Now()
			if err := primary.prepare(ctx); err != nil {
				return err
			}
			if err := g.startOne(ctx, Postgres, began); err != nil || g.spec.Replication == NoReplica {
				return err
			}
			return g.makeReplica(ctx, Replica, g.spec.Replication)
		})
	}
	for n, e := range nodes { // at once: most of them have to be there for any to answer
		group.Go(func() error {
			began := time.Now()
			if err := e.prepare(); err != nil {
				return fmt.Errorf("elasticsearch: %w", explainDisk(err, e.dir))
			}
			return g.startOne(ctx, ElasticNode(n+1), began)
		})
	}
	return group.Wait()
}

// newPostgres makes the PostgreSQL servers that are wanted, without starting them.
func (g *guardian) newPostgres() error {
	var wanted []Server
	if g.spec.PostgresHome != "" {
		wanted = append(wanted, Postgres)
		if g.spec.Replication != NoReplica {
			wanted = append(wanted, Replica)
		}
	}
	for _, server := range wanted {
		common, err := g.instance(server)
		if err != nil {
			return err
		}
		p := &postgres{instance: common}
		if p.Secured != nil {
			if p.clientDir, err = g.writeClientFiles(); err != nil {
				return err
			}
		}
		g.servers[server] = p
	}
	return nil
}

// cluster returns nil for Elasticsearch.
func (g *guardian) cluster(server Server) *postgres {
	p, _ := g.servers[server].(*postgres)
	return p
}

func clusterName() string { return "weft-" + strings.ToLower(rand.Text()[:12]) }

func (g *guardian) startOne(ctx context.Context, server Server, began time.Time) error {
	m := g.servers[server]
	if err := m.start(ctx); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	g.upMu.Lock()
	g.up[server] = running{URL: m.url(), PID: m.pid(), Dir: m.place()}
	g.upMu.Unlock()
	g.report.line("%s is up in %.1f s: %s", server.title(), took, m.url())
	return nil
}

func (g *guardian) do(ctx context.Context, r request) error {
	m, cluster := g.servers[r.Server], g.cluster(r.Server)
	switch {
	case m == nil:
		return fmt.Errorf("%q is not a server of this stack", r.Server)
	case r.Op == StopServer:
		m.stop()
	case r.Op == KillServer:
		m.kill()
	case r.Op == StartServer:
		if !m.runs() {
			return g.startOne(ctx, r.Server, time.Now())
		}
	case cluster == nil && g.cables != nil && (r.Op == CutOff || r.Op == Reconnect):
		return g.cables.plug(r.Server.number(), r.Op == Reconnect)
	case cluster == nil:
		return fmt.Errorf("%s cannot do that", r.Server.title())
	case r.Op == StopServerImmediately:
		cluster.quit()
	case r.Op == Promote:
		return cluster.promote(ctx)
	case r.Op == opReplica:
		return g.makeReplica(ctx, r.Server, r.Replication)
	default:
		return fmt.Errorf("unknown operation %q", r.Op)
	}
	return nil
}

// describe is called once everything is up.
func (g *guardian) describe() *State {
	found := func(server Server) *RunningServer {
		if m := g.servers[server]; m != nil {
			return &RunningServer{URL: m.url(), Process: identify(m.pid())}
		}
		return nil
	}
	state := &State{
		Guardian: identify(os.Getpid()), Dir: g.dir.path, StartedAt: time.Now().UTC().Truncate(time.Second),
		Postgres: found(Postgres), Elastic: found(Elastic),
	}
	for n := 2; g.servers[ElasticNode(n)] != nil; n++ {
		state.ElasticOthers = append(state.ElasticOthers, found(ElasticNode(n)))
	}
	return state
}

// stopAll leaves no process below the guardian.
func (g *guardian) stopAll() {
	killCommand(g.command)
	var group sync.WaitGroup
	for _, m := range g.servers {
		group.Go(m.quit) // its data goes with it
	}
	group.Wait()
	killChildren(childrenBound)
	if g.state != nil {
		g.state.remove(g.file)
	}
}

// machine is a server of the guardian: a cluster of PostgreSQL, or a node of Elasticsearch. It may be
// started again after its end, and keeps data and ports.
type machine interface {
	start(ctx context.Context) error
	stop() // in order
	quit() // at once, with a chance to take along what it has started
	kill()
	runs() bool
	url() string
	pid() int // of the process that serves
	place() string
}

// instance is what both kinds have in common.
type instance struct {
	spec
	dir     string
	onEnd   func(*process.Process)
	port    int              // 0 until the first start, or until it is known to others
	process *process.Process // nil until the first start
}

// instance makes the directory of a server.
func (g *guardian) instance(server Server) (instance, error) {
	dir, err := g.dir.sub(g.spec.Account, string(server))
	return instance{spec: g.spec, dir: dir, onEnd: func(p *process.Process) {
		if !p.Expected() {
			g.report.line("%s ended by itself: %s", server.title(), p.Ending())
		}
	}}, err
}

func (i *instance) place() string { return i.dir }
func (i *instance) pid() int      { return i.process.PID() }
func (i *instance) runs() bool    { return i.process.Runs() }

func (i *instance) end(steps ...process.Step) {
	if i.process != nil {
		i.process.Stop(steps...)
	}
}

// write makes a file that belongs to whom the server runs as.
func (i *instance) write(name string, content []byte) error {
	if err := os.WriteFile(name, content, 0o600); err != nil {
		return err
	}
	return i.Account.own(name)
}
