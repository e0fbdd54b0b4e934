package stack

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

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
		return nil, false, err
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
