package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// allowed lists, for each package, the packages of ours that it may import; the
// rest is forbidden. A name that ends in /… stands for everything below it. What a
// package may import it may also reach. Tests are free.
var allowed = []struct {
	from, why string
	to        []string
}{
	{"leader", "an application may elect with it alone", nil},
	{"outbox", "an application enqueues with it alone", nil},
	{"migrations", "the schema is the contract; code follows it", nil},
	{"consumer", "the pipeline knows no projection", []string{"consumer/schedule", "consumer/observe", "outbox"}},
	{"consumer/schedule", "it decides and does nothing", []string{"outbox"}},
	{"consumer/observe", "it tells what was decided", []string{"consumer/schedule", "outbox", "internal/spanlog"}},
	{"reclaim", "it moves rows and looks at none", []string{"outbox"}},
	{"projections/elastic", "the sink takes documents, not projections", []string{"outbox", "internal/spanlog"}},
	{"projections", "a projection answers for events and drives nothing", []string{"outbox", "projections/elastic"}},
	{"internal/config", "packages take plain structs; config fills them", []string{
		"leader", "outbox", "consumer", "reclaim", "migrations", "projections/…"}},
	{"internal/telemetry", "what every part is handed", []string{"outbox"}},
	{"internal/spanlog", "what every part may say of its spans", nil},
	{"internal/postgres", "connections, for any part", nil},
	{"internal/systemd", "it passes on what it is given", nil},
	{"internal/admin", "it shows what it is given", []string{"outbox", "leader"}},
	{"internal/records", "what the tables say, for people", []string{"leader", "outbox", "projections", "internal/config"}},
	{"internal/desk", "it shows what it is given, and what the tables say", []string{"leader", "outbox", "internal/admin", "internal/postgres", "internal/records", "internal/replay"}},
	{"", "the library hands its options to the daemon", []string{
		"projections", "internal/admin", "internal/config", "internal/daemon", "internal/postgres", "internal/telemetry"}},
}

func TestArrows(t *testing.T) {
	t.Parallel()
	pkgs := packages(t)
	for _, rule := range allowed {
		i := slices.IndexFunc(pkgs, func(p pkg) bool { return p.path() == rule.from })
		if i < 0 {
			t.Errorf("%s: no such package; the table of arrows is out of date", rule.from)
			continue
		}
		for _, imp := range pkgs[i].Imports {
			path, mine := ours(imp)
			if mine && !slices.ContainsFunc(rule.to, func(to string) bool { return matches(path, to) }) {
				t.Errorf("%s imports %s: %s", rule.from, path, rule.why)
			}
		}
	}
}

// TestNothingStandsOnTheLibrary holds that only programs import the root package: it is the
// front of the others.
func TestNothingStandsOnTheLibrary(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if slices.Contains(p.Imports, module) && !under(p.path(), "cmd") && !under(p.path(), "examples") {
			t.Errorf("%s imports the root package, which is for programs and examples", p.path())
		}
	}
}

// TestSchedulerIsPure holds that nothing but what is handed in decides: package schedule
// reaches no clock, no source of randomness, no server and no goroutine.
func TestSchedulerIsPure(t *testing.T) {
	t.Parallel()
	pkgs := packages(t)
	i := slices.IndexFunc(pkgs, func(p pkg) bool { return p.path() == "consumer/schedule" })
	if i < 0 {
		t.Fatal("no package consumer/schedule")
	}
	free := []string{"cmp", "maps", "math", "slices", "time", "github.com/google/uuid", module + "/outbox"}
	for _, imp := range pkgs[i].Imports {
		if !slices.Contains(free, imp) {
			t.Errorf("consumer/schedule imports %s, want only %s", imp, strings.Join(free, ", "))
		}
	}
	fset, parsed := positions, files(t, pkgs[i])
	for _, f := range parsed {
		for _, problem := range impure(fset, f) {
			t.Error(problem)
		}
	}
}

// impure names the goroutines that f starts, and its uses of the local clock and of ids
// that are made from it or at random.
func impure(fset *token.FileSet, f *ast.File) (problems []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			problems = append(problems, fset.Position(n.Pos()).String()+": a goroutine")
		case *ast.SelectorExpr:
			of, name := exprName(n.X), n.Sel.Name
			clock := of == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}, name)
			made := of == "uuid" && strings.HasPrefix(name, "New")
			if clock || made {
				problems = append(problems, fset.Position(n.Pos()).String()+": "+of+"."+name+": it is handed in")
			}
		}
		return true
	})
	return problems
}

// TestSchedulerIsPureRule shows that the rule sees what it is for.
func TestSchedulerIsPureRule(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		want       int
	}{
		{"Clock", "x := time.Now(); _ = time.Since(x)", 2},
		{"Timer", "<-time.After(1)", 1},
		{"Goroutine", "go g()", 1},
		{"Random", "id := uuid.New()", 1},
		{"HandedIn", "until := now.Add(time.Second); id := s.cfg.NewID(); _ = now.After(until)", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, "p.go", "package p\nfunc f() {\n"+tc.body+"\n}", 0)
			if err != nil {
				t.Fatal(err)
			}
			if got := impure(fset, f); len(got) != tc.want {
				t.Errorf("got %v, want %d problems", got, tc.want)
			}
		})
	}
}

// owned lists the modules that belong to one place, so that they can be exchanged
// there.
var owned = []struct{ module, owner, why string }{
	{"github.com/knadh/koanf", "internal/config", "packages take plain structs"},
	{"github.com/elastic", "projections/elastic", "one place sends and classifies"},
	{"github.com/pressly/goose", "migrations", "one place changes tables"},
	{"github.com/coreos/go-systemd", "internal/systemd", "one place talks to the service manager"},
}

func TestOwnedModules(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			for _, o := range owned {
				if !under(imp, o.module) {
					continue
				}
				used[o.module] = true
				if !under(p.path(), o.owner) {
					t.Errorf("%s imports %s, which belongs to %s: %s", p.path(), imp, o.owner, o.why)
				}
			}
		}
	}
	for _, o := range owned {
		if !used[o.module] {
			t.Errorf("%s: nothing imports it; the table is out of date", o.module)
		}
	}
}

// TestWorkshopStandsOnTestenv holds that what product tests need knows nothing of the
// workshop that is built on it.
func TestWorkshopStandsOnTestenv(t *testing.T) {
	t.Parallel()
	var seen int
	for _, p := range packages(t) {
		if !under(p.path(), "internal/testenv") {
			continue
		}
		seen++
		for _, imp := range p.Imports {
			if path, mine := ours(imp); mine && under(path, "internal/lab") {
				t.Errorf("%s imports %s: the workshop stands on it", p.path(), path)
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d packages below internal/testenv, want all of them", seen)
	}
}

// TestProductionStandsAlone holds that what ships reaches neither the workshop nor
// a test helper, directly or through others.
func TestProductionStandsAlone(t *testing.T) {
	t.Parallel()
	forbidden := []string{
		module + "/internal/lab", module + "/internal/testenv", module + "/cmd", "testing", "net/http/httptest",
		"go.uber.org/goleak", "github.com/google/go-cmp",
	}
	var weft bool
	for _, p := range packages(t) {
		weft = weft || p.path() == "cmd/weft"
		if !p.production() {
			continue
		}
		for _, dep := range p.Deps {
			path, mine := ours(dep)
			if mine && strings.HasSuffix(path, "test") || slices.ContainsFunc(forbidden, func(f string) bool { return under(dep, f) }) {
				t.Errorf("%s reaches %s, which is for the workshop and for tests", p.path(), dep)
			}
		}
	}
	if !weft {
		t.Error("go list does not name cmd/weft")
	}
}

func matches(path, pattern string) bool {
	if dir, below := strings.CutSuffix(pattern, "/…"); below {
		return under(path, dir)
	}
	return path == pattern
}
