package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The owner calls methods of the guardian, over its standard input and output: Start first. What there
// is to tell people the guardian writes to standard error. End of file on the input is the owner's death,
// unless it has detached.

// Server names one of the servers.
type Server string

// The servers of a [Stack]. Postgres and Replica are two places, not two roles: which
// of them is the primary changes with [Promote] and [Stack.MakeReplica].
const (
	Postgres Server = "postgres"
	Replica  Server = "replica"
	Elastic  Server = "elastic"
)

// serverLog is the log of a server in its directory.
const serverLog = "server.log"

func (s Server) title() string {
	switch s {
	case Postgres:
		return "PostgreSQL"
	case Replica:
		return "second PostgreSQL"
	case Elastic:
		return "Elasticsearch"
	default:
		return fmt.Sprintf("node %d of Elasticsearch", s.number()+1)
	}
}

// spec is what the guardian starts. An empty home means: not this server. It is an alias, as request:
// package rpc takes no type with a name that is not exported.
type spec = struct {
	Options
	PostgresHome string
	ElasticHome  string
	OpenSearch   bool // what ElasticHome holds
	JavaHome     string
	Account      *account
	DataRoot     string
	Secured      *securedSpec `json:",omitempty"` // in place of that of Options
}

// Operation is what [Stack.Do] does to a server.
type Operation string

// The operations. Each is over when its effect is there.
const (
	// StopServer ends a server in order.
	StopServer Operation = "stop"
	// StopServerImmediately is PostgreSQL's immediate shutdown: clients are cut off at once
	// and the next start recovers. Elasticsearch has no such thing.
	StopServerImmediately Operation = "stop immediately"
	// KillServer kills a server with SIGKILL.
	KillServer Operation = "kill"
	// StartServer starts a server that was stopped, was killed or ended, with its data and
	// at its old URL, until it answers.
	StartServer Operation = "start"
	// Promote makes a replica a primary that takes writes. Whether the old primary still runs is not
	// asked. Nothing waits for a replica of the new one until [Stack.MakeReplica] makes it.
	Promote Operation = "promote"
	// CutOff lets no byte pass between a node of Elasticsearch and the others until Reconnect; clients
	// reach it as before. It takes [Options.Cables].
	CutOff    Operation = "cut off"
	Reconnect Operation = "reconnect"

	opReplica Operation = "make a replica of" // Server becomes a replica of the other one
)

type request = struct {
	Op          Operation
	Server      Server
	Replication Replication
}

// command is what is to be killed with the owner; that without a number is none.
type command = struct {
	PID   int
	Group bool // PID leads a process group of its own
}

// running is a server as it was when it came up last.
type running struct {
	URL string
	PID int
	Dir string
}

const closeBound = 45 * time.Second

// guardianClient is the owner's end of the guardian.
type guardianClient struct {
	cmd      *exec.Cmd
	in       io.WriteCloser // whose end is the guardian's
	out, say io.ReadCloser
	calls    *rpc.Client
	quiet    chan struct{} // closed when the guardian says no more
	done     atomic.Bool   // in is closed

	mu sync.Mutex
	up map[Server]running
}

func startGuardian(ctx context.Context, argv []string, what spec, report *reporter) (*guardianClient, error) {
	g := &guardianClient{cmd: exec.Command(argv[0], argv[1:]...), quiet: make(chan struct{}), up: map[Server]running{}}
	g.cmd.Dir = "/"
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if g.in, err = g.cmd.StdinPipe(); err == nil {
		g.out, err = g.cmd.StdoutPipe()
	}
	if err == nil {
		g.say, err = g.cmd.StderrPipe()
	}
	if err == nil {
		err = g.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("guardian: %w", err)
	}
	g.calls = jsonrpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{g.out, g.in})
	go func() {
		defer close(g.quiet)
		_, _ = io.Copy(report, g.say)
		if !g.done.Load() {
			report.line("the guardian is gone, and the servers with it")
		}
	}()
	report.line("starting %s", strings.Join(wanted(what), " and "))
	err = g.call(ctx, "Start", what)
	switch {
	case err == nil:
		return g, nil
	case errors.Is(err, errGone):
		err = errEndedEarly
	}
	return nil, errors.Join(err, g.close())
}

func wanted(what spec) []string {
	var names []string
	if what.PostgresHome != "" {
		names = append(names, Postgres.title())
	}
	if what.ElasticHome != "" {
		names = append(names, Elastic.title())
	}
	return names
}

// last returns what the guardian has said of a server when it was up; nothing of one of the caller's.
func (g *guardianClient) last(server Server) running {
	if g == nil {
		return running{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.up[server]
}

var (
	errClosed     = errors.New("the stack is closed")
	errGone       = errors.New("the guardian is gone")
	errEndedEarly = errors.New("guardian: ended before the servers were up")
)

// call calls a method of the guardian, which carries out one at a time, also one whose caller has given up.
func (g *guardianClient) call(ctx context.Context, method string, arg any) error {
	if g.done.Load() {
		return errClosed
	}
	var up map[Server]running
	call := g.calls.Go("Guardian."+method, arg, &up, nil)
	select {
	case <-call.Done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if call.Error == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		maps.Copy(g.up, up)
	}
	if _, told := errors.AsType[rpc.ServerError](call.Error); call.Error != nil && !told {
		return errGone
	}
	return call.Error
}

func (g *guardianClient) close() error {
	if g.done.Swap(true) {
		return nil
	}
	_ = g.in.Close()
	late := time.AfterFunc(closeBound, func() { _ = g.cmd.Process.Kill() })
	defer late.Stop()
	<-g.quiet
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	return nil
}

// letGo leaves the guardian to itself; the kernel gives it another parent when this
// process ends.
func (g *guardianClient) letGo() error {
	g.done.Store(true)
	_, _, _ = g.in.Close(), g.out.Close(), g.say.Close()
	<-g.quiet
	return g.cmd.Process.Release()
}
