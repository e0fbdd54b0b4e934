package archtest

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

const frozenFile = "testdata/frozen.txt"

// names holds "kind name" lines: what an installation, a dashboard, a script or a saved query
// may rely on.
type names map[string]bool

func (n names) add(kind string, found ...string) {
	for _, name := range found {
		if name != "" {
			n[kind+" "+name] = true
		}
	}
}

// has reports whether line is in n. The fields of a JSON object may become more.
func (n names) has(line string) bool {
	kind, want, _ := strings.Cut(line, " ")
	if n[line] || kind != "json" {
		return n[line]
	}
	for got := range n {
		if rest, ok := strings.CutPrefix(got, "json "); ok && contains(strings.Fields(rest), strings.Fields(want)) {
			return true
		}
	}
	return false
}

func contains(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// TestFrozenNames holds that no public name of the snapshot is gone. New names pass; -update
// adds them to the snapshot, and removes none.
func TestFrozenNames(t *testing.T) {
	t.Parallel()
	current := frozen(t)
	recorded := strings.Split(strings.TrimSpace(read(t, frozenFile)), "\n")
	if *update {
		for _, line := range recorded {
			if !current.has(line) {
				current[line] = true
			}
		}
		text := strings.Join(slices.Sorted(maps.Keys(current)), "\n") + "\n"
		if err := os.WriteFile(frozenFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	kinds := map[string]bool{}
	for _, line := range recorded {
		kind, _, _ := strings.Cut(line, " ")
		kinds[kind] = true
		switch {
		case current.has(line):
		case kind == "content":
			t.Errorf("%s: the content of this file has changed; a released migration is never edited, and indexes were made with a released mapping. "+
				"Where the change is meant, replace the line in %s by hand and say so in CHANGELOG.md", line, frozenFile)
		default:
			t.Errorf("%s: this public name is gone; names may be added, and none may be renamed or removed", line)
		}
	}
	for line := range current {
		if kind, _, _ := strings.Cut(line, " "); !kinds[kind] {
			t.Errorf("%s: the snapshot has no names of this kind; run the test with -update", line)
			kinds[kind] = true
		}
	}
}

// TestFrozenNamesRule shows that the rule sees what it is for.
func TestFrozenNamesRule(t *testing.T) {
	t.Parallel()
	n := names{"metric weft_x reason": true, "json a b c": true}
	for line, want := range map[string]bool{
		"metric weft_x reason": true, "metric weft_x": false, "json a c": true, "json c a b": true, "json a d": false,
	} {
		if got := n.has(line); got != want {
			t.Errorf("%s: got %t, want %t", line, got, want)
		}
	}
}
