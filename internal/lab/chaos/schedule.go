package chaos

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
)

// Step is one fault of a schedule with everything that chance decides about it.
type Step struct {
	N       int           // from 1
	Kind    string        // name of the fault
	Shard   int           // whose leader it is about; 0 without shards
	Standby bool          // aimed at a standby instead of the leader
	Pause   time.Duration // of calm before it
	faults.Params
}

// String returns the step as one line of the schedule.
func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", s.N, s.Kind)
	if s.Standby {
		b.WriteString(" standby")
	}
	for _, f := range []struct {
		name string
		v    any
	}{
		{"pause", s.Pause}, {"hold", s.Hold}, {"latency", s.Latency}, {"jitter", s.Jitter}, {"every", s.Every}, {"bytes", s.Bytes}, {"variant", s.Variant},
	} {
		if !reflect.ValueOf(f.v).IsZero() {
			fmt.Fprintf(&b, " %s=%v", f.name, f.v)
		}
	}
	return b.String()
}

// schedule is an endless sequence of steps: shuffled decks of faults, so that every fault has
// its turn before any has too many. It is a function of seed and faults.
type schedule struct {
	dice  faults.Dice
	kinds []string // of a deck
	deck  []string
	n     int
	pause time.Duration // at most, before a fault
	// shards is how many there are to aim at; 0 or 1: no choice.
	shards int
}

const (
	longestPause = 1500 * time.Millisecond
	// rebuildPause is longer than a rebuild takes in calm: faults come in all its phases, and some
	// rebuilds end.
	rebuildPause = 12 * time.Second
)

// newSchedule draws from only, or from all faults by their share when it is empty: of those
// that need more than two servers, the ones of there.
func newSchedule(seed uint64, only []string, there ...faults.Where) *schedule {
	s := &schedule{dice: faults.Dice{Rand: rand.New(rand.NewPCG(seed, 0))}, kinds: only, pause: longestPause}
	if len(only) == 0 {
		for _, f := range faults.All() {
			if f.Where == faults.Anywhere || slices.Contains(there, f.Where) {
				s.kinds = append(s.kinds, slices.Repeat([]string{f.Name}, f.Share)...)
			}
		}
	}
	return s
}

func (s *schedule) next() Step {
	if len(s.deck) == 0 {
		s.deck = append(s.deck, s.kinds...)
		s.dice.Shuffle(len(s.deck), func(i, j int) { s.deck[i], s.deck[j] = s.deck[j], s.deck[i] })
	}
	s.n++
	step := Step{N: s.n, Kind: s.deck[0], Pause: s.dice.Between(300*time.Millisecond, s.pause)}
	s.deck = s.deck[1:]
	fault := faults.Named(step.Kind)
	if fault.Aimed {
		step.Standby = s.dice.IntN(5) == 0
	}
	if fault.Draw != nil {
		fault.Draw(&s.dice, &step.Params)
	}
	if s.shards > 1 {
		step.Shard = s.dice.IntN(s.shards)
	}
	return step
}

// contains reports whether the faults of a run may be of that name: within the first decks, if
// their number is limited.
func (s *schedule) contains(name string, limit int) bool {
	if limit == 0 {
		return slices.Contains(s.kinds, name)
	}
	for range min(limit, len(s.kinds)) {
		if s.next().Kind == name {
			return true
		}
	}
	return false
}

// skew is how far the wall clock of skewed instances is off in a run, for which one binary is
// built.
func skew(seed uint64) time.Duration {
	if seed%2 == 0 {
		return 5 * time.Minute
	}
	return -5 * time.Minute
}
