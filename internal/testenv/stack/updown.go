package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
		return nil, false, err
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
		err = errors.New("state: it ended at once")
	}
	return state, err == nil, err
}

// Down stops the stack that stateFile describes, and reports false if there is none.
func Down(ctx context.Context, stateFile string) (stopped bool, err error) {
	file, unlock, err := lockState(ctx, newReporter(nil), stateFile)
	if err != nil {
		return false, err
	}
	defer unlock()
	state, stale, err := readState(file)
	switch {
	case stale:
		return false, os.Remove(file)
	case err != nil || state == nil:
		return false, err
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
	return state, err
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

// State describes a stack that was left running ([Stack.Detach]).
type State struct {
	Guardian  ProcessID      `json:"guardian"`
	Dir       string         `json:"dir"`
	StartedAt time.Time      `json:"started_at"`
	Postgres  *RunningServer `json:"postgres,omitempty"` // nil: not started by the stack
	Elastic   *RunningServer `json:"elastic,omitempty"`

	ElasticOthers []*RunningServer `json:"elastic_others,omitempty"` // nodes of the same cluster
}

// RunningServer is one server of a [State].
type RunningServer struct {
	URL     string    `json:"url"`
	Process ProcessID `json:"process"`
}

// ProcessID tells a process from a later one with the same number.
type ProcessID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // kernel ticks after boot
}

// ElasticURL names all nodes, separated by commas; it is empty where none was started.
func (s *State) ElasticURL() string {
	if s.Elastic == nil {
		return ""
	}
	urls := []string{s.Elastic.URL}
	for _, other := range s.ElasticOthers {
		urls = append(urls, other.URL)
	}
	return strings.Join(urls, ",")
}

func identify(pid int) ProcessID { return ProcessID{PID: pid, Start: startTime(pid)} }

// Alive reports whether this very process still runs.
func (p ProcessID) Alive() bool { return p.Start != 0 && startTime(p.PID) == p.Start }

// readState returns nil when there is no state or its guardian is dead (stale).
func readState(name string) (state *State, stale bool, err error) {
	content, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("state: %w", err)
	}
	state = new(State)
	if json.Unmarshal(content, state) != nil || !state.Guardian.Alive() {
		return nil, true, nil
	}
	return state, false, nil
}

func (s *State) write(name string) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	unnamed := name + ".new"
	if err := os.WriteFile(unnamed, append(content, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(unnamed, name)
}

// remove leaves a file alone that describes another stack by now.
func (s *State) remove(name string) {
	if now, _, err := readState(name); err == nil && now != nil && now.Guardian == s.Guardian {
		_ = os.Remove(name)
	}
}
