package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	pollPeriod = 10 * time.Millisecond
	stopGrace  = 15 * time.Second
	logTail    = 1500
)

// command says how a program is started.
type command struct {
	name, dir, log string
	argv, env      []string
	as             *syscall.Credential
}

// program is a running process, the leader of its group, or one that has ended.
type program struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
}

// start starts a program. The main goroutine calls it, on a thread that ends with this process:
// the kernel then kills the program.
func start(c command) (*program, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &program{name: c.name, log: c.log, cmd: exec.Command(c.argv[0], c.argv[1:]...), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = c.dir, log, log
	p.cmd.Env = append(os.Environ(), c.env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: c.as}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	go func() {
		_ = p.cmd.Wait() // what matters is that it has ended, not how
		close(p.ended)
	}()
	return p, nil
}

// signal signals the whole group, and returns the time just before.
func (p *program) signal(s syscall.Signal) (time.Time, error) {
	at := time.Now()
	return at, syscall.Kill(-p.cmd.Process.Pid, s)
}

func (p *program) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stop ends a program, frozen or not: with s, and after a grace with SIGKILL.
func (p *program) stop(s syscall.Signal) error {
	if p == nil || p.hasEnded() {
		return nil
	}
	for _, signal := range []syscall.Signal{s, syscall.SIGCONT} {
		if _, err := p.signal(signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopGrace):
	}
	if _, err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	<-p.ended
	return nil
}

// tail returns the end of the program's log.
func (p *program) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTail):])
}

// run runs a command to its end.
func run(ctx context.Context, dir string, env []string, argv ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	text := strings.TrimSpace(out.String())
	if err != nil {
		return text, fmt.Errorf("%s: %w: %s", strings.Join(argv[:min(3, len(argv))], " "), err, text[max(0, len(text)-logTail):])
	}
	return text, nil
}

// await polls until done returns true. It fails when done fails, when ctx ends, and after bound.
func await(ctx context.Context, bound time.Duration, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%s: not within %v", what, bound))
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := pause(ctx, pollPeriod); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
