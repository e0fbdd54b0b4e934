package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// database makes one with an advisory, never fixed, against a package of the standard library.
func database(t *testing.T, dir, pkg string) (url string) {
	t.Helper()
	write(t, filepath.Join(dir, "index/db.json"), `{"modified": "2026-01-02T03:04:05Z"}`)
	write(t, filepath.Join(dir, "index/modules.json"), `[{"path": "stdlib", "vulns": [{"id": "GO-2026-9999", "modified": "2026-01-02T03:04:05Z"}]}]`)
	write(t, filepath.Join(dir, "index/vulns.json"), `[{"id": "GO-2026-9999", "modified": "2026-01-02T03:04:05Z"}]`)
	write(t, filepath.Join(dir, "ID/GO-2026-9999.json"), `{"schema_version": "1.3.1", "id": "GO-2026-9999", "modified": "2026-01-02T03:04:05Z",
		"summary": "A made-up flaw", "affected": [{"package": {"name": "stdlib", "ecosystem": "Go"},
		"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}], "ecosystem_specific": {"imports": [{"path": "`+pkg+`"}]}}]}`)
	return "file://" + dir
}

// tree makes one of two modules: the second is nested and imports a package only in a test.
func tree(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module example.test/one\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, "one.go"), "package one\n\nimport _ \"strings\"\n")
	write(t, filepath.Join(dir, "tools/two/go.mod"), "module example.test/two\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, "tools/two/two.go"), "package two\n")
	write(t, filepath.Join(dir, "tools/two/two_test.go"), "package two\n\nimport _ \"encoding/csv\"\n")
	write(t, filepath.Join(dir, "tools/none/go.mod"), "module example.test/none\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, "testdata/broken/go.mod"), "not a module\n")
	return dir
}

func TestAdvisoriesAreOpenUntilAccepted(t *testing.T) {
	t.Parallel()
	dir, db := tree(t), database(t, t.TempDir(), "encoding/csv")
	expect := func(code int, lines ...string) {
		t.Helper()
		var out bytes.Buffer
		if got := run(t.Context(), []string{"-db", db, dir}, &out); got != code {
			t.Errorf("exit code %d, want %d\n%s", got, code, out.String())
		}
		for _, line := range lines {
			if !strings.Contains(out.String(), line) {
				t.Errorf("no %q in\n%s", line, out.String())
			}
		}
	}
	expect(exitOpen, " of 2026-01-02\n", "days old", ".                none\n", "tools/none       none\n",
		"tools/two        open     GO-2026-9999 stdlib@v1.", "(not fixed): A made-up flaw\n", "vulnerabilities: 1 open; ")

	write(t, filepath.Join(dir, acceptedFile), "# Why.\nGO-2026-9999 tools/none it is elsewhere\n")
	expect(exitOpen, "tools/two        open ", "tools/none       unused   GO-2026-9999: ")

	write(t, filepath.Join(dir, acceptedFile), "GO-2026-9999 tools/two the tests read their own files\n")
	expect(0, "tools/two        accepted GO-2026-9999 ", ": the tests read their own files\n")

	write(t, filepath.Join(dir, acceptedFile), "GO-2026-9999 tools/two\n")
	expect(exitError, "want an advisory, a directory and a reason")
}

func TestUnimportedPackagesDoNotCount(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := run(t.Context(), []string{"-db", database(t, t.TempDir(), "net/smtp"), tree(t)}, &out); code != 0 {
		t.Errorf("exit code %d, want 0\n%s", code, out.String())
	}
}

// Two modules import a package behind a tag only; one of them has no other code.
func TestCodeBehindTagsCounts(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	write(t, filepath.Join(dir, ".golangci.yaml"), "run:\n  build-tags: [rare, other]\n")
	write(t, filepath.Join(dir, "tools/two/rare_test.go"), "//go:build other\n\npackage two\n\nimport _ \"net/smtp\"\n")
	write(t, filepath.Join(dir, "tools/none/rare.go"), "//go:build rare\n\npackage none\n\nimport _ \"net/smtp\"\n")
	var out bytes.Buffer
	if code := run(t.Context(), []string{"-db", database(t, t.TempDir(), "net/smtp"), dir}, &out); code != exitOpen {
		t.Errorf("exit code %d, want %d\n%s", code, exitOpen, out.String())
	}
	for _, line := range []string{".                none\n", "tools/two        open ", "tools/none       open "} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in\n%s", line, out.String())
		}
	}
}

func TestTagsOfThisTree(t *testing.T) {
	t.Parallel()
	tags, err := buildTags("../../..")
	if err != nil || !slices.Contains(strings.Split(tags, ","), "kubelet") {
		t.Errorf("got %q, %v; want kubelet among them", tags, err)
	}
}

func TestUnavailableDatabaseIsNotGreen(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	write(t, filepath.Join(empty, "index/db.json"), "<html>log in</html>")
	for _, db := range []string{"file:///missing/database", "http://127.0.0.1:1", "file://" + empty} {
		var out bytes.Buffer
		if code := run(t.Context(), []string{"-db", db, tree(t)}, &out); code != exitUnavailable {
			t.Errorf("%s: exit code %d, want %d", db, code, exitUnavailable)
		}
		if got := out.String(); !strings.HasPrefix(got, "vulnerabilities: unavailable, nothing was checked: database "+db) || strings.Contains(got, "none") {
			t.Errorf("%s: said %q", db, got)
		}
	}
}

func TestIncompleteDatabaseIsNotGreen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := database(t, dir, "strings")
	if err := os.Remove(filepath.Join(dir, "ID/GO-2026-9999.json")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"-db", db, tree(t)}, &out); code != exitError {
		t.Errorf("exit code %d, want %d\n%s", code, exitError, out.String())
	}
}

func TestBrokenModuleIsNotGreen(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	write(t, filepath.Join(dir, "tools/two/two.go"), "package two\n\nimport _ \"example.test/missing\"\n")
	var out bytes.Buffer
	if code := run(t.Context(), []string{"-db", database(t, t.TempDir(), "net/smtp"), dir}, &out); code != exitError {
		t.Errorf("exit code %d, want %d\n%s", code, exitError, out.String())
	}
	if !strings.Contains(out.String(), ".                none\n") {
		t.Errorf("the other module was not scanned:\n%s", out.String())
	}
}
