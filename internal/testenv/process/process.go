package process

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

const (
	path      = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
	readyPoll = 20 * time.Millisecond
)

// Server says how a server is started.
type Server struct {
	Name string   // in errors
	Dir  string   // where it runs, and its HOME
	Log  string   // the file to which its output is appended
	Argv []string // the program and its arguments
	// Env is added to HOME, PATH and LC_ALL. No other variable of the caller reaches the
	// server: no PG…, JAVA… or OTEL… changes how it runs.
	Env   []string
	As    *syscall.Credential // nil: the caller
	OnEnd func(*Process)      // called once it has ended, unless nil; by [StartReady] only once it was ready
	// DeathSignal is what the kernel sends the server when this process dies; 0 is for one that may
	// outlive it, in a session of its own.
	DeathSignal syscall.Signal
	In          *Network // nil: that of the caller
	Ask         []Step   // how [StartReady] ends one that does not answer, before it kills it
}

// Process is a running server, or one that has ended.
type Process struct {
	name     string
	log      string
	began    int64 // where its part of the log begins
	cmd      *exec.Cmd
	ended    chan struct{}
	err      error       // of Wait; valid after ended
	expected atomic.Bool // it is being stopped
}

// Start starts a server in a process group of its own.
func Start(server Server) (*Process, error) {
	log, err := os.OpenFile(server.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p := &Process{name: server.Name, log: server.Log, cmd: exec.Command(server.Argv[0], server.Argv[1:]...), ended: make(chan struct{})}
	if p.began, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = server.Dir, log, log
	p.cmd.Env = append([]string{"HOME=" + server.Dir, "PATH=" + path, "LC_ALL=C.UTF-8"}, server.Env...)
	p.cmd.SysProcAttr = Attributes(server.As, server.DeathSignal)
	started := make(chan error)
	go p.run(server, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return p, nil
}

// run starts the process and waits for it, on a thread that lasts as long: the kernel sends the
// parent-death signal when the thread that forked ends, not the process.
func (p *Process) run(server Server, started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread, which may be in another network, ends with the goroutine
	err := server.In.enter()
	if err == nil {
		err = p.cmd.Start()
	}
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.ended)
	if server.OnEnd != nil {
		server.OnEnd(p)
	}
}

// ErrTimeout is in the cause of a context whose end [Process.Await] reports with the end
// of the log.
var ErrTimeout = errors.New("does not answer")

// Await polls ready until it returns no error. When the process ends first, or ctx, the
// error says so.
func (p *Process) Await(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		switch {
		case p.HasEnded():
			return p.EndedError()
		case err == nil:
			return nil
		}
		select {
		case <-p.ended:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), ErrTimeout) {
				return fmt.Errorf("%w\n%s", context.Cause(ctx), p.Tail())
			}
			return context.Cause(ctx)
		case <-time.After(readyPoll):
		}
	}
}

// StartReady returns when ready says that the server answers. choose says how it is started, on which
// ports, and is asked once more after a failure as long as again reports that another try may help.
// The process that it returns with an error has ended, or is nil.
func StartReady(ctx context.Context, choose func() (Server, error), ready func(context.Context) error, again func(try int, reason string) bool) (*Process, error) {
	for try := 1; ; try++ {
		server, err := choose()
		if err != nil {
			return nil, err
		}
		var up atomic.Bool
		if end := server.OnEnd; end != nil {
			server.OnEnd = func(p *Process) {
				if up.Load() { // of an end before, the error tells
					end(p)
				}
			}
		}
		p, err := Start(server)
		if err == nil {
			if err = p.Await(ctx, ready); err == nil {
				up.Store(true)
				return p, nil
			}
			p.Stop(server.Ask...)
		}
		if !again(try, err.Error()) {
			return p, err
		}
	}
}

// PID is the number of the process, which is another's some time after its end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Step is a signal and how long it is given to work.
type Step struct {
	Signal syscall.Signal
	Wait   time.Duration
}

// Signal sends sig to the process group and returns the time just before. After SIGKILL and
// SIGTERM the end of the process is expected.
func (p *Process) Signal(sig syscall.Signal) (time.Time, error) {
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		p.expected.Store(true)
	}
	at, err := time.Now(), os.ErrProcessDone // its number may be another's by now
	if !p.HasEnded() {
		err = syscall.Kill(-p.PID(), sig)
	}
	if err != nil {
		return at, fmt.Errorf("signal %v to %s: %w", sig, p.name, err)
	}
	return at, nil
}

// Stop sends the signals, one after the other, until the process has ended. The last
// one goes to the whole group and cannot be refused.
func (p *Process) Stop(steps ...Step) {
	p.expected.Store(true)
	if p.HasEnded() {
		return // its number may be another's by now
	}
	for _, step := range steps {
		_ = p.cmd.Process.Signal(step.Signal)
		select {
		case <-p.ended:
			return
		case <-time.After(step.Wait):
		}
	}
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.ended
}

// Ended is closed when the process has ended and been waited for.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err waits for the end, and is nil for exit status 0.
func (p *Process) Err() error {
	<-p.ended
	return p.err
}

// Expected reports whether a signal of this process has ended it, or is about to.
func (p *Process) Expected() bool { return p.expected.Load() }

// Runs reports whether p was started and has not ended; p may be nil.
func (p *Process) Runs() bool { return p != nil && !p.HasEnded() }

// HasEnded reports whether the process has.
func (p *Process) HasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Ending waits for the end and says how the process ended.
func (p *Process) Ending() string {
	if err := p.Err(); err != nil {
		return err.Error()
	}
	return "exit status 0"
}

// Tail returns the last lines that the process has logged, for an error message.
func (p *Process) Tail() string {
	const limit = 3000
	file, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	from := p.began
	if info, err := file.Stat(); err == nil {
		from = max(from, info.Size()-limit)
	}
	content, _ := io.ReadAll(io.NewSectionReader(file, from, limit))
	return string(bytes.TrimSpace(content))
}

// EndedError waits for the end and says why a server is not up, with the end of its log.
func (p *Process) EndedError() error {
	return fmt.Errorf("%s ended: %s\n%s", p.name, p.Ending(), p.Tail())
}

// Descendants lists the processes under pid, parents first. It may miss some that start
// meanwhile.
func Descendants(pid int) []int {
	children := make(map[int][]int)
	all, _ := procfs.AllProcs()
	for _, p := range all {
		if stat, err := p.Stat(); err == nil {
			children[stat.PPID] = append(children[stat.PPID], p.PID)
		}
	}
	found := slices.Clone(children[pid])
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

// Naming reports whether a running process has text in one of its arguments.
func Naming(text string) bool {
	all, _ := procfs.AllProcs()
	return slices.ContainsFunc(all, func(p procfs.Proc) bool {
		args, _ := p.CmdLine()
		return slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, text) })
	})
}

const (
	lowestPort = 10_240
	portTries  = 50
)

// FreePort returns a loopback port that was free a moment ago. It lies below the ports
// the kernel gives out, where possible: one of those may be taken by any outgoing
// connection before the server binds it. The servers are tried again on another port
// if this one is gone.
func FreePort() (int, error) {
	if first, ok := ephemeralPorts(); ok && first > lowestPort+1000 {
		for range portTries {
			port := lowestPort + rand.IntN(first-lowestPort)
			if bindable(port) {
				return port, nil
			}
		}
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// FreePorts sets several to free ports, each to another one.
func FreePorts(ports ...*int) (err error) {
	taken := map[int]bool{0: true}
	for _, port := range ports {
		for *port = 0; taken[*port]; {
			if *port, err = FreePort(); err != nil {
				return fmt.Errorf("free port: %w", err)
			}
		}
		taken[*port] = true
	}
	return nil
}

func bindable(port int) bool {
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

// pipeGrace is for output that something else still holds open when a program ends.
const pipeGrace = 2 * time.Second

// Tool says how a program of this machine is run to its end.
type Tool struct {
	Dir   string    // where it runs; empty: here
	Env   []string  // on top of Environ
	Stdin io.Reader // nil: nothing

	Environ []string // nil: this process's
}

// Run returns the standard output, also beside an error, which has the command, what it has said on
// standard error and, unless ctx has ended, an [exec.ExitError].
func (t Tool) Run(ctx context.Context, argv ...string) (string, error) {
	runtime.LockOSThread() // the kernel kills the program when the thread that has started it ends
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if t.Environ == nil {
		t.Environ = os.Environ()
	}
	cmd.Dir, cmd.Env, cmd.Stdin = t.Dir, slices.Concat(t.Environ, t.Env), t.Stdin
	cmd.WaitDelay = pipeGrace
	cmd.SysProcAttr = Attributes(nil, syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // its children are in its group
	var out, diagnosis bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnosis
	if err := cmd.Run(); err != nil {
		argv = append([]string{filepath.Base(argv[0])}, argv[1:]...)
		return out.String(), fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), cmp.Or(context.Cause(ctx), err), bytes.TrimSpace(diagnosis.Bytes()))
	}
	return out.String(), nil
}

// goTimeout is for what the go command knows by itself, on a slow machine.
const goTimeout = time.Minute

// Go asks the go command, and returns its answer without the space around it.
func Go(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, goTimeout)
	defer cancel()
	out, err := Tool{}.Run(ctx, append([]string{"go"}, args...)...)
	return strings.TrimSpace(out), err
}
