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
	in, err := g.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guardian: %w", err)
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("guardian: %w", err)
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("guardian: %w", err)
	}
	g.in, g.out = in, out
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
