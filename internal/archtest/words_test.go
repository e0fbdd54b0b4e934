package archtest

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
	alternatives := make([]string, 0, len(words))
	for word := range words {
		alternatives = append(alternatives, regexp.QuoteMeta(word))
	}
	pattern := regexp.MustCompile(`(?i)\b(?:` + strings.Join(alternatives, "|") + ")")
	look := func(where, text string) {
		text = strings.Join(strings.Fields(text), " ")
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
	walk(t, ".go", func(path string) {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Comments {
			_, rest, _ := strings.Cut(c.Text(), " ")
			look(fset.Position(c.Pos()).String(), rest)
		}
	})
}
