package arrows

import (
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
	{"consumer", "the pipeline knows no projection", []string{"outbox", "internal/spanlog"}},
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

// TestProductionStandsAlone holds that what ships reaches neither the workshop nor
// a test helper, directly or through others.
func TestProductionStandsAlone(t *testing.T) {
	t.Parallel()
	forbidden := []string{
		module + "/internal/lab", module + "/cmd", "testing", "net/http/httptest",
		"go.uber.org/goleak", "github.com/google/go-cmp",
		"github.com/Shopify/toxiproxy",
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
