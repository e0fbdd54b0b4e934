package drill

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// Scenario is one drill.
type Scenario struct {
	Name   string
	About  string // what is done
	Shows  string // what the evidence must show
	Params []Param
	// runbooks are the names of those that it rehearses; none of what weft does not do.
	runbooks []string
	// Minutes says that it takes some, so that not every change is tested with it.
	Minutes bool
	// Owned says that servers are stopped, which is only done to one's own.
	Owned bool
	// Slow says that it is left out where every change has to pass the drills.
	Slow bool

	bound time.Duration // of the whole run; 0 is runBound
	nodes int           // of Elasticsearch, as one cluster, with an index as [rig.ClusterIndex] says; 0 is one

	// cut says that nodes are cut off, which not every user can.
	cut bool

	// proxied says that instances reach Postgres through their proxies. Otherwise they
	// connect to it directly, because a certificate names the server and no proxy.
	proxied   bool
	instances []instance // that run from the start, the first one as the leader
	run       func(*run) // a script; see [rig.Script]
	verify    func(*judge)
}

// Param is a setting of a scenario.
type Param struct {
	Name, Default, About string
}

type instance struct {
	name string
	env  []string
}

func one(env ...string) []instance { return []instance{{"a", env}} }

func pair(env ...string) []instance { return []instance{{"a", env}, {"b", env}} }

// missed are settings of a leader that is missed as soon as it falls silent: weft's defaults, which other
// instances of drills do not have.
func missed() []string { return []string{"WEFT_LEADER_TRUST=3s", "WEFT_LEADER_IDLE_SESSION=5s"} }

// Scenarios are all drills, in the order of the training ground.
func Scenarios() []Scenario {
	rebuilds := rebuilds()
	all := []Scenario{
		esDownConnect(), es429Inject(), esWriteBlock(), esBulkPartial(), dbClaimContention(), stuckReclaim(), duplicateDelivery(),
		projectionVersion(), entityQuarantined(), projectionThrottled(), documentsDiffer(), rebuilds[0], rebuilds[1],
		collectorDown(), lab003SkipLocked(), lab003AtomicClaim(),
	}
	return slices.Concat(all, failovers(), rebuilds[2:], clusterFaults())
}

// Runbooks returns the paths of the runbooks that a drill rehearses, from the top of the
// repository.
func Runbooks(scenario string) []string {
	paths := []string{}
	for _, s := range Scenarios() {
		if s.Name == scenario {
			for _, name := range s.runbooks {
				paths = append(paths, "docs/runbooks/"+name+".md")
			}
		}
	}
	return paths
}

// impossible says why a scenario cannot be run here; empty: it can.
func (s Scenario) impossible() string {
	if s.cut && !stack.CanCutOff() {
		return "cutting nodes off takes root and the program ip"
	}
	return ""
}

// sayLeftOut prints what "all" leaves out here.
func sayLeftOut(out io.Writer, names []string) {
	if len(names) != 1 || names[0] != "all" {
		return
	}
	for _, s := range Scenarios() {
		if why := s.impossible(); why != "" {
			fmt.Fprintf(out, "left out: %s: %s\n", s.Name, why)
		}
	}
}

// lookUp returns the scenarios of these names; "all" means those that can be run here, "fast" those
// that are not slow.
func lookUp(names []string) ([]Scenario, error) {
	all := Scenarios()
	if len(names) == 1 && names[0] == "all" {
		return slices.DeleteFunc(all, func(s Scenario) bool { return s.impossible() != "" }), nil
	}
	if len(names) == 1 && names[0] == "fast" {
		return slices.DeleteFunc(all, func(s Scenario) bool { return s.Slow }), nil
	}
	var out []Scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no scenario is named %q; `weftlab list` names them", name)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// fill returns the parameters that were set; [run.param] has the defaults. A name that no scenario
// knows is an error.
func fill(scenarios []Scenario, set []string) (map[string]string, error) {
	values := map[string]string{}
	for _, s := range set {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fmt.Errorf("parameter %q: want NAME=VALUE", s)
		}
		known := slices.ContainsFunc(scenarios, func(sc Scenario) bool {
			return slices.ContainsFunc(sc.Params, func(p Param) bool { return p.Name == name })
		})
		if !known {
			return nil, fmt.Errorf("no parameter is named %q here; `weftlab list` names them", name)
		}
		values[name] = value
	}
	return values, nil
}

const (
	runBound   = 5 * time.Minute
	awaitBound = 45 * time.Second
	drainBound = 2 * time.Minute // of what has come while a server started on a busy machine
	queryBound = 10 * time.Second
	pollPeriod = 20 * time.Millisecond

	// operator is who signs what weft is told to do, as the audit must say.
	operator = "weftlab"

	searchProjection = "search_index_to_elastic"
	searchOutbox     = rig.Outbox
	searchLive       = "search_outbox_events_live" // in flight shows as processing
	chronicleOutbox  = "chronicle_outbox_events"
)
