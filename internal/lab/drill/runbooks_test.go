package drill_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/lab/drill"
)

const top = "../../.." // of the repository

// A drill names the runbooks that it rehearses, each of these pages names the drill with its
// command line, and so do the table of docs/drills.md and weftlab list. None names another.
func TestRunbooksAndDrillsNameEachOther(t *testing.T) {
	t.Parallel()
	want := map[string][]string{} // by page
	var list bytes.Buffer
	if err := drill.List(&list, "all"); err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{} // of the table, by drill
	text, err := os.ReadFile(filepath.Join(top, "docs/drills.md"))
	if err != nil {
		t.Fatal(err)
	}
	row, link := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.*\\|.*\\|$"), regexp.MustCompile(`\(runbooks/([a-z-]+\.md)\)`)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		for _, l := range link.FindAllStringSubmatch(m[0], -1) {
			rows[m[1]] = append(rows[m[1]], "docs/runbooks/"+l[1])
		}
	}
	for _, s := range drill.Scenarios() {
		pages := drill.Runbooks(s.Name)
		if diff := cmp.Diff(pages, append([]string{}, rows[s.Name]...)); diff != "" {
			t.Errorf("%s: docs/drills.md names other runbooks (-drill +page):\n%s", s.Name, diff)
		}
		_, after, _ := strings.Cut("\n"+list.String(), "\n"+s.Name)
		own, _, _ := strings.Cut(after, "\n\n")
		for _, page := range pages {
			want[page] = append(want[page], s.Name)
			if !strings.Contains(own+"\n", "\n  read   "+page+"\n") {
				t.Errorf("weftlab list does not name %s at %s:\n%s", page, s.Name, own)
			}
		}
	}
	if len(want) < 10 {
		t.Fatalf("the drills rehearse %v, want ten pages or more", slices.Sorted(maps.Keys(want)))
	}
	files, err := filepath.Glob(filepath.Join(top, "docs/runbooks/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile("`weftlab run (\\w+)`")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := "docs/runbooks/" + filepath.Base(file)
		_, line, named := strings.Cut(string(text), "\nDrills that rehearse it: ")
		line, _, _ = strings.Cut(line, "\n\n")
		var got []string
		for _, m := range command.FindAllStringSubmatch(line, -1) {
			got = append(got, m[1])
		}
		slices.Sort(got)
		slices.Sort(want[name])
		if !slices.Equal(got, want[name]) || named != (len(got) > 0) {
			t.Errorf("%s names the drills %q, want %q", name, got, want[name])
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("there is no %s", name)
	}
}
