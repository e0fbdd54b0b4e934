package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	// commandGrace is what a command gets to end after a SIGTERM.
	commandGrace = 10 * time.Second
	// orphanGrace is the same when its owner was killed.
	orphanGrace = 3 * time.Second

	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignalBase    = 128
)

// ExitError is how a command ended, as a shell would say it: its exit code, 128 and the
// signal that killed it, 126 or 127 when it could not be started.
type ExitError struct {
	Code int
	// Err is nil when the command was started; the code says all.
	Err error
}

func (e *ExitError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

func (e *ExitError) Unwrap() error { return e.Err }

// Run runs a command that finds the servers in DATABASE_URL and ELASTIC_URL, with this
// process's standard files, and returns when it has ended: nil for exit code 0, an
// [ExitError] for any other. When ctx is canceled the command gets a SIGTERM, and ten
// seconds later a SIGKILL. When this process is killed, the guardian does the same.
//
// At a terminal the command shares the process group, so Ctrl-C reaches it without help
// and is left to it. Otherwise it leads a group of its own: SIGINT is passed on, and what
// is left of the group is killed when the command has ended.
func (s *Stack) Run(ctx context.Context, argv []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "DATABASE_URL="+s.databaseURL, "ELASTIC_URL="+s.elasticURL)
	ownGroup := !inForeground()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: ownGroup}

	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	defer signal.Stop(interrupts)
	if err := cmd.Start(); err != nil {
		code := exitNotExecutable
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			code = exitNotFound
		}
		return &ExitError{Code: code, Err: fmt.Errorf("command: %w", err)}
	}
	running := command{cmd.Process.Pid, ownGroup}
	s.tell(running)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	canceled, kill := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case <-interrupts:
			if ownGroup {
				signalCommand(running, syscall.SIGINT)
			}
		case <-canceled:
			signalCommand(running, syscall.SIGTERM)
			canceled, kill = nil, time.After(commandGrace)
		case <-kill:
			signalCommand(running, syscall.SIGKILL)
		case err := <-ended:
			if ownGroup {
				signalCommand(running, syscall.SIGKILL)
			}
			s.tell(command{})
			return exitError(err)
		}
	}
}

// tell needs no error: that the guardian is gone has been said by then.
func (s *Stack) tell(c command) {
	if s.guardian != nil {
		_ = s.guardian.call(context.Background(), "Run", c)
	}
}

func exitError(err error) error {
	exit := new(exec.ExitError)
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("command: %w", err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return &ExitError{Code: exitSignalBase + int(status.Signal())}
	}
	return &ExitError{Code: exit.ExitCode()}
}

// inForeground: a terminal is read, and its signals come to this process group.
func inForeground() bool {
	stdin := int(os.Stdin.Fd())
	if !term.IsTerminal(stdin) {
		return false
	}
	group, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// signalCommand reaches the command and what it has started.
func signalCommand(r command, sig syscall.Signal) {
	if r.Group {
		_ = syscall.Kill(-r.PID, sig)
		return
	}
	for _, pid := range append(process.Descendants(r.PID), r.PID) {
		_ = syscall.Kill(pid, sig)
	}
}

// killCommand is for the guardian, whose child the command is not.
func killCommand(r command) {
	if r.PID == 0 {
		return
	}
	signalCommand(r, syscall.SIGTERM)
	for deadline := time.Now().Add(orphanGrace); time.Now().Before(deadline); {
		if startTime(r.PID) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	signalCommand(r, syscall.SIGKILL)
}

// killChildren kills every descendant and waits until none is left or the time is over.
// No exec.Cmd may be waiting at the same time.
func killChildren(bound time.Duration) {
	deadline := time.Now().Add(bound)
	for {
		for _, pid := range process.Descendants(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err == syscall.ECHILD || time.Now().After(deadline) {
				return
			}
			if err != nil || pid <= 0 {
				break
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// startTime tells a process from a later one of the same id; it is 0 when there is none,
// or only a zombie.
func startTime(pid int) uint64 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	stat, err := p.Stat()
	if err != nil || stat.State == "Z" || stat.State == "X" {
		return 0
	}
	return stat.Starttime
}
