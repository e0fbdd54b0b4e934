package stack

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
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

var (
	errOwnerGone = errors.New("the owner is gone")
	errTold      = errors.New("told to stop")
)

const childrenBound = 10 * time.Second

// guard is the guardian: it starts the servers that in asks for, reports to out, and
// returns when in ends or it gets a SIGTERM and everything is stopped and removed.
// It takes over the process: signals, orphans and standard input and output.
func guard(in io.Reader, out io.Writer) error {
	// The terminal's signals are for the owner. Writing to an owner that died must be
	// an error, not the end.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTOU)
	if err := adoptOrphans(); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	g := &guardian{
		requests: make(chan request),
		ends:     make(chan serverEnd, 16),
		servers:  make(map[Server]machine),
		out:      json.NewEncoder(out),
	}
	decoder := json.NewDecoder(in)
	if err := decoder.Decode(&g.spec); err != nil {
		return fmt.Errorf("spec: %w", err)
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	defer signal.Stop(terms)
	// Neither goroutine is joined: the first may be in a read that nothing interrupts,
	// and the process ends when guard returns.
	go g.read(ctx, decoder, cancel)
	go func() {
		<-terms
		cancel(errTold)
	}()
	return g.run(ctx)
}

type serverEnd struct {
	server  Server
	process *process.Process
}

type guardian struct {
	spec     spec
	requests chan request
	ends     chan serverEnd
	dir      *workDir
	servers  map[Server]machine // complete before any of them is started
	cables   *cables            // nil without

	outMu sync.Mutex
	out   *json.Encoder

	command request // the owner's, to be killed with it
	state   *State  // once detached
	file    string
}

func (g *guardian) emit(e event) {
	g.outMu.Lock()
	defer g.outMu.Unlock()
	_ = g.out.Encode(e)
}

// read passes requests on until the owner's end of the pipe is closed, by it or by its
// death.
func (g *guardian) read(ctx context.Context, decoder *json.Decoder, cancel context.CancelCauseFunc) {
	detached := false
	for {
		var r request
		if err := decoder.Decode(&r); err != nil {
			if !detached {
				cancel(errOwnerGone)
			}
			return
		}
		detached = detached || r.Op == opDetach
		select {
		case g.requests <- r:
		case <-ctx.Done():
			return
		}
	}
}

func (g *guardian) run(ctx context.Context) (err error) {
	for _, root := range append(inMemory(), g.spec.DataRoot) {
		sweep(root)
	}
	g.dir, err = newWorkDir(g.spec.DataRoot, g.spec.Account)
	if err != nil {
		g.emit(event{Kind: eventFailed, Error: err.Error()})
		return err
	}
	defer func() { err = errors.Join(err, g.dir.remove()) }()
	if crashes, err := os.Create(filepath.Join(g.dir.path, "guardian.log")); err == nil {
		_ = debug.SetCrashOutput(crashes, debug.CrashOptions{})
		_ = crashes.Close()
	}
	defer g.stopAll()

	if err := g.startAll(ctx); err != nil {
		g.emit(event{Kind: eventFailed, Error: err.Error()})
		return err
	}
	g.emit(event{Kind: eventReady, Dir: g.dir.path})
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-g.requests:
			g.handle(ctx, r)
		case end := <-g.ends:
			if !end.process.Expected() {
				g.emit(event{Kind: eventEnded, Server: end.server, Error: end.process.Ending()})
			}
		}
	}
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
	g.emit(event{Kind: eventUp, Server: server, PID: m.pid(), URL: m.url(), Dir: m.place(), Seconds: time.Since(began).Seconds()})
	return nil
}

func (g *guardian) handle(ctx context.Context, r request) {
	if r.Op == opCommand {
		g.command = r
		return
	}
	done := event{Kind: eventDone, Server: r.Server}
	if err := g.do(ctx, r); err != nil {
		done.Error = err.Error()
	}
	g.emit(done)
}

func (g *guardian) do(ctx context.Context, r request) error {
	if r.Op == opDetach {
		g.file, g.state = r.StateFile, g.describe()
		return g.state.write(g.file)
	}
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
	running := func(server Server) *RunningServer {
		if m := g.servers[server]; m != nil {
			return &RunningServer{URL: m.url(), Process: identify(m.pid())}
		}
		return nil
	}
	state := &State{
		Guardian: identify(os.Getpid()), Dir: g.dir.path, StartedAt: time.Now().UTC().Truncate(time.Second),
		Postgres: running(Postgres), Elastic: running(Elastic),
	}
	for n := 2; g.servers[ElasticNode(n)] != nil; n++ {
		state.ElasticOthers = append(state.ElasticOthers, running(ElasticNode(n)))
	}
	return state
}

// stopAll leaves no process below the guardian.
func (g *guardian) stopAll() {
	killCommand(g.command)
	var group errgroup.Group
	for _, m := range g.servers {
		group.Go(func() error {
			m.quit() // its data goes with it
			return nil
		})
	}
	_ = group.Wait()
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
		select {
		case g.ends <- serverEnd{server, p}:
		default:
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
