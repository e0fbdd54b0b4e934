package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const logEvents = tree + "/docs/runbooks/log-events.md"

var (
	eventRow     = regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\| ([a-z, ]+) \\|")
	limitedEvent = regexp.MustCompile(`(?m)^\t"([a-z_.]+)":`)
)

// TestLogEvents holds that every line that the log may carry at warn or error has its row
// in the runbook, at its level, and that the runbook names no others.
func TestLogEvents(t *testing.T) {
	t.Parallel()
	used := map[string]map[string]bool{}
	for _, p := range packages(t) {
		if !p.production() {
			continue
		}
		fset, parsed := positions, files(t, p)
		for _, f := range parsed {
			found, problems := events(fset, f)
			for _, problem := range problems {
				t.Error(problem)
			}
			for name, levels := range found {
				if used[name] == nil {
					used[name] = map[string]bool{}
				}
				maps.Copy(used[name], levels)
			}
		}
	}
	listed := map[string]string{}
	for _, m := range eventRow.FindAllStringSubmatch(read(t, logEvents), -1) {
		if _, twice := listed[m[1]]; twice {
			t.Errorf("%s has two rows for %s", logEvents, m[1])
		}
		listed[m[1]] = m[2]
	}
	for name, levels := range used {
		want := strings.Join(slices.Sorted(maps.Keys(levels)), ", ")
		switch got, ok := listed[name]; {
		case want == "": // never above info
			if ok {
				t.Errorf("%s lists %s, which is never above info", logEvents, name)
			}
		case !ok:
			t.Errorf("%s has no row for %s (%s)", logEvents, name, want)
		case got != want:
			t.Errorf("%s gives %s the level %q, the code %q", logEvents, name, got, want)
		}
	}
	for name := range listed {
		if used[name] == nil {
			t.Errorf("%s lists %s, and nothing logs it", logEvents, name)
		}
	}
	if len(listed) < 25 {
		t.Errorf("%s has %d rows, want all of them", logEvents, len(listed))
	}
	for _, name := range limitedEvents(t) {
		if used[name] == nil {
			t.Errorf("internal/telemetry/limit.go limits %s, and nothing logs it", name)
		}
	}
}

// limitedEvents returns the events whose lines are thinned out.
func limitedEvents(t *testing.T) (names []string) {
	t.Helper()
	_, table, _ := strings.Cut(read(t, filepath.Join(tree, "internal/telemetry/limit.go")), "var families = map[string]family{")
	table, _, _ = strings.Cut(table, "\n}")
	for _, m := range limitedEvent.FindAllStringSubmatch(table, -1) {
		names = append(names, m[1])
	}
	if len(names) < 5 {
		t.Fatalf("found %d limited events, want all of them", len(names))
	}
	return names
}

// events returns the names of the events that f logs, each with those of its levels that
// are above info, and the calls that name none. Where the level is not to be seen in the
// call, as with a line made in steps, the levels that its function names count.
func events(fset *token.FileSet, f *ast.File) (found map[string]map[string]bool, problems []string) {
	found = map[string]map[string]bool{}
	add := func(name string, levels ...string) {
		if found[name] == nil {
			found[name] = map[string]bool{}
		}
		for _, l := range levels {
			found[name][l] = true
		}
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		direct := map[string]bool{}
		var indirect []*ast.CallExpr // log calls whose fields stand elsewhere
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !logs(call) {
				return true
			}
			names := eventsIn(call)
			if len(names) == 0 {
				indirect = append(indirect, call)
			}
			for _, name := range names {
				direct[name] = true
				add(name, loud(call.Fun.(*ast.SelectorExpr).Sel.Name)...)
			}
			return true
		})
		var rest []string
		for _, name := range eventsIn(fn.Body) {
			if !direct[name] {
				rest = append(rest, name)
				add(name, levelsNamed(fn.Body, indirect)...)
			}
		}
		if len(rest) == 0 {
			for _, call := range indirect {
				problems = append(problems, fset.Position(call.Pos()).String()+": a log line without an event")
			}
		}
	}
	return found, problems
}

// logs says whether call writes a line: a method of a logger with a text and fields.
func logs(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, sel.Sel.Name) || len(call.Args) == 0 {
		return false
	}
	of := strings.ToLower(exprName(sel.X))
	return of == "log" || of == "logger"
}

func exprName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr: // log.With(…).Warn
		if sel, ok := e.Fun.(*ast.SelectorExpr); ok {
			return exprName(sel.X)
		}
	}
	return ""
}

func loud(method string) []string {
	if method == "Warn" || method == "Error" {
		return []string{strings.ToLower(method)}
	}
	return nil
}

// levelsNamed returns the levels above info that body names, in a value like
// zapcore.WarnLevel, in a method taken as a value, or in one of calls.
func levelsNamed(body ast.Node, calls []*ast.CallExpr) (out []string) {
	for _, call := range calls {
		out = append(out, loud(call.Fun.(*ast.SelectorExpr).Sel.Name)...)
	}
	called := map[ast.Expr]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			called[call.Fun] = true
		}
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || called[sel] {
			return true
		}
		switch name := sel.Sel.Name; {
		case name == "WarnLevel" || name == "ErrorLevel":
			out = append(out, strings.ToLower(strings.TrimSuffix(name, "Level")))
		case exprName(sel.X) == "log":
			out = append(out, loud(name)...)
		}
		return true
	})
	return out
}

// eventsIn returns the values of zap.String("event", …) below n.
func eventsIn(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || sel.Sel.Name != "String" || exprName(sel.X) != "zap" {
			return true
		}
		if literal(call.Args[0]) == "event" {
			names = append(names, literal(call.Args[1]))
		}
		return true
	})
	return names
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		return strings.Trim(l.Value, "`\"")
	}
	return ""
}

// TestLogEventsRule shows that the rule sees what it is for.
func TestLogEventsRule(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, body, want string }{
		{"Direct", `p.log.Warn("x", zap.String("event", "a.b"))`, "a.b: warn"},
		{"Quiet", `log.Info("x", zap.String("event", "a.b"))`, "a.b: "},
		{"Missing", `log.Error("x", zap.Int("n", 1))`, "a log line without an event"},
		{"MissingWithoutFields", `log.Info("x")`, "a log line without an event"},
		{"FieldsBefore", `f := []zap.Field{zap.String("event", "a.b")}; if bad { log.Warn("x", f...) } else { log.Info("x", f...) }`, "a.b: warn"},
		{"Appended", `log.Error("x", append(f, zap.String("event", "a.b"))...)`, "a.b: error"},
		{"Checked", `level = zapcore.ErrorLevel; if ce := log.Check(level, "x"); ce != nil { ce.Write(zap.String("event", "a.b")) }`, "a.b: error"},
		{"MethodValue", `level := r.log.Info; if bad { level = r.log.Error }; level("x", zap.String("event", "a.b"))`, "a.b: error"},
		{"NotALog", `t.Error("x"); err.Error()`, ""},
		{"Chained", `log.With(zap.Int("n", 1)).Warn("x", zap.String("event", "a.b"))`, "a.b: warn"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, "p.go", "package p\nfunc f() {\n"+tc.body+"\n}", 0)
			if err != nil {
				t.Fatal(err)
			}
			found, problems := events(fset, f)
			got := strings.Join(problems, "")
			for name, levels := range found {
				got += name + ": " + strings.Join(slices.Sorted(maps.Keys(levels)), ", ")
			}
			if got != tc.want && !strings.HasSuffix(got, ": "+tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
