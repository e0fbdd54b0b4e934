package trail

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of docs/observability.md")

// TestVocabularyIsWritten holds that the page has the table that spans, lines and
// metrics of a run are compared with. `make docs` writes it.
func TestVocabularyIsWritten(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- vocabulary: written by make docs -->\n", "<!-- end of vocabulary -->\n"
	const file = "../../../docs/" + pageFile
	if *update {
		if err := replacePart(file, begin, end, vocabularyTable()); err != nil {
			t.Fatal(err)
		}
	}
	_, rest, _ := strings.Cut(read(t, file), begin)
	got, _, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no %q … %q", file, begin, end)
	}
	if diff := cmp.Diff("\n"+vocabularyTable()+"\n", got); diff != "" {
		t.Errorf("%s: run `make docs` (-want +got):\n%s", file, diff)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
