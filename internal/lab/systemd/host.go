package systemd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/nspawn"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

const service = "weft.service"

// host is one of the two machines.
type host struct {
	*nspawn.Machine
	ports map[string]int // of metrics, by unit: the machines share one address
}

// state is a unit as systemd knows it.
type state struct {
	Active, Sub, Result, Status, Invocation string
	PID, Restarts, Exit                     int
	Exited                                  bool // by itself, with Exit
}

func (s state) String() string {
	return fmt.Sprintf("%s (%s), result %s, %d restarts, %q", s.Active, s.Sub, s.Result, s.Restarts, s.Status)
}

func (h *host) state(ctx context.Context, unit string) (state, error) {
	p, err := h.Show(ctx, unit, "ActiveState", "SubState", "Result", "StatusText", "InvocationID", "MainPID", "NRestarts", "ExecMainStatus", "ExecMainCode")
	if err != nil {
		return state{}, err
	}
	var errs []error
	number := func(name string) int {
		n, err := strconv.Atoi(p[name])
		errs = append(errs, err)
		return n
	}
	s := state{
		Active: p["ActiveState"], Sub: p["SubState"], Result: p["Result"], Status: p["StatusText"], Invocation: p["InvocationID"],
		PID: number("MainPID"), Restarts: number("NRestarts"), Exit: number("ExecMainStatus"), Exited: p["ExecMainCode"] == "1", // CLD_EXITED
	}
	return s, rig.Wrap(fmt.Sprintf("properties of %s in %s", unit, h.Name), errors.Join(errs...))
}

// signal sends a signal to the process of a unit, and returns the time just before.
func (h *host) signal(ctx context.Context, unit string, sig syscall.Signal) (time.Time, error) {
	pids, err := h.Processes(ctx, unit)
	if err != nil {
		return time.Time{}, err
	}
	at := time.Now()
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil {
			return at, fmt.Errorf("signal %v to %s in %s: %w", sig, unit, h.Name, err)
		}
	}
	return at, nil
}

// install brings a package into the machine and has apt install it.
func (h *host) install(ctx context.Context, deb string) error {
	f, err := os.Open(deb)
	if err != nil {
		return fmt.Errorf("package: %w", err)
	}
	defer f.Close()
	inside := "/root/" + filepath.Base(deb)
	if err := h.Write(ctx, inside, 0o644, f); err != nil {
		return err
	}
	_, err = h.Exec(ctx, "apt-get", "install", "--yes", "--no-install-recommends", inside)
	return err
}

type line struct {
	Priority string `json:"PRIORITY"`
	Message  string `json:"MESSAGE"`
	Kind     string `json:"_TRANSPORT"` // stdout: of the process itself
}

// journal returns what the journal has of a unit: of the process and of systemd about it.
// matches narrow it down.
func (h *host) journal(ctx context.Context, unit string, matches ...string) ([]line, error) {
	out, err := h.Exec(ctx, append([]string{"journalctl", "--quiet", "--output=json", "--output-fields=PRIORITY,MESSAGE,_TRANSPORT", "--unit=" + unit}, matches...)...)
	if err != nil {
		return nil, err
	}
	return parseJournal(out)
}

func parseJournal(text string) ([]line, error) {
	var lines []line
	for entry := range strings.Lines(text) {
		var l line
		// A message that is no text is a list of numbers: nothing of ours.
		if err := json.Unmarshal([]byte(entry), &l); err != nil && !errors.As(err, new(*json.UnmarshalTypeError)) {
			return nil, fmt.Errorf("journal: %w", err)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

func contains(lines []line, text string) bool {
	return slices.ContainsFunc(lines, func(l line) bool { return strings.Contains(l.Message, text) })
}

// misjudged returns the first line of weft's that the journal keeps under another
// priority than its level, and how many lines it has looked at.
func misjudged(lines []line) (looked int, bad string) {
	for _, l := range lines {
		var own struct {
			Level string `json:"level"`
		}
		if l.Kind != "stdout" || json.Unmarshal([]byte(l.Message), &own) != nil || own.Level == "" {
			continue
		}
		looked++
		want := map[string]string{"debug": "7", "info": "6", "warn": "4", "error": "3"}[own.Level]
		if l.Priority != want && bad == "" {
			bad = fmt.Sprintf("priority %s, want %s: %s", l.Priority, want, l.Message)
		}
	}
	return looked, bad
}

const (
	// bound is for what takes seconds on an idle machine.
	bound       = 2 * time.Minute
	unitPoll    = 100 * time.Millisecond
	calmBacklog = 200 // events that are in flight or could be
)

// await polls until check returns nil. A look at a unit starts two processes.
func (r *run) await(what string, check func(context.Context) error) {
	r.Must(rig.Await(r.Ctx, bound, unitPoll, what, check))
}

// pair is who leads and who stands by.
type pair struct {
	leader, standby *host
	epoch           int64
}

// well returns the pair when unit is active on both machines, one leading, the other
// standing by. The names of weft's instances are those of the hosts, with suffix.
func (r *run) well(ctx context.Context, unit, suffix string) (p pair, err error) {
	l, err := r.Leader(ctx)
	if err != nil {
		return p, err
	}
	if l.Released {
		return p, errors.New("nobody leads")
	}
	p.epoch = l.Epoch
	for _, h := range r.hosts {
		if !h.Up() {
			return p, fmt.Errorf("machine %s is off", h.Name)
		}
		s, err := h.state(ctx, unit)
		if err != nil {
			return p, err
		}
		leads := l.Instance == h.Name+suffix
		if s.Active != "active" || strings.HasPrefix(s.Status, "leader") != leads || strings.HasPrefix(s.Status, "standby") == leads {
			return p, fmt.Errorf("%s on %s is %v", unit, h.Name, s)
		}
		if leads {
			p.leader = h
		} else {
			p.standby = h
		}
	}
	if p.leader == nil {
		return p, fmt.Errorf("%s leads, which is none of the pair", l.Instance)
	}
	return p, nil
}

func (r *run) back() (p pair) {
	r.await("well pair", func(ctx context.Context) (err error) {
		p, err = r.well(ctx, service, "")
		return err
	})
	return p
}

// calm waits until the pair is well, its term is not just beginning, and the outbox is
// close behind the producer.
func (r *run) calm() (p pair) {
	r.await("calm", func(ctx context.Context) (err error) {
		if p, err = r.well(ctx, service, ""); err != nil {
			return err
		}
		l, err := r.Leader(ctx)
		if err == nil {
			err = l.Rested()
		}
		if err != nil {
			return err
		}
		return r.Abreast(ctx, calmBacklog)
	})
	r.settles(p.epoch)
	return p
}

// awaitState waits until a machine's weft.service is as it has to be.
func (r *run) awaitState(h *host, what string, want func(state) bool) (s state) {
	r.await(what, func(ctx context.Context) (err error) {
		s, err = h.state(ctx, service)
		return rig.Want(err, want(s), "%s on %s is %v", service, h.Name, s)
	})
	return s
}
