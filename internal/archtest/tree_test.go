package archtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

const module = "github.com/samuelhu324-dev/weft"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pkg is what `go list` says about a package, as far as the rules need it.
type pkg struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string // without tests
	Imports    []string // without those of tests
	Deps       []string // everything that Imports reach
	Module     *struct{ Path string }
}

// path is the package's path below the module, "" for the root.
func (p pkg) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// production reports whether the package is part of what ships, or may be imported
// by an application. A package named after another with "test" behind it helps
// tests, as net/http/httptest does.
func (p pkg) production() bool {
	return !under(p.path(), "internal/lab") && !under(p.path(), "internal/testenv") && !under(p.path(), "cmd/weftlab") && !strings.HasSuffix(p.path(), "test")
}

// under reports whether path is dir or below it.
func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// ours returns the path below the module of an import path, and whether it is in
// the module.
func ours(importPath string) (string, bool) {
	if !under(importPath, module) {
		return "", false
	}
	return pkg{ImportPath: importPath}.path(), true
}

// list runs go list once for all tests.
var list = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,GoFiles,Imports,Deps,Module", module+"/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
})

func packages(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := list()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if len(pkgs) < 10 {
		t.Fatalf("go list found %d packages, want the whole module", len(pkgs))
	}
	return pkgs
}

// parsed are all Go files of the tree, tests among them, by their absolute paths.
var parsed = sync.OnceValues(func() (map[string]*ast.File, error) {
	out := map[string]*ast.File{}
	err := eachFile(".go", func(path string) (err error) {
		if path, err = filepath.Abs(path); err == nil {
			out[path], err = parser.ParseFile(positions, path, nil, parser.ParseComments)
		}
		return err
	})
	return out, err
})

// positions are those of the parsed files.
var positions = token.NewFileSet()

func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// files returns the package's parsed files, tests left out, by their names.
func files(t *testing.T, p pkg) map[string]*ast.File {
	t.Helper()
	of := map[string]*ast.File{}
	for _, name := range p.GoFiles {
		of[name] = sources(t)[filepath.Join(p.Dir, name)]
	}
	return of
}

func TestDocs(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		parsed := files(t, p)
		doc := parsed["doc.go"]
		if doc == nil && p.Name == "main" {
			doc = parsed["main.go"]
		}
		for _, f := range parsed { // the workshop and test helpers may keep it beside the code
			if doc == nil && !p.production() && f.Doc != nil {
				doc = f
			}
		}
		if doc == nil || doc.Doc == nil {
			t.Errorf("%s: no package comment in doc.go", p.path())
			continue
		}
		text := doc.Doc.Text()
		for name, f := range parsed {
			if f != doc && f.Doc != nil {
				t.Errorf("%s/%s: a second package comment; it belongs in doc.go", p.path(), name)
			}
		}
		if p.Name == "main" {
			continue
		}
		if !strings.HasPrefix(text, "Package "+p.Name+" ") {
			t.Errorf("%s: doc.go opens with %.40q, want \"Package %s …\"", p.path(), text, p.Name)
		}
		if p.production() && !under(p.path(), "internal") && (!strings.Contains(text, "guaranteed") || !strings.Contains(text, "not guaranteed")) {
			t.Errorf("%s: doc.go does not say what is guaranteed and what is not", p.path())
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	vague := map[string]bool{"util": true, "utils": true, "common": true, "helper": true, "helpers": true, "misc": true, "shared": true, "base": true}
	for _, p := range packages(t) {
		if vague[p.Name] {
			t.Errorf("%s: the name says nothing about what is in it", p.path())
		}
	}
}

// TestNoSleep holds that only tests with a clock of their own sleep.
func TestNoSleep(t *testing.T) {
	t.Parallel()
	const sleep = "time." + "Sleep("
	walk(t, "_test.go", func(path string) {
		text := read(t, path)
		if strings.Contains(text, sleep) && !strings.Contains(text, "\"testing/synctest\"") {
			t.Errorf("%s sleeps: wait for an event or for a condition with a deadline, or use testing/synctest", path)
		}
	})
}

func TestFileLength(t *testing.T) {
	t.Parallel()
	const most = 500
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			f, err := os.Open(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			lines := 0
			for s := bufio.NewScanner(f); s.Scan(); {
				lines++
			}
			_ = f.Close()
			if lines > most {
				t.Errorf("%s/%s: %d lines, want at most %d: is it one thing?", p.path(), name, lines, most)
			}
		}
	}
}
