package archtest

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/outbox"
)

var update = flag.Bool("update", false, "write the generated part of docs/configuration.md")

const tree = "../.." // the top, from the directory the tests run in

// TestConfigurationPage holds that the tables of settings are those that the program
// uses. `make docs` writes them.
func TestConfigurationPage(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- configuration: written by make docs -->\n", "<!-- end of configuration -->\n"
	path := filepath.Join(tree, "docs/configuration.md")
	text := read(t, path)
	head, rest, ok := strings.Cut(text, begin)
	got, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no %q … %q", path, begin, end)
	}
	want := "\n" + config.Markdown()
	if *update {
		if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s does not list the settings as they are; run `make docs` (-want +got):\n%s", path, diff)
	}
}

// TestReadmeIsShort holds that the README is read in a few minutes: what grows belongs into docs.
func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	const most = 900
	if n := len(strings.Fields(read(t, filepath.Join(tree, "README.md")))); n > most {
		t.Errorf("README.md has %d words, want at most %d", n, most)
	}
}

// TestExitCodesAreListed holds that docs/cli.md, and with it the help and the manual page
// that it is made from, explains every exit code of weft.
func TestExitCodesAreListed(t *testing.T) {
	t.Parallel()
	codes := exitCode.FindAllStringSubmatch(read(t, filepath.Join(tree, "cmd/weft/exit.go")), -1)
	if len(codes) < 5 {
		t.Fatalf("cmd/weft/exit.go: found %d exit codes, want all of them", len(codes))
	}
	text := read(t, filepath.Join(tree, "docs/cli.md"))
	for _, c := range codes {
		if line := fmt.Sprintf("\n%4s  ", c[1]); !strings.Contains(text, line) {
			t.Errorf("docs/cli.md does not explain exit code %s", c[1])
		}
	}
}

// TestReasonsAreListed holds that the runbook says of every reason what it means and what to do.
func TestReasonsAreListed(t *testing.T) {
	t.Parallel()
	reasons := outbox.Reasons()
	for _, n := range outbox.Noops() {
		reasons = append(reasons, outbox.Reason(n))
	}
	const runbook = "docs/runbooks/reasons.md"
	text := read(t, filepath.Join(tree, runbook))
	for _, r := range reasons {
		if !strings.Contains(text, fmt.Sprintf("\n| `%s` | ", r)) {
			t.Errorf("%s has no row for %s", runbook, r)
		}
	}
}

var (
	exitCode = regexp.MustCompile(`(?m)^\texit[A-Z]\w* += (\d+)$`)
	link     = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	fence    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	testName = regexp.MustCompile("`(Test[A-Za-z0-9_]+)(?:/[A-Za-z0-9_/]+)?`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
)

// TestDocsReferences holds that what the documents point at is there: files, the headings
// in them, and the tests that are named as evidence.
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
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			to := path
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: link to %s: %v", path, m[1], err)
			} else if m[2] != "" && !anchors(read(t, to))[m[2]] {
				t.Errorf("%s: link to %s#%s, and there is no such heading", path, m[1], m[2])
			}
		}
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, and there is no such test", path, m[1])
			}
		}
	})
}

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		title := link.ReplaceAllString(strings.ToLower(m[1]), "")
		slug := strings.ReplaceAll(notSlug.ReplaceAllString(title, ""), " ", "-")
		name := slug
		for n := 1; all[name]; n++ {
			name = fmt.Sprintf("%s-%d", slug, n)
		}
		all[name] = true
	}
	return all
}

func TestAnchors(t *testing.T) {
	t.Parallel()
	got := anchors("# One entity's trouble\n\n## A `b_c`: d\n```sh\n# no heading\n```\n## Two\n## Two\n### [Kill](x.md) -9\n")
	for _, want := range []string{"one-entitys-trouble", "a-b_c-d", "two", "two-1", "kill--9"} {
		if !got[want] {
			t.Errorf("%s is missing among %v", want, got)
		}
	}
	if len(got) != 5 {
		t.Errorf("got %v, want five anchors", got)
	}
}

// walk calls f for each file of the tree whose name ends in suffix.
func walk(t *testing.T, suffix string, f func(path string)) {
	t.Helper()
	if err := eachFile(suffix, func(path string) error { f(path); return nil }); err != nil {
		t.Fatal(err)
	}
}

func eachFile(suffix string, f func(path string) error) error {
	return filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != tree && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, suffix):
			return f(path)
		}
		return nil
	})
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
