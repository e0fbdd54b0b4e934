package nspawn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// mounts makes the root of a machine, $1/root: this machine's files, and what is written
// to them in memory.
const mounts = `
mount -t tmpfs -o size=2g,mode=0755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
`

// keep is the keeper's script: $1 is the directory, the others are cgroups. It ends when
// its standard input does.
const keep = mounts + `
echo ready
cat >/dev/null || true
dir=$1
shift
for group; do
	[ ! -e "$group/cgroup.kill" ] || echo 1 >"$group/cgroup.kill"
	tries=0
	until find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || [ ! -e "$group" ]; do
		tries=$((tries + 1))
		[ $tries -lt 200 ] || { echo "cgroup $group is still in use" >&2; break; }
		sleep 0.05
	done
done
umount "$dir/root" && umount "$dir" && rmdir "$dir"
`

// keeper holds the mounts of a machine and cleans up after it.
type keeper struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  bytes.Buffer // on standard error; valid after the end
	once  sync.Once
	err   error
}

// startKeeper returns when the mounts are there.
func startKeeper(dir string, groups ...string) (*keeper, error) {
	k := &keeper{}
	k.cmd = exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "--", "sh", "-euc", keep, "sh", dir}, groups...)...)
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	k.cmd.Dir, k.cmd.Env = "/", environment()
	k.cmd.Stderr = &k.said
	var out io.Reader
	var err error
	if k.stdin, err = k.cmd.StdinPipe(); err == nil {
		out, err = k.cmd.StdoutPipe()
	}
	if err == nil {
		err = k.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		err := k.close()
		return nil, fmt.Errorf("keeper: overlay not mounted: %w", err)
	}
	return k, nil
}

// enter is the beginning of a command that is to see the mounts.
func (k *keeper) enter() []string {
	return []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", k.cmd.Process.Pid), "--"}
}

// close returns when nothing of the machine is left.
func (k *keeper) close() error {
	k.once.Do(func() {
		_ = k.stdin.Close()
		k.err = k.cmd.Wait()
		if said := strings.TrimSpace(k.said.String()); said != "" {
			k.err = errors.Join(k.err, errors.New(said))
		}
		if k.err != nil {
			k.err = fmt.Errorf("clean up: %w", k.err)
		}
	})
	return k.err
}

// environment is all that a machine's commands see of the caller's.
func environment(more ...string) []string {
	return append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}, more...)
}

// in runs a command with a namespace's view and returns what it says on standard output.
func in(ctx context.Context, prefix []string, stdin io.Reader, argv ...string) (string, error) {
	return process.Tool{Dir: "/", Environ: environment(), Stdin: stdin}.Run(ctx, append(prefix, argv...)...)
}

// ErrImpossible is in the error of [Check] when no package helps: not root, or a kernel
// or container that does not allow mounts and cgroups.
var ErrImpossible = errors.New("this machine cannot run systemd-nspawn")

// checkTimeout is for commands that take milliseconds.
const checkTimeout = 20 * time.Second

// Packages are Debian's packages that [Boot] needs.
func Packages() []string { return []string{"systemd", "systemd-container", "dbus", "util-linux"} }

// Check returns nil when machines can be booted here.
func Check(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it takes root", ErrImpossible)
	}
	found, err := findCgroups(procfs.DefaultMountPoint)
	if err != nil {
		return err
	}
	group, err := os.MkdirTemp(found.unified, "weftlab-check-")
	if err == nil {
		err = os.Remove(group)
	}
	if err != nil {
		return fmt.Errorf("%w: a cgroup cannot be made: %w", ErrImpossible, err)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for _, p := range []struct{ file, pkg string }{
		{"unshare", "util-linux"}, {"nsenter", "util-linux"}, {"systemd-nspawn", "systemd-container"},
		{"/lib/systemd/systemd", "systemd"}, {"dbus-daemon", "dbus"},
	} {
		if _, err := exec.LookPath(p.file); err != nil {
			return fmt.Errorf("%s is missing: apt-get install %s", filepath.Base(p.file), p.pkg)
		}
	}
	dir, err := os.MkdirTemp("", "weft-nspawn-")
	if err != nil {
		return fmt.Errorf("directory for a machine: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	_, err = process.Tool{}.Run(ctx, "unshare", "--mount", "--propagation", "private", "--", "sh", "-euc", mounts+"test -x \"$1/root/bin/sh\"", "sh", dir)
	if err != nil {
		return fmt.Errorf("%w: an overlay of / cannot be mounted: %w", ErrImpossible, err)
	}
	return nil
}

// cgroups are the hierarchies that matter: the one of cgroup2, and in the hybrid layout
// the named one beside it, which systemd keeps in step.
type cgroups struct{ unified, named string }

func findCgroups(proc string) (found cgroups, err error) {
	fs, err := procfs.NewFS(proc)
	var mounts []*procfs.MountInfo
	if err == nil {
		mounts, err = fs.GetMounts()
	}
	if err != nil {
		return cgroups{}, fmt.Errorf("%w: %w", ErrImpossible, err)
	}
	for _, m := range mounts {
		switch {
		case m.FSType == "cgroup2" && found.unified == "":
			found.unified = m.MountPoint
		case m.FSType == "cgroup" && m.SuperOptions["name"] == "systemd":
			found.named = m.MountPoint
		}
	}
	if found.unified == "" {
		return cgroups{}, fmt.Errorf("%w: no cgroup2 is mounted", ErrImpossible)
	}
	if _, err := os.Stat(filepath.Join(found.unified, "cgroup.subtree_control")); err != nil {
		return cgroups{}, fmt.Errorf("%w: %w", ErrImpossible, err)
	}
	return found, nil
}
