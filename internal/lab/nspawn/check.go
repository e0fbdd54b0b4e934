package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

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
