package archtest

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// retired maps words that weft no longer uses, as the beginning of a word, to the ones that
// docs/glossary.md has for them.
func retired() map[string]string {
	return map[string]string{
		"boldclaim":      "claims optimistically",
		"carefulclaim":   "claims with skip locked",
		"dear ":          "expensive",
		"enthron":        "begin a term",
		"falsif":         "corrupt",
		"farewell":       "closing in order",
		"get somewhere":  "make progress",
		"gets somewhere": "makes progress",
		"given back":     "released",
		"gives back":     "releases",
		"got nowhere":    "made no progress",
		"mended":         "fixed",
		"no wall":        "soft limit",
		"patience":       "timeout, limit",
		"practise on":    "failure drills",
	}
}

// TestNoRetiredWords holds that documents and comments use one word for one thing. The
// first word of a comment may be the name of what it documents. The changelog is history.
func TestNoRetiredWords(t *testing.T) {
	t.Parallel()
	words := retired()
	beginnings := slices.Collect(maps.Keys(words))
	alternatives := make([]string, 0, len(words))
	for _, word := range beginnings {
		alternatives = append(alternatives, regexp.QuoteMeta(word))
	}
	pattern := regexp.MustCompile(`(?i)\b(?:` + strings.Join(alternatives, "|") + ")")
	look := func(where, text string) {
		text = strings.Join(strings.Fields(text), " ")
		lower := strings.ToLower(text)
		if !slices.ContainsFunc(beginnings, func(word string) bool { return strings.Contains(lower, word) }) {
			return // the pattern takes long
		}
		for _, word := range pattern.FindAllString(text, -1) {
			t.Errorf("%s says %q; the word is now: %s", where, word, words[strings.ToLower(word)])
		}
	}
	pages := 0
	walk(t, ".md", func(path string) {
		if filepath.Base(path) != "CHANGELOG.md" {
			pages++
			look(path, read(t, path))
		}
	})
	if pages < 30 {
		t.Errorf("found %d documents, want all of them", pages)
	}
	for _, f := range sources(t) {
		for _, c := range f.Comments {
			_, rest, _ := strings.Cut(c.Text(), " ")
			look(positions.Position(c.Pos()).String(), rest)
		}
	}
}

// A database in another encoding than UTF-8 refuses a statement with a letter that it lacks.
func TestStatementsAreASCII(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"outbox/sql", "migrations/sql"} {
		files, err := filepath.Glob(filepath.Join(tree, dir, "*.sql"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, files, err)
		}
		for _, path := range files {
			for i, line := range strings.Split(read(t, path), "\n") {
				if strings.ContainsFunc(line, func(r rune) bool { return r > unicode.MaxASCII }) {
					t.Errorf("%s:%d: %s", path, i+1, line)
				}
			}
		}
	}
}
