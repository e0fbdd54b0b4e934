package nspawn

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

// hierarchy is a directory that looks like the root of cgroup2.
func hierarchy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFindCgroups(t *testing.T) {
	t.Parallel()
	v2 := hierarchy(t)
	const (
		root  = "24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
		cpu   = "30 29 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n"
		named = "33 29 0:30 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n"
	)
	unified := "29 24 0:26 / " + v2 + " rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
	for _, c := range []struct {
		name, mounts string
		want         cgroups
	}{
		{"unified", root + unified, cgroups{unified: v2}},
		{"hybrid", root + cpu + named + unified, cgroups{unified: v2, named: "/sys/fs/cgroup/systemd"}},
		{"legacy", root + cpu + named, cgroups{}},
		{"none", root, cgroups{}},
		{"not the root of it", strings.ReplaceAll(unified, v2, filepath.Join(v2, "elsewhere")), cgroups{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proc := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(proc, "self"), 0o700), os.WriteFile(filepath.Join(proc, "self", "mountinfo"), []byte(c.mounts), 0o600)); err != nil {
				t.Fatal(err)
			}
			got, err := findCgroups(proc)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if impossible := errors.Is(err, ErrImpossible); impossible != (c.want == cgroups{}) {
				t.Errorf("error: got %v", err)
			}
		})
	}
}
