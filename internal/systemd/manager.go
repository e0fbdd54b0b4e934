package systemd

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

const (
	// startPatience is how much longer the start may take after each sign of life.
	startPatience = 30 * time.Second
	startSigns    = 5 * time.Second
	// stopMargin is the time of a stop beside the drain.
	stopMargin = 10 * time.Second
	longest    = 240 // characters of STATUS
)

// State is the state of the process for the service manager.
type State struct {
	Ready  bool   // able to do its work, or to stand by for it
	Status string // for people
	Parts  []Part
}

// Manager is the way to the service manager. It is safe for concurrent use.
type Manager struct {
	log   *zap.Logger
	send  func(state string) (bool, error)
	every time.Duration // between two feeds; 0: no watchdog

	mu      sync.Mutex
	ready   bool
	status  string
	fed     time.Time // or when the start's timeout was extended
	stalled []string
	mute    bool // the last message could not be sent
}

// New finds the manager in the environment of the process.
func New(log *zap.Logger) *Manager {
	m := &Manager{log: log.Named("systemd"), send: func(s string) (bool, error) { return daemon.SdNotify(false, s) }}
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		m.log.Warn("watchdog not understood, and not fed", zap.String("event", "systemd.watchdog"), zap.Error(err))
	}
	m.every = limit / 4
	return m
}

// None returns a Manager of a process that no service manager runs: it only logs the parts
// that make no progress.
func None(log *zap.Logger) *Manager {
	return &Manager{log: log.Named("systemd"), send: func(string) (bool, error) { return false, nil }}
}

// Tell passes s on, as far as it is news, and feeds the watchdog if s allows it. It is
// to be called several times a second.
func (m *Manager) Tell(s State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.look(s.Parts)
	var words []string
	if s.Ready && !m.ready {
		words = append(words, daemon.SdNotifyReady)
	}
	status := s.Status
	if len(m.stalled) > 0 {
		status = "stalled: " + strings.Join(m.stalled, ", ") + "; " + status
	}
	status = oneLine(status)
	if status != m.status {
		words = append(words, "STATUS="+status)
	}
	now := time.Now()
	feed, pause := daemon.SdNotifyWatchdog, m.every
	if !s.Ready && !m.ready {
		feed, pause = extend(startPatience), startSigns
	}
	due := len(m.stalled) == 0 && pause > 0 && (m.fed.IsZero() || now.Sub(m.fed) >= pause)
	if due {
		words = append(words, feed)
	}
	if len(words) == 0 || !m.say(words...) {
		return
	}
	m.ready, m.status = m.ready || s.Ready, status
	if due {
		m.fed = now
	}
}

// Stopping announces the end of the process, which may take the grace for work in flight.
func (m *Manager) Stopping(grace time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.say(daemon.SdNotifyStopping, extend(grace+stopMargin))
}

// Reload announces that the configuration is read again while f does it.
func (m *Manager) Reload(f func()) {
	m.mu.Lock()
	ready := m.ready
	if ready { // else the end of the reload would pass for the end of the start
		m.say(daemon.SdNotifyReloading, strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
	}
	m.mu.Unlock()
	f()
	if ready {
		m.mu.Lock()
		m.say(daemon.SdNotifyReady)
		m.mu.Unlock()
	}
}

// look updates the list of stalled parts.
func (m *Manager) look(parts []Part) {
	var stalled []string
	for _, p := range parts {
		if !p.stalled() {
			continue
		}
		stalled = append(stalled, p.Name)
		if !slices.Contains(m.stalled, p.Name) {
			m.log.Error("no progress; the watchdog is not fed", zap.String("event", "systemd.stalled"),
				zap.String("part", p.Name), zap.Duration("silent", p.Silent), zap.Duration("limit", p.Limit))
		}
	}
	for _, name := range m.stalled {
		if !slices.Contains(stalled, name) {
			m.log.Info("progress again", zap.String("event", "systemd.progress"), zap.String("part", name))
		}
	}
	m.stalled = stalled
}

// say sends one message, and reports whether it was sent.
func (m *Manager) say(words ...string) bool {
	_, err := m.send(strings.Join(words, "\n"))
	if err != nil && !m.mute {
		m.log.Warn("service manager not reached", zap.String("event", "systemd.mute"), zap.Error(err))
	}
	m.mute = err != nil
	return err == nil
}

func extend(d time.Duration) string { return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds()) }

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > longest {
		return string(r[:longest-1]) + "…"
	}
	return s
}
