package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Step is one fault of a schedule with everything that chance decides about it. What
// a fault does not use is zero.
type Step struct {
	N       int // from 1
	Kind    Kind
	Standby bool          // aimed at a standby instead of the leader
	Pause   time.Duration // of calm before it
	Hold    time.Duration // how long it lasts
	Latency time.Duration
	Jitter  time.Duration
	Every   int   // one of so many requests is hit
	Bytes   int64 // into a request, or the largest that is let through
	Variant int   // which of the forms of a fault; see the fault
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
		zero bool
		v    any
	}{
		{"pause", s.Pause == 0, s.Pause}, {"hold", s.Hold == 0, s.Hold},
		{"latency", s.Latency == 0, s.Latency}, {"jitter", s.Jitter == 0, s.Jitter},
		{"every", s.Every == 0, s.Every}, {"bytes", s.Bytes == 0, s.Bytes}, {"variant", s.Variant == 0, s.Variant},
	} {
		if !f.zero {
			fmt.Fprintf(&b, " %s=%v", f.name, f.v)
		}
	}
	return b.String()
}

// schedule is an endless sequence of steps: decks of kinds, each shuffled, so that
// every kind has its turn before any has too many. It is a function of seed and kinds.
type schedule struct {
	random *rand.Rand
	kinds  []Kind // of a deck
	deck   []Kind
	n      int
}

// newSchedule draws from only, or from all kinds by their share when it is empty.
func newSchedule(seed uint64, only []Kind) *schedule {
	s := &schedule{random: rand.New(rand.NewPCG(seed, 0)), kinds: only}
	if len(only) == 0 {
		for _, i := range kindTable() {
			for range i.share {
				s.kinds = append(s.kinds, i.kind)
			}
		}
	}
	return s
}

// between is uniform and in whole milliseconds.
func (s *schedule) between(low, high time.Duration) time.Duration {
	ms := int64((high - low) / time.Millisecond)
	return low + time.Duration(s.random.Int64N(ms+1))*time.Millisecond
}

func (s *schedule) next() Step {
	if len(s.deck) == 0 {
		s.deck = append(s.deck, s.kinds...)
		s.random.Shuffle(len(s.deck), func(i, j int) { s.deck[i], s.deck[j] = s.deck[j], s.deck[i] })
	}
	s.n++
	step := Step{N: s.n, Kind: s.deck[0], Pause: s.between(300*time.Millisecond, 1500*time.Millisecond)}
	s.deck = s.deck[1:]
	if infoOf(step.Kind).aimed {
		step.Standby = s.random.IntN(5) == 0
	}
	s.detail(&step)
	return step
}

// detail draws what the step's kind needs.
func (s *schedule) detail(step *Step) {
	const second = time.Second
	switch step.Kind {
	case SIGKILL, SIGTERM, TerminateLock, TerminatePool, TerminateAll, Resign:
	case SIGSTOP: // longer than idle_session_timeout, and than what the successor needs
		step.Hold = s.between(6500*time.Millisecond, 9*second)
		step.Variant = s.random.IntN(2) // 1: with a bulk request that arrives afterwards
	case PartitionPostgres, PartitionBoth:
		step.Hold = s.between(6*second, 9*second)
	case LostAnswer:
		step.Latency = s.between(0, 300*time.Millisecond)
		step.Hold = s.between(500*time.Millisecond, 4*second)
	case PartitionElastic:
		step.Hold = s.between(2*second, 6*second)
	case LatencyPostgres, LatencyElastic:
		step.Latency = s.between(50*time.Millisecond, 3*second)
		step.Jitter = step.Latency / 4
		step.Hold = s.between(3*second, 6*second)
	case ResetMidBulk:
		step.Bytes = 1 + s.random.Int64N(6000)
		step.Hold = s.between(500*time.Millisecond, 2*second)
	case PostgresRestartFast, PostgresRestartImmediate, ElasticSIGKILL, ElasticRestart:
		step.Hold = s.between(0, 2*second) // between the stop and the start
	case Throttle429, GarbledBulk, TruncatedBulk:
		step.Every = 1 + s.random.IntN(3)
		step.Variant = s.random.IntN(3)
		step.Hold = s.between(500*time.Millisecond, 3*second)
	case TooLarge413:
		step.Bytes = 2000 + s.random.Int64N(6000)
		step.Hold = s.between(second, 3*second)
	case WriteBlock, AliasRemoved:
		step.Hold = s.between(500*time.Millisecond, 2500*time.Millisecond)
	case DiskFull:
		step.Variant = s.random.IntN(2)
		step.Hold = s.between(second, 3*second)
	case StrangerLock:
		step.Hold = s.between(second, 4*second)
	case LongSnapshot:
		step.Hold = 10 * time.Minute
	case SkewedClock:
		step.Hold = s.between(2*second, 4*second)
	}
}

// skew is how far the wall clock of skewed instances is off in a run: a binary is
// built for it, once.
func skew(seed uint64) time.Duration {
	if seed%2 == 0 {
		return 5 * time.Minute
	}
	return -5 * time.Minute
}
