package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// kind is what a scenario is about.
type kind int

const (
	againstRaw      kind = iota // rate, against the bare loader
	againstOwn                  // rate, against the same on weft's own schema
	againstUntraced             // rate, against the same without traces
	againstOne                  // rate of several shards, against that of one
	claims                      // time of lists and leases, against that at referenceEvents pending
	trickle                     // latency of single events, and the cost of waiting for them
	byItself                    // what a backlog of a kind costs
	writers                     // what triggers cost those who write, beside none
	upkeep                      // what comparing and rebuilding cost
)

// compares reports whether a scenario has a ratio, where there is another build or not.
func (k kind) compares(build bool) bool {
	return k != writers && k != upkeep && (build || k != trickle && k != byItself)
}

const (
	// referenceEvents are pending where lists and leases are compared with.
	referenceEvents = 20_000
	// referenceDrains: one drain of so few events has too few leases for a p99.
	referenceDrains = 3

	defaultText = 200

	finishedArchive = "archive"
	finishedDelete  = "delete"
)

type workload struct {
	events   int
	entities int    // event i is of entity i mod entities
	text     int    // bytes
	deletes  bool   // every third event beyond the first of its entity is a delete
	adopted  bool   // in the tables of a deployment that weft has adopted
	parents  bool   // each event has the trace context of its producer
	traced   bool   // weft exports the spans of one event in a hundred
	waiting  int    // rows of other entities that wait for their retry
	blocked  int    // rows of one entity, ready, behind one of them that is parked
	snapshot bool   // a transaction from before the drain stays open
	before   int    // trickle: events that are drained first
	declared bool   // by a declaration, from an outbox that triggers fill
	loads    bool   // no events: the leader loads the rows
	gzip     bool   // weft compresses bulk requests
	shards   int    // that one instance leads; 0 for tables without shards
	finished string // what becomes of events that are done; empty is keep
	drains   int    // times over, in fresh tables
}

type scenario struct {
	name  string
	about string
	kind  kind
	load  workload
}

// scenarios lists them. Where a workload does not say otherwise every event is of another entity, the
// texts are short, and there is one drain.
func scenarios() []scenario {
	const events = 100_000
	all := []scenario{
		{"distinct", "every event another entity, 200-byte text", againstRaw, workload{events: events}},
		{"distinct-archive", "as distinct, with finished events moved to the history", againstRaw, workload{events: events, finished: finishedArchive}},
		{"distinct-delete", "as distinct, with finished events deleted", againstRaw, workload{events: events, finished: finishedDelete}},
		{"gzip", "as distinct, with bulk requests compressed by weft", againstRaw, workload{events: events, gzip: true}},
		{"declared", "as distinct, by a declaration from an outbox that triggers fill", againstRaw, workload{events: events, declared: true}},
		{"load", "100,000 rows without events, which the leader loads first", againstRaw, workload{events: events, declared: true, loads: true}},
		{"hot", "100,000 events over 5,000 entities; the loader is fed every event", againstRaw, workload{events: events, entities: 5000}},
		{"mixed", "upserts, second upserts and deletes of 2 kB documents", againstRaw, workload{events: events, entities: 70_000, text: 2000, deletes: true}},
		{"trickle", "500 events a second for 20 s, then 20 s without any", trickle, workload{events: 10_000}},
		{"backlog", "2,000,000 events pending", claims, workload{events: 2_000_000}},
		{"retrying", "20,000 events between 200,000 that wait for their retry", claims, workload{events: 20_000, waiting: 200_000, drains: referenceDrains}},
		{"longtx", "1,000,000 events, and a snapshot from before them held open", claims, workload{events: 1_000_000, snapshot: true}},
		{"trickle-longtx", "as trickle, under a snapshot from before 1,000,000 events", trickle, workload{events: 10_000, before: 1_000_000, snapshot: true}},
		{"adopted", "as distinct, in the Wordloom schema with its eleven indexes", againstOwn, workload{events: events, adopted: true}},
		{"adopted-archive", "as adopted, with finished events moved to the history", againstOwn, workload{events: events, adopted: true, finished: finishedArchive}},
		{"traced", "as distinct, with traces of one event in a hundred", againstUntraced, workload{events: events, parents: true, traced: true}},
		{"shards-2", "as distinct, in two shards of one server, led by one instance", againstOne, workload{events: events, shards: 2}},
		{"shards-4", "as shards-2, in four shards", againstOne, workload{events: events, shards: 4}},
		{"waiting", "20,000 events between 10,000,000 that wait for their retry", byItself, workload{events: 20_000, waiting: 10_000_000}},
		{"blocked", "20,000 events behind 10,000,000 of one entity of which the first is parked", byItself, workload{events: 20_000, blocked: 10_000_000}},
		{"triggers", "updates of 1, 1,000 and 100,000 rows of a parent and a child, beside none", writers, workload{events: events}},
		{verifyScenario, "comparisons of 100,000 rows beside an idle leader, and with 2,000 live events a second", upkeep, workload{events: events}},
		{rebuildScenario, "rebuilds of 100,000 rows with 500 live events a second, beside the bare loader, and with searches", upkeep, workload{events: events}},
		{scrubScenario, "the comparison in the background, 200 rows and documents a second, beside none", upkeep, workload{events: 20_000}},
		{"single", "60,000 events of one entity", byItself, workload{events: 60_000, entities: 1}},
	}
	for i := range all {
		w := &all[i].load
		w.entities, w.text, w.drains = cmp.Or(w.entities, w.events), cmp.Or(w.text, defaultText), cmp.Or(w.drains, 1)
	}
	return all
}

// pick returns the scenarios of these names, in the order given.
func pick(names []string) ([]scenario, error) {
	all := scenarios()
	var out []scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no scenario is named %q; there are %s", name, strings.Join(scenarioNames(), ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

func scenarioNames() []string {
	return rig.Map(scenarios(), func(s scenario) string { return s.name })
}

// scaled is the workload with another number of events and everything else in
// proportion; 0 changes nothing.
func (w workload) scaled(events int) workload {
	if events == 0 {
		return w
	}
	scale := func(n int) int { return int(int64(n) * int64(events) / int64(w.events)) }
	w.entities, w.waiting, w.blocked, w.before = max(scale(w.entities), 1), scale(w.waiting), scale(w.blocked), scale(w.before)
	w.events = events
	return w
}

// reference is what lists and leases of this workload are compared with.
func (w workload) reference() workload {
	n := min(referenceEvents, w.events)
	return workload{events: n, entities: n, text: defaultText, drains: referenceDrains}
}
