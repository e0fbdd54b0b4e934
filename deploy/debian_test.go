//go:build debian

package deploy_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// build makes the package of the newest commit from a clone of its own.
func build(t *testing.T, dir string, env ...string) (deb string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, ".", nil, "git", "clone", "--quiet", "..", dir)
	must(t, dir, env, "deploy/deb/build", "dist")
	debs, err := filepath.Glob(filepath.Join(dir, "dist", "*.deb"))
	if err != nil || len(debs) != 1 {
		t.Fatalf("built %v, %v, want one package", debs, err)
	}
	return debs[0]
}

// TestPackage builds the package twice, in other places, at other times and under another
// user's settings, and asks Debian's own tools about it.
func TestPackage(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	one := build(t, filepath.Join(top, "one"))
	two := build(t, filepath.Join(top, "some", "other", "place"), "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "SOURCE_DATE_EPOCH=1", "GOAMD64=v3", "GOFLAGS=-ldflags=-w")
	var sums []string
	for _, path := range []string{one, two} {
		sums = append(sums, filepath.Base(path)+" "+digest(t, path))
	}
	if sums[0] != sums[1] {
		t.Errorf("the same commit gave two packages:\n%s", strings.Join(sums, "\n"))
		if out, err := run(t, top, nil, "cmp", one, two); err != nil {
			t.Log(out)
		}
	}

	t.Run("Lintian", func(t *testing.T) {
		t.Parallel()
		if out, err := run(t, top, nil, "lintian", "--allow-root", "--fail-on", "error,warning", one); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})

	root := filepath.Join(top, "root")
	must(t, top, nil, "dpkg-deb", "--extract", one, root)

	t.Run("Stamp", func(t *testing.T) {
		t.Parallel()
		got := must(t, top, nil, filepath.Join(root, "usr/bin/weft"), "version")
		version := strings.TrimSpace(must(t, top, nil, "dpkg-deb", "--field", one, "Version"))
		commit := strings.TrimSpace(must(t, filepath.Join(top, "one"), nil, "git", "rev-parse", "--short=12", "HEAD"))
		if !strings.HasPrefix(got, "weft "+version+" (commit "+commit+",") {
			t.Errorf("weft version says %q, want version %s and commit %s", got, version, commit)
		}
	})

	t.Run("Bill", func(t *testing.T) {
		t.Parallel()
		checkBill(t, filepath.Join(root, "usr/share/doc/weft/weft.cdx.json"), filepath.Join(root, "usr/bin/weft"))
	})

	t.Run("Documents", func(t *testing.T) {
		t.Parallel()
		doc := filepath.Join(root, "usr/share/doc/weft")
		if got, want := read(t, filepath.Join(doc, "roles.sql")), read(t, "postgres/roles.sql"); got != want {
			t.Errorf("roles.sql of the package is\n%.600s", got)
		}
		for _, link := range regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(read(t, filepath.Join(doc, "README.md")), -1) {
			if !strings.HasPrefix(link[1], "https://") {
				t.Errorf("README.md leads to %s, which the package lacks", link[1])
			}
		}
	})

	t.Run("Configuration", func(t *testing.T) {
		t.Parallel()
		control := filepath.Join(top, "control")
		must(t, top, nil, "dpkg-deb", "--control", one, control)
		names := strings.Fields(read(t, filepath.Join(control, "conffiles")))
		slices.Sort(names)
		if want := []string{"/etc/default/weft", "/etc/weft/weft.yaml"}; !slices.Equal(names, want) {
			t.Errorf("configuration files %v, want %v", names, want)
		}
		for path, want := range map[string]os.FileMode{"etc/weft/weft.yaml": 0o640, "etc/weft/credentials": 0o700 | os.ModeDir, "etc/default/weft": 0o644} {
			info, err := os.Stat(filepath.Join(root, path))
			if err != nil {
				t.Error(err)
			} else if info.Mode() != want {
				t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
			}
		}
		for _, script := range []string{"postinst", "prerm", "postrm"} {
			if out, err := run(t, top, nil, "sh", "-n", filepath.Join(control, script)); err != nil {
				t.Errorf("%s: %v\n%s", script, err, out)
			}
		}
	})

	t.Run("Pages", func(t *testing.T) {
		t.Parallel()
		for _, page := range []string{"weft.1", "weft-run.1"} {
			out, err := run(t, root, []string{"MANROFFSEQ=", "MANWIDTH=80"}, "man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", "usr/share/man/man1/"+page+".gz")
			if err != nil || strings.Contains(out, "warning: ") {
				t.Errorf("%s: %v\n%.600s", page, err, out)
			}
		}
	})

	t.Run("Units", func(t *testing.T) {
		t.Parallel()
		units := filepath.Join(root, "usr/lib/systemd/system")
		// What they name has to be there for the verification.
		must(t, top, nil, "cp", "-an", "/lib/systemd/system/.", units)
		must(t, top, nil, "install", "-D", "/bin/kill", filepath.Join(root, "bin/kill"))
		for _, name := range []string{"weft.service", "weft@books.service"} {
			out, err := run(t, top, nil, "systemd-analyze", "verify", "--man=no", "--root="+root, name)
			if err != nil || out != "" {
				t.Errorf("verify %s: %v\n%s", name, err, out)
			}
		}
		for _, name := range []string{"weft.service", "weft@.service"} {
			// The threshold is in tenths.
			out, err := run(t, top, nil, "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=15", filepath.Join("/", units, name))
			if err != nil {
				t.Errorf("exposure of %s: %v\n%s", name, err, out)
				continue
			}
			lines := bytes.Split(bytes.TrimSpace([]byte(out)), []byte("\n"))
			t.Logf("%s", lines[len(lines)-1])
		}
	})
}
