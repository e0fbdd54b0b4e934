//go:build debian

package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// possible skips a test only where no package would help.
func possible(t *testing.T) {
	t.Helper()
	if err := Check(t.Context()); errors.Is(err, ErrImpossible) {
		t.Skipf("no machine can be booted: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// boot boots a machine that is closed with the test.
func boot(t *testing.T, name string) *Machine {
	t.Helper()
	possible(t)
	m, err := Boot(t.Context(), name, filepath.Join(t.TempDir(), "console"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func command(t *testing.T, m *Machine, argv ...string) string {
	t.Helper()
	out, err := m.Exec(t.Context(), argv...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

const unit = `[Service]
Type=notify
ExecStart=/bin/sh -c 'echo "<4>here I am"; systemd-notify --ready; exec sleep infinity'
NotifyAccess=all
`

func TestMachine(t *testing.T) {
	t.Parallel()
	m := boot(t, "alone")
	if got := command(t, m, "hostname"); got != "alone" {
		t.Errorf("host name: got %q, want alone", got)
	}
	if got := command(t, m, "ps", "-p", "1", "-o", "comm="); got != "systemd" {
		t.Errorf("PID 1: got %q, want systemd", got)
	}
	if err := m.Write(t.Context(), "/etc/systemd/system/here.service", 0o644, strings.NewReader(unit)); err != nil {
		t.Fatal(err)
	}
	command(t, m, "systemctl", "start", "here.service")
	shown, err := m.Show(t.Context(), "here.service", "ActiveState", "MainPID", "NRestarts")
	if err != nil || shown["ActiveState"] != "active" || shown["MainPID"] == "0" || shown["NRestarts"] != "0" {
		t.Errorf("unit: got %v, %v, want it active", shown, err)
	}
	if pids, err := m.Processes(t.Context(), "here.service"); err != nil || len(pids) != 1 {
		t.Errorf("processes of the unit: got %v, %v, want one", pids, err)
	} else if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pids[0])); err != nil || string(line) != "sleep\x00infinity\x00" {
		t.Errorf("its process: got %q, %v", line, err)
	}
	if pids, err := m.Processes(t.Context(), "nobody.service"); err == nil {
		t.Errorf("processes of no unit: got %v", pids)
	}
	if got := command(t, m, "systemctl", "list-units", "--failed", "--plain", "--no-legend"); got != "" {
		t.Errorf("units that failed at boot: got %q", got)
	}
	if got := command(t, m, "journalctl", "--quiet", "--unit=here", "--priority=warning", "--output=cat"); got != "here I am" {
		t.Errorf("journal: got %q, want what the unit has said", got)
	}
	if _, err := os.Stat("/etc/systemd/system/here.service"); !os.IsNotExist(err) {
		t.Errorf("file of the machine here: got %v, want that it is not", err)
	}
	if _, err := m.Exec(t.Context(), "sh", "-c", "echo so; echo and so >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "in alone: ") || !strings.Contains(err.Error(), "and so") {
		t.Errorf("command that fails: got %v", err)
	}

	// What was written outlives both kinds of end.
	if err := m.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Exec(t.Context(), "true"); err == nil || !strings.Contains(err.Error(), "the machine is off") {
		t.Errorf("command in a machine that is off: got %v", err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if shown, err := m.Show(t.Context(), "here.service", "LoadState", "ActiveState"); err != nil || shown["LoadState"] != "loaded" || shown["ActiveState"] != "inactive" {
		t.Errorf("unit after another boot: got %v, %v, want it known and not started", shown, err)
	}
	command(t, m, "systemctl", "start", "here.service")
	if err := m.Cut(); err != nil {
		t.Fatal(err)
	}
	m.Kill()
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := command(t, m, "cat", "/etc/systemd/system/here.service"); got != strings.TrimSpace(unit) {
		t.Errorf("file after the power was gone: got %q", got)
	}
}

// Whatever way a machine ends, nothing of it is left.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Machine) error{
		"closed": (*Machine).Close,
		"owner-is-gone": func(m *Machine) error { // as the kernel closes the pipe of a process that dies
			return m.keeper.close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := boot(t, name)
			leader := m.leader
			if err := end(m); err != nil {
				t.Fatal(err)
			}
			for _, path := range append([]string{m.dir}, m.groups...) {
				if _, err := os.Stat(path); !os.IsNotExist(err) {
					t.Errorf("%s: got %v, want that it is gone", path, err)
				}
			}
			// One that nobody has waited for yet has no command line.
			if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", leader)); err == nil && len(line) > 0 {
				t.Errorf("PID 1 of the machine still runs: %q", line)
			}
			text, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil || strings.Contains(string(text), m.dir) {
				t.Errorf("mounts: got %v, want none of %s", err, m.dir)
			}
		})
	}
}

func TestBootIsInterrupted(t *testing.T) {
	t.Parallel()
	possible(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	m, err := Boot(ctx, "never", filepath.Join(t.TempDir(), "console"))
	if m != nil || !errors.Is(err, cause) {
		t.Errorf("got %v, %v, want the cause of the end", m, err)
	}
}
