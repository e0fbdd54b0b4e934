package watch

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	startBound   = time.Minute
	stopGrace    = 10 * time.Second
	portAttempts = 3
	askBound     = 10 * time.Second
)

// server is a process that answers.
type server struct {
	process *process.Process
	closing sync.Once
	ended   error
}

// launch starts a server on other ports as long as the chosen ones are taken. command
// chooses them, and ready returns no error when the server that was started answers.
func launch(ctx context.Context, name, dir string, env []string, command func() (argv []string, err error), ready func(context.Context) error) (*server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("%w within %v", process.ErrTimeout, startBound))
	defer cancel()
	p, err := process.StartReady(ctx, func() (process.Server, error) {
		argv, err := command()
		return process.Server{Name: name, Dir: dir, Log: filepath.Join(dir, name+".log"), Argv: argv, Env: env, DeathSignal: syscall.SIGKILL}, err
	}, ready, func(try int, reason string) bool {
		return try < portAttempts && strings.Contains(reason, "address already in use")
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &server{process: p}, nil
}

// Close stops the server and returns when it is gone, with an error if it had ended
// before.
func (s *server) Close() error {
	s.closing.Do(func() {
		if s.process.HasEnded() {
			s.ended = s.process.EndedError()
		}
		s.process.Stop(process.Step{Signal: syscall.SIGTERM, Wait: stopGrace})
	})
	return s.ended
}

// Kill ends the server at once, as nobody asked for.
func (s *server) Kill() error {
	_, err := s.process.Signal(syscall.SIGKILL)
	_ = s.process.Err() // the signal
	return err
}

// newHTTP keeps no connection, so that none is taken for a leak.
func newHTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: askBound}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
