package archtest

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/config"
)

const guarantees = tree + "/docs/guarantees.md"

var (
	evidence   = regexp.MustCompile("`([a-z]+)\\.(Test[A-Za-z0-9_]+)((?:/[A-Za-z0-9_=]+)*)`")
	metricName = regexp.MustCompile(`\b((?:outbox|weft)_[a-z_]+_(?:total|seconds|events|entities|letters|epoch))\b`)
	envName    = regexp.MustCompile(`\b(?:OUTBOX|WEFT|ELASTIC)_[A-Z_]+\b`)
	logEvent   = regexp.MustCompile("`((?:leader|projection|outbox|version|dependency|reclaim|tracing)\\.[a-z_]+)`")
	hazardRow  = regexp.MustCompile(`(?m)^\|[^|\n]+\|[^|\n]+\|([^|\n]+)\|$`)
)

// TestGuaranteesNameTests holds that every test the page calls as a witness is there,
// in the package that it names, with the subtest that it names.
func TestGuaranteesNameTests(t *testing.T) {
	t.Parallel()
	there := testsByPackage(t)
	named := evidence.FindAllStringSubmatch(read(t, guarantees), -1)
	if len(named) < 50 {
		t.Fatalf("%s names %d tests, want one for each promise and hazard", guarantees, len(named))
	}
	for _, m := range named {
		pkg, test := m[1], m[2]
		if there[pkg] == nil || !there[pkg].tests[test] {
			t.Errorf("%s names %s.%s, and there is no such test in a directory %s", guarantees, pkg, test, pkg)
			continue
		}
		for _, sub := range strings.Split(m[3], "/")[1:] {
			if !there[pkg].words[sub] {
				t.Errorf("%s names %s.%s%s, and no test of %s writes %q", guarantees, pkg, test, m[3], pkg, sub)
			}
		}
	}
}

// TestGuaranteesLeaveNothingOpen holds that every row about a failure ends in a test or
// says that it is a limit.
func TestGuaranteesLeaveNothingOpen(t *testing.T) {
	t.Parallel()
	_, failures, ok := strings.Cut(read(t, guarantees), "\n## What can go wrong")
	if !ok {
		t.Fatalf("%s has no section about what can go wrong", guarantees)
	}
	rows := 0
	for _, m := range hazardRow.FindAllStringSubmatch(failures, -1) {
		last := m[1]
		if strings.Trim(last, " -") == "" || strings.TrimSpace(last) == "shown by" {
			continue
		}
		rows++
		if !evidence.MatchString(last) && !strings.Contains(last, "**limit**") {
			t.Errorf("%s: neither a test nor a limit in the row %s", guarantees, m[0])
		}
	}
	if rows < 40 {
		t.Errorf("%s has %d rows about failures, want all of them", guarantees, rows)
	}
}

// TestPagesNameWhatExists holds that metrics, settings and events of the log are spelt as
// they are.
func TestPagesNameWhatExists(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	walk(t, ".go", func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			code.WriteString(read(t, path))
		}
	})
	metrics := 0
	walk(t, ".md", func(path string) {
		text := read(t, path)
		for _, m := range metricName.FindAllStringSubmatch(text, -1) {
			metrics++
			if !strings.Contains(code.String(), `"`+m[1]+`"`) {
				t.Errorf("%s names the metric %s, and no code does", path, m[1])
			}
		}
		for _, m := range logEvent.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(code.String(), `"`+m[1]+`"`) && !strings.Contains(config.Markdown(), "`"+m[1]+"`") {
				t.Errorf("%s names the log event or span %s, and no code does", path, m[1])
			}
		}
		for _, name := range envName.FindAllString(text, -1) {
			// WEFT_CONFIG is no setting: it names the file that has them.
			if name != "WEFT_CONFIG" && config.Former(name) == "" && !strings.Contains(config.Markdown(), "`"+name+"`") {
				t.Errorf("%s names the setting %s, and the configuration does not", path, name)
			}
		}
	})
	if metrics < 40 {
		t.Errorf("the pages name %d metrics, want those that tell of trouble", metrics)
	}
}

// testFiles is what the test files of a directory declare and write.
type testFiles struct {
	tests map[string]bool
	words map[string]bool // string literals, as subtests are named
}

// testsByPackage returns what is in all test files, whatever their build tags, by the last element
// of their directory.
func testsByPackage(t *testing.T) map[string]*testFiles {
	t.Helper()
	all := map[string]*testFiles{}
	for path, f := range sources(t) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		dir := filepath.Base(filepath.Dir(path))
		if all[dir] == nil {
			all[dir] = &testFiles{tests: map[string]bool{}, words: map[string]bool{}}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					all[dir].tests[n.Name.Name] = true
				}
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					all[dir].words[strings.ReplaceAll(s, " ", "_")] = true
				}
			}
			return true
		})
	}
	return all
}
