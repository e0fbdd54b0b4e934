package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The owner writes one spec and then requests to the guardian's standard input, and
// reads events from its standard output; all are JSON lines. End of file on the input
// is the owner's death, unless it has detached.

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

// spec is what the guardian starts. An empty home means: not this server.
type spec struct {
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

	opCommand Operation = "command"           // PID is to be killed with the owner; 0 takes it back
	opDetach  Operation = "detach"            // outlive the owner, described in StateFile
	opReplica Operation = "make a replica of" // Server becomes a replica of the other one
)

type request struct {
	Op        Operation
	Server    Server `json:",omitempty"`
	PID       int    `json:",omitempty"`
	Group     bool   `json:",omitempty"` // PID leads a process group of its own
	StateFile string `json:",omitempty"`

	Replication Replication `json:",omitempty"`
}

type eventKind string

const (
	eventUp     eventKind = "up"     // Server answers at URL
	eventEnded  eventKind = "ended"  // Server ended by itself
	eventReady  eventKind = "ready"  // all that was wanted is up
	eventFailed eventKind = "failed" // nothing is up; the guardian ends
	eventDone   eventKind = "done"   // answers one request of the kinds detach to make a replica of
)

type event struct {
	Kind    eventKind
	Server  Server  `json:",omitempty"`
	URL     string  `json:",omitempty"`
	PID     int     `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
	Dir     string  `json:",omitempty"`
	Error   string  `json:",omitempty"`
}

const closeBound = 45 * time.Second

// guardianClient is the owner's end of the guardian.
type guardianClient struct {
	cmd    *exec.Cmd
	out    io.ReadCloser
	report *reporter
	events chan event // answers: ready, failed, done; closed at the guardian's end
	joined chan struct{}

	askMu sync.Mutex // one request at a time
	owed  int        // answers to requests that were given up, still to come
	in    io.WriteCloser
	done  atomic.Bool // in is closed
	at    string      // the guardian's directory
	mu    sync.Mutex
	up    map[Server]event
}

func startGuardian(ctx context.Context, command []string, what spec, report *reporter) (*guardianClient, error) {
	g := &guardianClient{
		cmd: exec.Command(command[0], command[1:]...), report: report,
		events: make(chan event), joined: make(chan struct{}), up: make(map[Server]event),
	}
	g.cmd.Dir = "/"
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if g.in, err = g.cmd.StdinPipe(); err == nil {
		g.out, err = g.cmd.StdoutPipe()
	}
	if err == nil {
		err = g.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("guardian: %w", err)
	}
	go g.listen()

	report.line("starting %s", strings.Join(wanted(what), " and "))
	if err := g.send(what); err != nil {
		return nil, errors.Join(errEndedEarly, err, g.close())
	}
	select {
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), g.close())
	case e, ok := <-g.events:
		switch {
		case !ok:
			return nil, errors.Join(errEndedEarly, g.close())
		case e.Kind == eventFailed:
			_ = g.close() // it says the same with its exit code
			return nil, errors.New(e.Error)
		}
		g.at = e.Dir
		return g, nil
	}
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

// listen ends when the guardian does, or with letGo.
func (g *guardianClient) listen() {
	defer close(g.joined)
	defer close(g.events)
	decoder := json.NewDecoder(g.out)
	for {
		var e event
		if decoder.Decode(&e) != nil {
			if !g.done.Load() {
				g.report.line("the guardian is gone, and the servers with it")
			}
			return
		}
		switch e.Kind {
		case eventUp:
			g.mu.Lock()
			g.up[e.Server] = e
			g.mu.Unlock()
			g.report.line("%s is up in %.1f s: %s", e.Server.title(), e.Seconds, e.URL)
		case eventEnded:
			g.report.line("%s ended by itself: %s", e.Server.title(), e.Error)
		case eventFailed:
			g.events <- e
			return
		default:
			g.events <- e
		}
	}
}

// last returns what the guardian has said of a server when it was up; nothing of one of the caller's.
func (g *guardianClient) last(server Server) event {
	if g == nil {
		return event{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.up[server]
}

var (
	errClosed     = errors.New("the stack is closed")
	errEndedEarly = errors.New("guardian: ended before the servers were up")
)

func (g *guardianClient) send(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if g.done.Load() {
		return errClosed
	}
	_, err = g.in.Write(append(line, '\n'))
	return err
}

func (g *guardianClient) ask(ctx context.Context, r request) error {
	g.askMu.Lock()
	defer g.askMu.Unlock()
	if err := g.send(r); err != nil {
		return err
	}
	for {
		select {
		case e, ok := <-g.events:
			switch {
			case !ok:
				return errors.New("the guardian is gone")
			case g.owed > 0:
				g.owed--
			case e.Error != "":
				return errors.New(e.Error)
			default:
				return nil
			}
		case <-ctx.Done():
			g.owed++
			return context.Cause(ctx)
		}
	}
}

func (g *guardianClient) closeInput() (first bool) {
	if first = !g.done.Swap(true); first {
		_ = g.in.Close()
	}
	return first
}

func (g *guardianClient) close() error {
	if !g.closeInput() {
		return nil
	}
	late := time.AfterFunc(closeBound, func() { _ = g.cmd.Process.Kill() })
	defer late.Stop()
	for range g.events { // answers that nobody waited for
	}
	<-g.joined
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	return nil
}

// letGo leaves the guardian to itself; the kernel gives it another parent when this
// process ends.
func (g *guardianClient) letGo() error {
	g.closeInput()
	_ = g.out.Close()
	<-g.joined
	return g.cmd.Process.Release()
}
