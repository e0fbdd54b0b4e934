package archtest

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"strings"
	"testing"
)

func TestNoInit(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if !p.production() {
			continue
		}
		fset, parsed := positions, files(t, p)
		for _, f := range parsed {
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					t.Errorf("%s: init: what a package needs is handed to it", fset.Position(fn.Pos()))
				}
			}
		}
	}
}

func TestNoMutableGlobals(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if !p.production() || p.ImportPath == module+"/internal/archtest" {
			continue
		}
		fset, parsed := positions, files(t, p)
		for _, problem := range globals(fset, p.ImportPath, parsed) {
			t.Error(problem)
		}
	}
}

// globals names the package-level variables that are not allowed: an error value,
// an embedded file and a blank one are; a table (a composite literal or a compiled
// pattern) is when it is not exported; a string of package main is, because the
// linker stamps it. None of them is ever assigned to, nor is its address taken.
func globals(fset *token.FileSet, path string, parsed map[string]*ast.File) (problems []string) {
	var fs []*ast.File
	for _, f := range parsed {
		fs = append(fs, f)
	}
	// Imports stay unresolved, an error by design: the names of this package are enough.
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: noImports{}, Error: func(error) {}}
	tpkg, _ := conf.Check(path, fset, fs, info)

	at := func(n ast.Node, name, what string) {
		problems = append(problems, fset.Position(n.Pos()).String()+": "+name+": "+what)
	}
	for _, f := range fs {
		for _, d := range f.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.VAR {
				continue
			}
			for _, s := range decl.Specs {
				spec, ok := s.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, name := range spec.Names {
					var value ast.Expr
					if i < len(spec.Values) {
						value = spec.Values[i]
					}
					if !fixed(f.Name.Name, name.Name, value, embedded(decl, spec)) {
						at(name, name.Name, "a package-level variable that is no error, embedded file or unexported table")
					}
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			var targets []ast.Expr
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					targets = n.Lhs
				}
			case *ast.IncDecStmt:
				targets = []ast.Expr{n.X}
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					targets = []ast.Expr{n.X}
				}
			}
			for _, target := range targets {
				id := root(target)
				if id == nil {
					continue
				}
				if v, ok := info.Uses[id].(*types.Var); ok && tpkg != nil && v.Parent() == tpkg.Scope() {
					at(id, id.Name, "a package-level variable is changed here")
				}
			}
			return true
		})
	}
	return problems
}

func fixed(pkgName, name string, value ast.Expr, embedded bool) bool {
	exported := ast.IsExported(name)
	if name == "_" || embedded {
		return true
	}
	switch v := value.(type) {
	case *ast.CompositeLit:
		return !exported
	case *ast.BasicLit:
		return pkgName == "main" && !exported && v.Kind == token.STRING
	case *ast.CallExpr:
		switch types.ExprString(v.Fun) {
		case "errors.New", "fmt.Errorf":
			return strings.HasPrefix(strings.ToLower(name), "err")
		case "regexp.MustCompile", "strings.NewReplacer":
			return !exported
		}
	}
	return false
}

func embedded(decl *ast.GenDecl, spec *ast.ValueSpec) bool {
	for _, doc := range []*ast.CommentGroup{decl.Doc, spec.Doc} {
		if doc == nil {
			continue
		}
		for _, c := range doc.List {
			if strings.HasPrefix(c.Text, "//go:embed ") {
				return true
			}
		}
	}
	return false
}

// root is the identifier at the bottom of x.f[i]…, nil when there is none.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return nil
		}
	}
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not resolved") }

// TestGlobalsRule shows that the rule sees what it is for.
func TestGlobalsRule(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, src string
		want      int
	}{
		{"Error", "var ErrX = errors.New(\"x\")", 0},
		{"ErrorByAnotherName", "var X = errors.New(\"x\")", 1},
		{"Table", "var names = map[string]int{\"a\": 1}", 0},
		{"ExportedTable", "var Names = []string{\"a\"}", 1},
		{"TableChanged", "var names = map[string]int{}\nfunc f() { names[\"a\"]++ }", 1},
		{"TableReplaced", "var names = []int{1}\nfunc f() { names = nil }", 1},
		{"AddressTaken", "var table = struct{ n int }{}\nfunc f() *int { return &table.n }", 1},
		{"Shadowed", "var names = []int{1}\nfunc f() { names := []int{2}; names[0] = 3 }", 0},
		{"Zero", "var cache sync.Map", 1},
		{"Call", "var now = time.Now()", 1},
		{"Function", "var now = time.Now", 1},
		{"Embedded", "//go:embed x\nvar fs embed.FS", 0},
		{"EmbeddedInGroup", "var (\n\t//go:embed x\n\tfs embed.FS\n)", 0},
		{"Blank", "var _ io.Reader = (*bytes.Buffer)(nil)", 0},
		{"Pattern", "var word = regexp.MustCompile(`a`)", 0},
		{"String", "var version = \"dev\"", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			src := "package p\nimport (\"bytes\"; \"embed\"; \"errors\"; \"io\"; \"regexp\"; \"sync\"; \"time\")\n" + tc.src
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, "p.go", src, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			got := globals(fset, "p", map[string]*ast.File{"p.go": f})
			if len(got) != tc.want {
				t.Errorf("got %d problems %q, want %d", len(got), got, tc.want)
			}
		})
	}
}
