package nspawn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/procfs"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	bootTimeout = 90 * time.Second // a second or two on an idle machine
	execTimeout = 2 * time.Minute
)

// Machine is a container that was booted. Of its methods only Exec, Write and Show are safe for
// concurrent use.
type Machine struct {
	Name string // also its host name

	dir     string
	console string // file
	groups  []string
	keeper  *keeper

	process *process.Process // systemd-nspawn; nil before the first start
	leader  int              // its PID 1, as this machine counts
}

// Boot makes a machine and boots it; the messages of its boots go to the file console.
func Boot(ctx context.Context, name, console string) (_ *Machine, err error) {
	m := &Machine{Name: name, console: console}
	found, err := findCgroups(procfs.DefaultMountPoint)
	if err != nil {
		return nil, err
	}
	group := fmt.Sprintf("weftlab-%d-%s", os.Getpid(), name)
	m.groups = []string{filepath.Join(found.unified, group)}
	if found.named != "" {
		m.groups = append(m.groups, filepath.Join(found.named, group))
	}
	if m.dir, err = os.MkdirTemp("", "weft-nspawn-"); err != nil {
		return nil, fmt.Errorf("directory of machine %s: %w", name, err)
	}
	if m.keeper, err = startKeeper(m.dir, m.groups...); err != nil {
		return nil, errors.Join(fmt.Errorf("machine %s: %w", name, err), os.Remove(m.dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("machine %s: %w", name, err), m.Close())
		}
	}()
	if err = os.Mkdir(m.groups[0], 0o755); err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	if err = m.prepare(ctx); err != nil {
		return nil, err
	}
	return m, m.Start(ctx)
}

// prepare removes from the copy of this host what is the host's own, and names the machine.
func (m *Machine) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	// The host's enabled services must not start there, and policy-rc.d would keep ours from it.
	_, err := in(ctx, m.keeper.enter(), nil, "sh", "-euc", `
cd "$1"
rm -rf etc/systemd/system etc/systemd/*.conf.d etc/rc?.d usr/sbin/policy-rc.d var/log/journal
mkdir -p etc/systemd/system var/log/journal
echo "$2" >etc/machine-id
echo "$3" >etc/hostname
`, "sh", filepath.Join(m.dir, "root"), strings.ReplaceAll(uuid.NewString(), "-", ""), m.Name)
	return err
}

// Start boots a machine that is off, and returns when it is up.
func (m *Machine) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("machine %s did not come up within %v; see %s", m.Name, bootTimeout, m.console))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// Of the abstract kind: the machine is in our network, and there is no file to remove.
	socket := "@" + filepath.Base(m.dir)
	heard, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("listen to machine %s: %w", m.Name, err)
	}
	defer func() { _ = heard.Close() }()
	defer context.AfterFunc(ctx, func() { _ = heard.SetReadDeadline(time.Unix(1, 0)) })() // wakes the reader
	if err := m.spawn(socket, func(p *process.Process) { end(p.EndedError()) }); err != nil {
		return err
	}
	for message := make([]byte, 4096); ; {
		n, err := heard.Read(message)
		if err != nil {
			err = cmp.Or(context.Cause(ctx), err)
			m.Kill()
			return err
		}
		for line := range strings.Lines(string(message[:n])) {
			line = strings.TrimSpace(line)
			if pid, ok := strings.CutPrefix(line, "X_NSPAWN_LEADER_PID="); ok {
				m.leader, _ = strconv.Atoi(pid)
			}
			if line == "READY=1" && m.leader > 0 {
				return nil
			}
		}
	}
}

// spawn starts systemd-nspawn in the machine's cgroup and mount namespace.
func (m *Machine) spawn(socket string, onEnd func(*process.Process)) (err error) {
	argv := append([]string{"sh", "-euc", `echo 0 >"$1/cgroup.procs"; shift; exec "$@"`, "sh", m.groups[0]}, m.keeper.enter()...)
	argv = append(argv, "systemd-nspawn", "--quiet", "--directory="+filepath.Join(m.dir, "root"),
		"--machine="+m.Name, "--hostname="+m.Name, "--register=no", "--keep-unit", "--notify-ready=yes",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe", "--boot", "systemd.unit=multi-user.target")
	m.leader = 0
	m.process, err = process.Start(process.Server{
		Name: "machine " + m.Name, Dir: "/", Log: m.console, Argv: argv, OnEnd: onEnd,
		Env: environment("NOTIFY_SOCKET="+socket, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1"),
	})
	return err
}

// Up reports whether it runs.
func (m *Machine) Up() bool { return m.process.Runs() && m.leader > 0 }

// inside is the beginning of a command in the machine.
func (m *Machine) inside() []string {
	return []string{"nsenter", "--target=" + strconv.Itoa(m.leader), "--all", "--"}
}

// Exec runs a command in the machine and returns its standard output.
func (m *Machine) Exec(ctx context.Context, argv ...string) (string, error) {
	if !m.Up() {
		return "", fmt.Errorf("%s in %s: the machine is off", argv[0], m.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, execTimeout, fmt.Errorf("not over within %v", execTimeout))
	defer cancel()
	out, err := in(ctx, m.inside(), nil, argv...)
	if err != nil {
		err = fmt.Errorf("in %s: %w", m.Name, err)
	}
	return out, err
}

// Write writes a file of the machine, which is up.
func (m *Machine) Write(ctx context.Context, path string, mode os.FileMode, content io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	_, err := in(ctx, m.inside(), content, "sh", "-euc", `umask 077; cat >"$1"; chmod "$2" "$1"`, "sh", path, strconv.FormatUint(uint64(mode.Perm()), 8))
	return rig.Wrap(fmt.Sprintf("write %s in %s", path, m.Name), err)
}

// Show returns properties of a unit as systemctl shows them.
func (m *Machine) Show(ctx context.Context, unit string, properties ...string) (map[string]string, error) {
	out, err := m.Exec(ctx, "systemctl", "show", "--property="+strings.Join(properties, ","), unit)
	if err != nil {
		return nil, err
	}
	shown := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		shown[name] = value
	}
	return shown, nil
}

// Processes returns those of a unit, as this machine counts.
func (m *Machine) Processes(ctx context.Context, unit string) ([]int, error) {
	shown, err := m.Show(ctx, unit, "ControlGroup")
	if err != nil {
		return nil, err
	}
	if shown["ControlGroup"] == "" {
		return nil, fmt.Errorf("processes of %s in %s: none", unit, m.Name)
	}
	text, err := os.ReadFile(filepath.Join(m.groups[0], "payload", shown["ControlGroup"], "cgroup.procs"))
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		pid, bad := strconv.Atoi(field)
		pids, err = append(pids, pid), errors.Join(err, bad)
	}
	return pids, rig.Wrap(fmt.Sprintf("processes of %s in %s", unit, m.Name), err)
}

// PowerOff shuts the machine down in order, and returns when it is off.
func (m *Machine) PowerOff(ctx context.Context) error {
	if _, err := m.Exec(ctx, "systemctl", "--no-block", "poweroff"); err != nil && m.Up() {
		return err
	}
	select {
	case <-m.process.Ended():
		return m.empty(ctx)
	case <-ctx.Done():
		return fmt.Errorf("shut down %s: %w", m.Name, context.Cause(ctx))
	case <-time.After(bootTimeout):
		return fmt.Errorf("machine %s did not shut down within %v", m.Name, bootTimeout)
	}
}

// Cut stops every process of the machine where it is, for good: none ends, closes a
// connection or says a word. [Machine.Kill] comes next.
func (m *Machine) Cut() error {
	return rig.Wrap(fmt.Sprintf("cut %s off", m.Name), os.WriteFile(filepath.Join(m.groups[0], "cgroup.freeze"), []byte("1"), 0o644))
}

// Kill ends all processes of the machine at once. What it has written is still there
// when it starts again.
func (m *Machine) Kill() {
	if m.process == nil {
		return
	}
	_ = os.WriteFile(filepath.Join(m.groups[0], "cgroup.kill"), []byte("1"), 0o644)
	_ = os.WriteFile(filepath.Join(m.groups[0], "cgroup.freeze"), []byte("0"), 0o644)
	<-m.process.Ended()
	_ = m.empty(context.Background()) // the next start says so
}

// empty waits until the last process is gone, which may be a moment after the first.
func (m *Machine) empty(ctx context.Context) error {
	return rig.Await(ctx, checkTimeout, 5*time.Millisecond, "end of the processes of "+m.Name, func(context.Context) error {
		events, err := os.ReadFile(filepath.Join(m.groups[0], "cgroup.events"))
		if err == nil && !strings.Contains(string(events), "populated 0") {
			return errors.New("some remain")
		}
		return nil // without a group there is no process
	})
}

// Close ends the machine and removes everything of it.
func (m *Machine) Close() error {
	m.Kill()
	return m.keeper.close()
}
