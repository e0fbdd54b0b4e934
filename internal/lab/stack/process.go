package stack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// spawner starts processes from one thread that lives as long as it does: the kernel
// sends the parent-death signal when the thread that forked ends, not the process.
type spawner struct {
	calls chan func()
	ended chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{calls: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for call := range s.calls {
			call()
		}
	}()
	return s
}

func (s *spawner) close() {
	close(s.calls)
	<-s.ended
}

// process is a running server, or one that has ended.
type process struct {
	cmd      *exec.Cmd
	ended    chan struct{} // closed when it has been waited for
	err      error         // of Wait; valid after ended
	expected atomic.Bool   // it is being stopped
}

// start runs cmd in a process group of its own, to be killed by the kernel with
// deathSignal if the guardian dies. onEnd is called once it has ended.
func (s *spawner) start(cmd *exec.Cmd, who *account, deathSignal syscall.Signal, onEnd func(*process)) (*process, error) {
	cmd.SysProcAttr = guardedAttributes(who.credential(), deathSignal)
	errs := make(chan error)
	s.calls <- func() { errs <- cmd.Start() }
	if err := <-errs; err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
		if onEnd != nil {
			onEnd(p)
		}
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stopStep is a signal and how long it is given to work.
type stopStep struct {
	signal syscall.Signal
	wait   time.Duration
}

// stop sends the signals, one after the other, until the process has ended. The last
// one goes to the whole group and cannot be refused.
func (p *process) stop(steps ...stopStep) {
	p.expected.Store(true)
	if p.hasEnded() {
		return // its number may be another's by now
	}
	for _, step := range steps {
		_ = p.cmd.Process.Signal(step.signal)
		select {
		case <-p.ended:
			return
		case <-time.After(step.wait):
		}
	}
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.ended
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) ending() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// tail returns the last lines of a log file, for an error message.
func tail(name string) string {
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

// errEnded says why a server is not up, with the end of its log.
func errEnded(name, log, ending string) error {
	return fmt.Errorf("%s ended: %s\n%s", name, ending, tail(log))
}

var errTimeout = errors.New("does not answer")
