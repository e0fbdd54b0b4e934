package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Up returns the stack that stateFile describes, or starts one and leaves it running;
// started says which. One that has lost a server is replaced. Only one Up or Down of a
// state file runs at a time. For Up, Down and Status an empty stateFile is the user's.
func Up(ctx context.Context, opts Options, stateFile string) (state *State, started bool, err error) {
	report := newReporter(opts.Progress)
	file, unlock, err := lockState(ctx, report, stateFile)
	if err != nil {
		return nil, false, err
	}
	defer unlock()

	state, stale, err := readState(file)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("state: %w", err)
	case stale:
		report.line("the stack in %s is gone: starting another", file)
	case state != nil && state.whole():
		return state, false, nil
	case state != nil:
		report.line("a server of the running stack has ended: replacing the stack")
		if err := state.stop(ctx); err != nil {
			return nil, false, err
		}
	}

	s, err := Start(ctx, opts)
	if err != nil {
		return nil, false, err
	}
	if s.guardian == nil {
		return nil, false, errors.New("DATABASE_URL and ELASTIC_URL are both set: there is nothing to start")
	}
	if err := s.Detach(ctx, file); err != nil {
		return nil, false, errors.Join(err, s.Close())
	}
	state, _, err = readState(file)
	if err == nil && state == nil {
		err = errors.New("it ended at once")
	}
	if err != nil {
		return nil, false, fmt.Errorf("state: %w", err)
	}
	return state, true, nil
}

// Down stops the stack that stateFile describes, and reports false if there is none.
func Down(ctx context.Context, stateFile string) (stopped bool, err error) {
	file, unlock, err := lockState(ctx, newReporter(nil), stateFile)
	if err != nil {
		return false, err
	}
	defer unlock()
	state, stale, err := readState(file)
	if err != nil {
		return false, fmt.Errorf("state: %w", err)
	}
	if stale {
		return false, os.Remove(file)
	}
	if state == nil {
		return false, nil
	}
	return true, state.stop(ctx)
}

// Status returns the stack that stateFile describes, or nil if none runs.
func Status(stateFile string) (*State, error) {
	file, err := stateFileOr(stateFile)
	if err != nil {
		return nil, err
	}
	state, _, err := readState(file)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return state, nil
}

func lockState(ctx context.Context, report *reporter, given string) (file string, unlock func(), err error) {
	file, err = stateFileOr(given)
	if err != nil {
		return "", nil, err
	}
	if err := makeReadable(filepath.Dir(file)); err != nil {
		return "", nil, fmt.Errorf("directory of the state: %w", err)
	}
	waiting := func() { report.line("waiting for another up or down") }
	unlock, err = lockFile(ctx, file+".lock", waiting)
	if err != nil {
		return "", nil, fmt.Errorf("lock of the state: %w", err)
	}
	return file, unlock, nil
}

// whole reports whether every server of it runs.
func (s *State) whole() bool {
	for _, server := range append([]*RunningServer{s.Postgres, s.Elastic}, s.ElasticOthers...) {
		if server != nil && !server.Process.Alive() {
			return false
		}
	}
	return s.Guardian.Alive()
}

func (s *State) stop(ctx context.Context) error {
	if err := syscall.Kill(s.Guardian.PID, syscall.SIGTERM); err != nil && s.Guardian.Alive() {
		return fmt.Errorf("stop the stack: %w", err)
	}
	bound := time.After(closeBound)
	for s.Guardian.Alive() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-bound:
			_ = syscall.Kill(s.Guardian.PID, syscall.SIGKILL)
			return fmt.Errorf("stop the stack: killed its guardian (process %d), which had not ended in %v", s.Guardian.PID, closeBound)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
