package shards

import "slices"

// View is what an instance knows of the shards at one moment.
type View struct {
	Me      string
	Live    []string // instances that were seen lately, this one among them or not
	Leaders []string // of each shard; empty where nobody leads
	Vacant  []bool   // shards that nobody has led for longer than a hand-over takes
	Kept    []bool   // shards that this instance has handed over, and nobody took
	Uneven  bool     // of the plan before
}

// Plan is what an instance does.
type Plan struct {
	Campaign []bool // the shards whose lock it tries for
	GiveUp   int    // the shard that it hands over; -1 for none
	Uneven   bool   // an instance leads two shards more than another, or did when each had a leader
}

// none is the shard of a plan that hands none over.
const none = -1

// Decide returns what an instance does. While no instance leads two shards more than another, every
// instance tries for every shard, so that a takeover waits for nothing. Otherwise a shard moves from
// an instance that leads most to one that leads fewest: the others stay back, and the next one moves
// when every shard has a leader again. A shard without a leader says nothing of how even the shares
// are: its leader has died, or hands over.
func Decide(v View) Plan {
	live := slices.Clone(v.Live)
	if !slices.Contains(live, v.Me) {
		live = append(live, v.Me)
	}
	slices.Sort(live)
	led := map[string]int{}
	for _, l := range v.Leaders {
		led[l]++
	}
	fewest, most := led[live[0]], led[live[0]]
	for _, name := range live {
		fewest, most = min(fewest, led[name]), max(most, led[name])
	}
	all := !slices.Contains(v.Leaders, "")
	p := Plan{Campaign: make([]bool, len(v.Leaders)), GiveUp: none, Uneven: v.Uneven}
	if all {
		p.Uneven = most-fewest >= 2
	}
	for i := range v.Leaders {
		p.Campaign[i] = !p.Uneven || led[v.Me] == fewest || v.Vacant[i]
	}
	first := slices.IndexFunc(live, func(name string) bool { return led[name] == most })
	if p.Uneven && all && live[first] == v.Me {
		p.GiveUp = last(v)
	}
	return p
}

// last returns the last shard that the instance leads. One that nobody took comes after the others:
// whoever is to have it may not reach its database.
func last(v View) int {
	kept := none
	for i := len(v.Leaders) - 1; i >= 0; i-- {
		switch {
		case v.Leaders[i] != v.Me:
		case !v.Kept[i]:
			return i
		case kept == none:
			kept = i
		}
	}
	return kept
}

// Outcome is what became of a hand-over.
type Outcome int

// The outcomes.
const (
	Underway Outcome = iota // its leader still ends what is in flight, or nobody leads
	Taken                   // another instance leads
	Returned                // nobody else took the shard
)

// HandedOver returns what became of a shard that instance me gave up in the term of epoch given. Leader
// leads it now, under epoch when that is me.
func HandedOver(me string, given int64, leader string, epoch int64) Outcome {
	switch {
	case leader == "" || leader == me && epoch <= given:
		return Underway
	case leader == me:
		return Returned
	default:
		return Taken
	}
}
