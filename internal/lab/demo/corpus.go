package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Document is one documented symbol of the standard library.
type Document struct {
	Key       outbox.Key // type: package, type, func, method, const or var; id: from Symbol
	Symbol    string     // net/http.Client.Do
	LibraryID uuid.UUID  // from the first element of the import path
	Text      string     // the symbol, an empty line, the doc comment
	RankScore float64    // in (0, 1]: see rank
}

// namespace makes the ids of documents the same on every machine and in every run.
var namespace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://pkg.go.dev/std"))

// SymbolKey returns the key of the document of a symbol.
func SymbolKey(kind, symbol string) outbox.Key {
	return outbox.Key{Type: kind, ID: outbox.UUID(uuid.NewSHA1(namespace, []byte(kind+" "+symbol)))}
}

// rank puts a package above its types, an exported symbol above the others, and a
// short import path above a long one.
func rank(kind, importPath, symbol string) float64 {
	score := map[string]float64{"package": 1, "type": 0.8, "func": 0.7, "method": 0.6, "const": 0.4, "var": 0.4}[kind]
	for name := range strings.SplitSeq(strings.TrimPrefix(symbol, importPath), ".") {
		if name != "" && !token.IsExported(name) {
			score /= 4
		}
	}
	return score / float64(strings.Count(importPath, "/")+1)
}

func newDocument(kind, importPath, symbol, text string) Document {
	library, _, _ := strings.Cut(importPath, "/")
	return Document{
		Key:       SymbolKey(kind, symbol),
		Symbol:    symbol,
		LibraryID: uuid.NewSHA1(namespace, []byte("library "+library)),
		Text:      symbol + "\n\n" + strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD")),
		RankScore: rank(kind, importPath, symbol),
	}
}

// row is what is written about the document.
func (d *Document) row() traffic.Row {
	return traffic.Row{Text: d.Text, Rank: d.RankScore, Library: &d.LibraryID}
}

// ReadCorpus parses the packages below dir, the src directory of a Go installation,
// and returns the document of each package, type, function, method, constant and
// variable that has a doc comment, exported or not, ordered by symbol and kind.
// Commands, internal and vendored packages and test files are left out. The result depends on the files
// only: build constraints are read as for linux/amd64 with cgo, whatever this machine is.
func ReadCorpus(ctx context.Context, dir string) ([]Document, error) {
	dirs, err := packageDirs(dir)
	if err != nil {
		return nil, fmt.Errorf("packages below %s: %w", dir, err)
	}
	var docs []Document
	for _, rel := range dirs {
		found, err := readPackage(filepath.Join(dir, filepath.FromSlash(rel)), rel)
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, fmt.Errorf("package %s: %w", rel, err)
		}
		docs = append(docs, found...)
	}
	slices.SortStableFunc(docs, func(a, b Document) int {
		return cmp.Or(cmp.Compare(a.Symbol, b.Symbol), cmp.Compare(a.Key.Type, b.Key.Type))
	})
	// A package may declare one name several times: init.
	docs = slices.CompactFunc(docs, func(a, b Document) bool { return a.Key == b.Key })
	if len(docs) == 0 {
		return nil, fmt.Errorf("no documented package below %s", dir)
	}
	return docs, nil
}

// packageDirs returns the directories below root, with slashes.
func packageDirs(root string) (dirs []string, err error) {
	err = fs.WalkDir(os.DirFS(root), ".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || dir == "." {
			return err
		}
		switch name := d.Name(); {
		case name == "internal", name == "vendor", name == "testdata", name == "cmd",
			strings.HasPrefix(name, "."), strings.HasPrefix(name, "_"):
			return fs.SkipDir
		}
		dirs = append(dirs, dir)
		return nil
	})
	return dirs, err
}

func readPackage(dir, importPath string) ([]Document, error) {
	platform := build.Default
	platform.GOOS, platform.GOARCH, platform.CgoEnabled = "linux", "amd64", true
	found, err := platform.ImportDir(dir, 0)
	if noGo := (*build.NoGoError)(nil); errors.As(err, &noGo) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range slices.Concat(found.GoFiles, found.CgoFiles) {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(fset, files, importPath, doc.AllDecls)
	if err != nil {
		return nil, err
	}
	return documents(p, importPath), nil
}

func documents(p *doc.Package, importPath string) []Document {
	var out []Document
	add := func(kind, symbol, text string) {
		if strings.TrimSpace(text) != "" {
			out = append(out, newDocument(kind, importPath, symbol, text))
		}
	}
	values := func(groups []*doc.Value) {
		for _, v := range groups {
			for name, text := range valueDocs(v) {
				add(v.Decl.Tok.String(), importPath+"."+name, text)
			}
		}
	}
	funcs := func(kind, prefix string, fs []*doc.Func) {
		for _, f := range fs {
			add(kind, prefix+"."+f.Name, f.Doc)
		}
	}
	add("package", importPath, p.Doc)
	values(p.Consts)
	values(p.Vars)
	funcs("func", importPath, p.Funcs)
	for _, t := range p.Types {
		add("type", importPath+"."+t.Name, t.Doc)
		values(t.Consts)
		values(t.Vars)
		funcs("func", importPath, t.Funcs)
		funcs("method", importPath+"."+t.Name, t.Methods)
	}
	return out
}

// valueDocs returns the comment of each name of a const or var
// declaration: its own, the one at the end of its line, or the declaration's.
func valueDocs(v *doc.Value) map[string]string {
	texts := map[string]string{}
	for _, s := range v.Decl.Specs {
		spec, ok := s.(*ast.ValueSpec)
		if !ok {
			continue
		}
		text := cmp.Or(spec.Doc.Text(), spec.Comment.Text(), v.Doc)
		for _, name := range spec.Names {
			if name.Name != "_" {
				texts[name.Name] = text
			}
		}
	}
	return texts
}
