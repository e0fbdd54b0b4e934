package docstest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

func TestMain(m *testing.M) {
	stack.GuardIfAsked()
	testenv.Main(m)
}

const (
	tree   = "../.." // the top, from the directory the tests run in
	folder = "docs/runbooks"
)

// page is a Markdown document.
type page struct {
	name   string // path from the top
	text   string
	blocks []block
}

// block is a fenced piece of a page.
type block struct {
	section  string // the heading of the second level above it
	language string
	text     string
	line     int
}

func (p page) at(b block) string { return fmt.Sprintf("%s:%d", p.name, b.line) }

// runbook reports whether the page is one of those that have the four sections.
func (p page) runbook() bool {
	base := path.Base(p.name)
	return path.Dir(p.name) == folder && base != "README.md" && base != "reasons.md" && base != "log-events.md"
}

func (p page) in(section, language string) []block {
	return slices.DeleteFunc(slices.Clone(p.blocks), func(b block) bool { return b.section != section || b.language != language })
}

// read parses a document.
func read(name, text string) page {
	p := page{name: name, text: text}
	section, open, indent := "", -1, ""
	for n, line := range strings.Split(text, "\n") {
		bare := strings.TrimSpace(line)
		language, fence := strings.CutPrefix(bare, "```")
		switch {
		case fence && open < 0:
			indent = line[:strings.Index(line, "`")]
			open = len(p.blocks)
			p.blocks = append(p.blocks, block{section: section, language: language, line: n + 2})
		case fence:
			open = -1
		case open >= 0:
			p.blocks[open].text += strings.TrimPrefix(line, indent) + "\n"
		case strings.HasPrefix(line, "## "):
			section = strings.TrimPrefix(line, "## ")
		}
	}
	return p
}

// documents returns every page of the project.
func documents(t *testing.T) []page {
	t.Helper()
	var all []page
	err := fs.WalkDir(os.DirFS(tree), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".md"):
			text, err := os.ReadFile(filepath.Join(tree, name))
			if err != nil {
				return err
			}
			all = append(all, read(name, string(text)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// aPage is what fits on two screens, or on a sheet of paper.
const aPage = 100

// form returns what a runbook lacks.
func form(p page) []string {
	var bad []string
	var got []string
	for line := range strings.Lines(p.text) {
		if s, ok := strings.CutPrefix(line, "## "); ok {
			got = append(got, strings.TrimSpace(s))
		}
	}
	if want := []string{"Symptoms", "Diagnosis", "Actions", "Postmortem"}; !slices.Equal(got, want) {
		bad = append(bad, fmt.Sprintf("sections are %q, want %q", got, want))
	}
	if n := len(p.in("Diagnosis", "sql")); n != 3 {
		bad = append(bad, fmt.Sprintf("the diagnosis has %d queries, want 3", n))
	}
	symptoms, _, _ := strings.Cut(p.text, "\n## Diagnosis")
	for _, word := range []string{"Metrics:", "Logs:"} {
		if !strings.Contains(symptoms, "- "+word) {
			bad = append(bad, "the symptoms do not say what to see under "+word)
		}
	}
	if n := strings.Count(p.text, "\n"); n > aPage {
		bad = append(bad, fmt.Sprintf("%d lines, want one page, %d at most", n, aPage))
	}
	return bad
}

func TestRunbooksHaveTheirForm(t *testing.T) {
	t.Parallel()
	n := 0
	for _, p := range documents(t) {
		if !p.runbook() {
			continue
		}
		n++
		for _, bad := range form(p) {
			t.Errorf("%s: %s", p.name, bad)
		}
	}
	if n < 14 {
		t.Errorf("got %d runbooks, want all of them", n)
	}
}

func TestFormIsChecked(t *testing.T) {
	t.Parallel()
	const query = "```sql\nselect 1;\n```\n"
	good := "# X\n\n## Symptoms\n\n- Metrics: m\n- Logs: l\n\n## Diagnosis\n" + strings.Repeat(query, 3) + "\n## Actions\n\n## Postmortem\n"
	for name, c := range map[string]struct{ old, with, want string }{
		"Good":           {"", "", ""},
		"NoPostmortem":   {"\n## Postmortem\n", "", "sections"},
		"OtherOrder":     {"## Actions\n\n## Postmortem\n", "## Postmortem\n\n## Actions\n", "sections"},
		"TwoQueries":     {query + query + query, query + query, "2 queries"},
		"FourQueries":    {query + query + query, query + query + query + query, "4 queries"},
		"QueryElsewhere": {query + "\n## Actions\n", "\n## Actions\n" + query, "2 queries"},
		"NoLogs":         {"- Logs: l\n", "", "Logs:"},
		"TooLong":        {"## Actions\n", "## Actions\n" + strings.Repeat("\n", aPage), "one page"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(form(read("x.md", strings.Replace(good, c.old, c.with, 1))), "; ")
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q in it", got, c.want)
			}
		})
	}
}

var link = regexp.MustCompile(`\]\(([^)#\s:]+\.md)`)

// TestIndexLeadsToEveryRunbook holds that a page can be found from what one sees.
func TestIndexLeadsToEveryRunbook(t *testing.T) {
	t.Parallel()
	linked := map[string]bool{}
	pages := documents(t)
	for _, p := range pages {
		if p.name == folder+"/README.md" {
			for _, m := range link.FindAllStringSubmatch(p.text, -1) {
				linked[path.Join(folder, m[1])] = true
			}
		}
	}
	for _, p := range pages {
		if path.Dir(p.name) == folder && path.Base(p.name) != "README.md" && !linked[p.name] {
			t.Errorf("%s/README.md does not lead to %s", folder, p.name)
		}
	}
}
