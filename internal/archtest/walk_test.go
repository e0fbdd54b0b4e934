package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"testing"
)

// codeLink is a function or method, and the file that it is said to be in.
var codeLink = regexp.MustCompile("\\[`([\\w.]+)`\\]\\(\\.\\./([\\w/]+\\.go)\\)")

// TestWalkNamesFunctions holds that docs/walk.md is still the way through the code: each
// function and method that it names is in the file that its link leads to.
func TestWalkNamesFunctions(t *testing.T) {
	t.Parallel()
	page := filepath.Join(tree, "docs/walk.md")
	steps := codeLink.FindAllStringSubmatch(read(t, page), -1)
	if len(steps) < 30 {
		t.Errorf("%s names %d functions, want the whole way", page, len(steps))
	}
	for _, m := range steps {
		if name, file := m[1], m[2]; !functions(t, file)[name] {
			t.Errorf("%s: there is no %s in %s", page, name, file)
		}
	}
}

// functions returns the names of the functions in a file, and Type.Method for its methods.
func functions(t *testing.T, file string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(tree, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := fn.Name.Name
		if fn.Recv != nil {
			recv := fn.Recv.List[0].Type
			if star, ok := recv.(*ast.StarExpr); ok {
				recv = star.X
			}
			if id, ok := recv.(*ast.Ident); ok {
				name = id.Name + "." + name
			}
		}
		names[name] = true
	}
	return names
}
