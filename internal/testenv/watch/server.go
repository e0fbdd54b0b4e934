package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	startBound   = time.Minute
	stopGrace    = 10 * time.Second
	readyPoll    = 50 * time.Millisecond
	portAttempts = 3
)

var errTimeout = errors.New("does not answer")

// server is a process that answers.
type server struct {
	name    string
	log     string
	process *process.Process
	spawner *process.Spawner
	closing sync.Once
	ended   error
}

// launch starts a server on other ports as long as the chosen ones are taken. command
// chooses them, and ready reports whether the one that was started answers.
func launch(ctx context.Context, name, dir string, command func() (*exec.Cmd, error), ready func(context.Context) error) (*server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("%w within %v", errTimeout, startBound))
	defer cancel()
	s := &server{name: name, log: filepath.Join(dir, name+".log")}
	for attempt := 1; ; attempt++ {
		err := s.start(ctx, command, ready)
		if err == nil {
			return s, nil
		}
		if attempt == portAttempts || !strings.Contains(err.Error(), "address already in use") {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
	}
}

func (s *server) start(ctx context.Context, command func() (*exec.Cmd, error), ready func(context.Context) error) error {
	cmd, err := command()
	if err != nil {
		return err
	}
	log, err := os.Create(s.log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir = filepath.Dir(s.log)
	cmd.Env = append(process.Env(cmd.Dir), cmd.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	s.spawner = process.NewSpawner()
	if s.process, err = s.spawner.Start(cmd, nil, syscall.SIGKILL, nil); err != nil {
		s.spawner.Close()
		return err
	}
	if err := s.await(ctx, ready); err != nil {
		s.process.Stop()
		s.spawner.Close()
		return err
	}
	return nil
}

func (s *server) await(ctx context.Context, ready func(context.Context) error) error {
	last := errTimeout
	for {
		err := ready(ctx)
		select {
		case <-s.process.Ended():
			return s.process.EndedError(s.name, s.log)
		default:
		}
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-s.process.Ended():
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)\n%s", context.Cause(ctx), last, process.Tail(s.log))
		case <-time.After(readyPoll):
		}
	}
}

// Close stops the server and returns when it is gone, with an error if it had ended
// before.
func (s *server) Close() error {
	s.closing.Do(func() {
		if s.process.HasEnded() {
			s.ended = s.process.EndedError(s.name, s.log)
		}
		s.process.Stop(process.Step{Signal: syscall.SIGTERM, Wait: stopGrace})
		s.spawner.Close()
	})
	return s.ended
}

// Kill ends the server at once, as nobody asked for.
func (s *server) Kill() error {
	if err := syscall.Kill(s.process.PID(), syscall.SIGKILL); err != nil {
		return err
	}
	<-s.process.Ended()
	return nil
}
