package weft_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// TestLibraryPageShowsCodeThatRuns holds that the code of docs/library.md is that of the
// examples, which tests run.
func TestLibraryPageShowsCodeThatRuns(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	files, err := filepath.Glob("examples/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, path := range files {
		code.WriteString(words(read(path)) + "\n")
	}
	blocks := goBlock.FindAllStringSubmatch(read("docs/library.md"), -1)
	for _, m := range blocks {
		if !strings.Contains(code.String(), words(m[1])) {
			t.Errorf("no example has this code of docs/library.md:\n%s", m[1])
		}
	}
	if len(blocks) < 4 {
		t.Errorf("%d blocks of code, want those of the page", len(blocks))
	}
}
