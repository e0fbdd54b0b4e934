package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestReadCorpus(t *testing.T) {
	t.Parallel()

	write := func(t *testing.T, root, name, text string) {
		t.Helper()
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	source := func(t *testing.T) string {
		t.Helper()
		root, err := process.Go(t.Context(), "env", "GOROOT")
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(root, "src")
	}

	t.Run("EveryDocumentedSymbol", func(t *testing.T) {
		t.Parallel()
		root := t.TempDir()
		write(t, root, "net/wire/a.go", `// Package wire is here.
package wire

// Conn is a connection.
type Conn struct{}

// Dial dials.
func Dial() *Conn { return nil }

// Close closes.
func (c *Conn) Close() {}

func (c *Conn) Quiet() {}

// hidden is documented all the same.
func hidden() {}

const (
	A = 1 // A is one.
	// B is two.
	B = 2
	C = 3
)

// States of a connection.
const (
	Open = iota
	Shut
)

// ErrGone says so.
var ErrGone, _ error = nil, nil

// init has company.
func init() {}

// init comes again.
func init() {}
`)
		write(t, root, "net/wire/a_test.go", "package wire\n\n// Tested is a test's.\nfunc Tested() {}\n")
		write(t, root, "net/wire/a_windows.go", "package wire\n\n// Handle is another system's.\ntype Handle int\n")
		for _, skipped := range []string{"net/internal/x", "vendor/x", "net/testdata/x", "cmd/x"} {
			write(t, root, skipped+"/x.go", "// Package x is left out.\npackage x\n")
		}

		docs, err := ReadCorpus(t.Context(), root)
		if err != nil {
			t.Fatalf("ReadCorpus: %v", err)
		}
		var got []string
		for _, d := range docs {
			text, ok := strings.CutPrefix(d.Text, d.Symbol+"\n\n")
			if !ok {
				t.Errorf("text of %s: got %q, want the symbol first", d.Symbol, d.Text)
			}
			got = append(got, d.Key.Type+" "+d.Symbol+": "+text)
		}
		want := []string{
			"package net/wire: Package wire is here.",
			"const net/wire.A: A is one.",
			"const net/wire.B: B is two.",
			"type net/wire.Conn: Conn is a connection.",
			"method net/wire.Conn.Close: Close closes.",
			"func net/wire.Dial: Dial dials.",
			"var net/wire.ErrGone: ErrGone says so.",
			"const net/wire.Open: States of a connection.",
			"const net/wire.Shut: States of a connection.",
			"func net/wire.hidden: hidden is documented all the same.",
			"func net/wire.init: init has company.",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("documents (-want +got):\n%s", diff)
		}
		library := docs[0].LibraryID
		for _, d := range docs {
			if d.LibraryID != library || library == uuid.Nil {
				t.Errorf("library of %s: got %s, want %s", d.Symbol, d.LibraryID, library)
			}
			if d.RankScore <= 0 || d.RankScore > 1 {
				t.Errorf("rank of %s: got %v, want it in (0, 1]", d.Symbol, d.RankScore)
			}
		}
	})

	t.Run("SyntaxErrorIsReported", func(t *testing.T) {
		t.Parallel()
		root := t.TempDir()
		write(t, root, "bad/a.go", "package bad\n\nfunc {")
		if _, err := ReadCorpus(t.Context(), root); err == nil || !strings.Contains(err.Error(), "package bad") {
			t.Errorf("ReadCorpus: got error %v, want one that names the package", err)
		}
	})

	t.Run("EmptyDirectoryIsReported", func(t *testing.T) {
		t.Parallel()
		if docs, err := ReadCorpus(t.Context(), t.TempDir()); err == nil {
			t.Errorf("ReadCorpus: got %d documents, want an error", len(docs))
		}
	})

	t.Run("SameEachTime", func(t *testing.T) {
		t.Parallel()
		var readings [2][]Document
		for i := range readings {
			var err error
			if readings[i], err = ReadCorpus(t.Context(), filepath.Join(source(t), "encoding")); err != nil {
				t.Fatalf("ReadCorpus: %v", err)
			}
		}
		if diff := cmp.Diff(readings[0], readings[1], cmp.Comparer(func(a, b outbox.ID) bool { return a == b })); diff != "" {
			t.Errorf("two readings differ:\n%s", diff)
		}
	})

	t.Run("StandardLibrary", func(t *testing.T) {
		t.Parallel()
		first, err := ReadCorpus(t.Context(), source(t))
		if err != nil {
			t.Fatalf("ReadCorpus: %v", err)
		}
		seen, size := map[outbox.Key]string{}, 0
		for _, d := range first {
			if other, ok := seen[d.Key]; ok {
				t.Errorf("%s has the key of %s", d.Symbol, other)
			}
			seen[d.Key] = d.Symbol
			size += len(d.Text)
		}
		if len(first) < 10_000 || size < 2_000_000 {
			t.Errorf("got %d documents, %d bytes; want 10,000 and 2 MB at least", len(first), size)
		}
		for kind, symbol := range map[string]string{
			"package": "net/http", "type": "net/http.Client", "method": "net/http.Client.Do",
			"func": "context.WithCancel", "const": "math.Pi", "var": "io.EOF",
		} {
			if seen[SymbolKey(kind, symbol)] != symbol {
				t.Errorf("no document of %s %s", kind, symbol)
			}
		}
	})
}
