//go:build release

package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	releaseTag  = "v9.8.7"
	releaseName = "weft_9.8.7"
)

// tagged clones the newest commit and makes a release of it: a heading in the changelog, a
// commit at a fixed time, and a tag.
func tagged(t *testing.T, dir string) {
	t.Helper()
	must(t, ".", nil, "git", "clone", "--quiet", "..", dir)
	path := filepath.Join(dir, "CHANGELOG.md")
	text := strings.Replace(read(t, path), "## [Unreleased]\n", "## [Unreleased]\n\n## [9.8.7] - 2026-01-02\n", 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	when := "2026-01-02T03:04:05Z"
	env := []string{"GIT_COMMITTER_DATE=" + when, "GIT_AUTHOR_DATE=" + when}
	must(t, dir, env, "git", "-c", "user.name=weft", "-c", "user.email=weft@example.test", "commit", "--quiet", "--all", "--message=Release 9.8.7")
	must(t, dir, nil, "git", "tag", releaseTag)
}

// TestRelease builds a release twice: in other places, under another user's settings, and the
// second time with every package compiled anew.
func TestRelease(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	one, two := filepath.Join(top, "one"), filepath.Join(top, "some", "other", "place")
	tagged(t, one)
	must(t, one, nil, "deploy/release/build", "dist")
	must(t, top, nil, "git", "clone", "--quiet", one, two)
	must(t, two, []string{"TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "SOURCE_DATE_EPOCH=1", "GOAMD64=v3", "GOFLAGS=-ldflags=-w", "GOCACHE=" + filepath.Join(top, "cache")},
		"deploy/release/build", "dist")

	dist := filepath.Join(one, "dist")
	sums := read(t, filepath.Join(dist, "SHA256SUMS"))
	if other := read(t, filepath.Join(two, "dist", "SHA256SUMS")); sums != other {
		t.Errorf("the same tag gave two releases:\n%s\n%s", sums, other)
	}
	must(t, dist, nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
	want := []string{"SHA256SUMS"}
	for _, end := range []string{"_amd64.deb", "_arm64.deb", "_changes.md", "_linux_amd64.cdx.json", "_linux_amd64.tar.gz", "_linux_arm64.cdx.json", "_linux_arm64.tar.gz"} {
		want = append(want, releaseName+end)
	}
	if got := names(t, dist); !slices.Equal(got, want) {
		t.Errorf("a release has %q, want %q", got, want)
	}
	for _, name := range want[1:] {
		if !strings.Contains(sums, "  "+name+"\n") {
			t.Errorf("SHA256SUMS does not name %s", name)
		}
	}
	changes := read(t, filepath.Join(dist, releaseName+"_changes.md"))
	if !strings.Contains(changes, "\n### Added\n") || strings.Contains(changes, "## [") {
		t.Errorf("the changelog's part is\n%.300s", changes)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			checkArtifacts(t, dist, filepath.Join(top, arch), arch)
		})
	}
}

// checkArtifacts unpacks what the release has for one architecture and compares it.
func checkArtifacts(t *testing.T, dist, into, arch string) {
	t.Helper()
	root, tarball := filepath.Join(into, "deb"), filepath.Join(into, "tar")
	for _, dir := range []string{root, tarball} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(dist, releaseName+"_"+arch+".deb")
	fields := must(t, dist, nil, "dpkg-deb", "--field", deb, "Version", "Architecture")
	if fields != "Version: 9.8.7\nArchitecture: "+arch+"\n" {
		t.Errorf("the package says %q", fields)
	}
	must(t, dist, nil, "dpkg-deb", "--extract", deb, root)
	must(t, dist, nil, "tar", "--extract", "--gzip", "--file", releaseName+"_linux_"+arch+".tar.gz", "--directory", tarball)
	if got := names(t, tarball); len(got) != 1 || got[0] != releaseName+"_linux_"+arch {
		t.Fatalf("the tarball has %q at its top", got)
	}
	dir := filepath.Join(tarball, releaseName+"_linux_"+arch)
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "weft.yaml", "third-party.gz", "man/weft.1.gz", "man/weft-run.1.gz",
		"completions/weft.bash", "completions/_weft", "completions/weft.fish"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("the tarball has no %s: %v", name, err)
		}
	}

	binary := filepath.Join(dir, "weft")
	if got, want := digest(t, filepath.Join(root, "usr/bin/weft")), digest(t, binary); got != want {
		t.Errorf("the package's binary is %s, the tarball's %s", got, want)
	}
	if info := must(t, dir, nil, "go", "version", "-m", binary); !strings.Contains(info, "\tGOARCH="+arch+"\n") || !strings.Contains(info, "\tCGO_ENABLED=0\n") {
		t.Errorf("the binary is another one:\n%s", info)
	}
	pages := names(t, filepath.Join(dir, "man"))
	if got := names(t, filepath.Join(root, "usr/share/man/man1")); !slices.Equal(got, pages) {
		t.Errorf("the package has the pages %q, the tarball %q", got, pages)
	}
	for _, bill := range []string{filepath.Join(dir, "weft.cdx.json"), filepath.Join(root, "usr/share/doc/weft/weft.cdx.json"), filepath.Join(dist, releaseName+"_linux_"+arch+".cdx.json")} {
		checkBill(t, bill, binary)
	}
	if arch == strings.TrimSpace(must(t, dir, nil, "go", "env", "GOHOSTARCH")) {
		if got := must(t, dir, nil, binary, "version"); !strings.HasPrefix(got, "weft 9.8.7 (commit ") {
			t.Errorf("weft version says %q", got)
		}
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestReleaseRefuses(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tree")
	tagged(t, dir)
	refused := func(because string) {
		t.Helper()
		out, err := run(t, dir, nil, "deploy/release/build", "dist")
		if err == nil || !strings.Contains(out, because) {
			t.Errorf("want a refusal that says %q, got %v\n%s", because, err, out)
		}
		left, err := fs.Glob(os.DirFS(filepath.Join(dir, "dist")), "weft_*")
		if err != nil || len(left) > 0 {
			t.Errorf("a refused release left %q, %v", left, err)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	readme := read(t, filepath.Join(dir, "README.md"))
	write("README.md", readme+"More.\n")
	refused("the tree differs from " + releaseTag)
	write("README.md", readme)

	write("dist/old", "of another release")
	refused("dist is not empty")
	must(t, dir, nil, "rm", "dist/old")

	must(t, dir, nil, "git", "tag", "--delete", releaseTag)
	refused("has no tag like v1.2.3")
	must(t, dir, nil, "git", "tag", "v9.9.9")
	refused("CHANGELOG.md says nothing about 9.9.9")
}
