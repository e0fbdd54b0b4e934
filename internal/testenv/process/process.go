package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// Spawner starts processes from one thread that lives as long as it does: the kernel
// sends the parent-death signal when the thread that forked ends, not the process.
type Spawner struct {
	calls chan func()
	ended chan struct{}
}

// NewSpawner returns a spawner to be closed when no process of it is wanted any more.
func NewSpawner() *Spawner {
	s := &Spawner{calls: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for call := range s.calls {
			call()
		}
	}()
	return s
}

// Close ends the thread, and the kernel what is left of its processes.
func (s *Spawner) Close() {
	close(s.calls)
	<-s.ended
}

// Process is a running server, or one that has ended.
type Process struct {
	cmd      *exec.Cmd
	ended    chan struct{}
	err      error       // of Wait; valid after ended
	expected atomic.Bool // it is being stopped
}

// Start runs cmd in a process group of its own, to be killed by the kernel with
// deathSignal if this process dies. A nil who is the caller; onEnd, unless nil, is called
// once it has ended.
func (s *Spawner) Start(cmd *exec.Cmd, who *syscall.Credential, deathSignal syscall.Signal, onEnd func(*Process)) (*Process, error) {
	cmd.SysProcAttr = attributes(who, deathSignal)
	errs := make(chan error)
	s.calls <- func() { errs <- cmd.Start() }
	if err := <-errs; err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
		if onEnd != nil {
			onEnd(p)
		}
	}()
	return p, nil
}

// PID is the number of the process, which is another's some time after its end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Step is a signal and how long it is given to work.
type Step struct {
	Signal syscall.Signal
	Wait   time.Duration
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

// Err is nil for exit status 0. It is valid after the end.
func (p *Process) Err() error { return p.err }

// Expected reports whether Stop was called.
func (p *Process) Expected() bool { return p.expected.Load() }

// HasEnded reports whether the process has.
func (p *Process) HasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Ending says how it ended. It is valid after the end.
func (p *Process) Ending() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// Tail returns the last lines of a log file, for an error message.
func Tail(name string) string {
	const limit = 3000
	file, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && info.Size() > limit {
		_, _ = file.Seek(-limit, io.SeekEnd)
	}
	content, _ := io.ReadAll(file)
	return string(bytes.TrimSpace(content))
}

// EndedError says why a server is not up, with the end of its log.
func (p *Process) EndedError(name, log string) error {
	return fmt.Errorf("%s ended: %s\n%s", name, p.Ending(), Tail(log))
}

// Env is all a server sees of the caller's environment, beside more: no PG…, JAVA… or
// OTEL… of the caller's changes how it runs.
func Env(dir string, more ...string) []string {
	env := []string{"HOME=" + dir, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "LC_ALL=C.UTF-8"}
	return append(env, more...)
}
