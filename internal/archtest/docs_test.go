package archtest

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/config"
)

var update = flag.Bool("update", false, "write the generated parts of README.md")

const tree = "../.." // the top, from the directory the tests run in

// TestReadmeConfiguration holds that the table of settings is the one the program
// uses. `make docs` writes it.
func TestReadmeConfiguration(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- configuration: written by make docs -->\n", "<!-- end of configuration -->\n"
	path := filepath.Join(tree, "README.md")
	text := read(t, path)
	head, rest, ok := strings.Cut(text, begin)
	got, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md has no %q … %q", begin, end)
	}
	want := "\n" + config.Markdown() + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("README.md does not list the settings as they are; run `make docs` (-want +got):\n%s", diff)
	}
}

// TestReadmeExitCodes holds that every exit code of weft has its row.
func TestReadmeExitCodes(t *testing.T) {
	t.Parallel()
	codes := exitCode.FindAllStringSubmatch(read(t, filepath.Join(tree, "cmd/weft/exit.go")), -1)
	if len(codes) < 5 {
		t.Fatalf("cmd/weft/exit.go: found %d exit codes, want all of them", len(codes))
	}
	text := read(t, filepath.Join(tree, "README.md"))
	for _, c := range codes {
		if !strings.Contains(text, "\n| "+c[1]+" | ") {
			t.Errorf("README.md has no row for exit code %s", c[1])
		}
	}
}

var (
	exitCode = regexp.MustCompile(`(?m)^\texit[A-Z]\w* += (\d+)$`)
	link     = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)
	testName = regexp.MustCompile("`(Test[A-Za-z0-9_]+)(?:/[A-Za-z0-9_/]+)?`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
)

// TestDocsReferences holds that what the documents point at is there: files, and
// the tests that are named as evidence.
func TestDocsReferences(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	walk(t, "_test.go", func(path string) {
		for _, m := range testFunc.FindAllStringSubmatch(read(t, path), -1) {
			tests[m[1]] = true
		}
	})
	walk(t, ".md", func(path string) {
		text := read(t, path)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", path, m[1], err)
			}
		}
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, and there is no such test", path, m[1])
			}
		}
	})
}

// walk calls f for each file of the tree whose name ends in suffix.
func walk(t *testing.T, suffix string, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != tree && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, suffix):
			f(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
