package chaos

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
)

func draw(seed uint64, n int, only ...string) []Step {
	s := newSchedule(seed, only)
	steps := make([]Step, n)
	for i := range steps {
		steps[i] = s.next()
	}
	return steps
}

func TestScheduleIsAFunctionOfTheSeed(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(draw(7, 200), draw(7, 200)); diff != "" {
		t.Errorf("two schedules of one seed differ (-first +second):\n%s", diff)
	}
	if cmp.Equal(draw(7, 200), draw(8, 200)) {
		t.Error("schedules of two seeds are the same")
	}
	if diff := cmp.Diff(draw(7, 50), draw(7, 200)[:50]); diff != "" {
		t.Errorf("a longer schedule begins in another way (-short +long):\n%s", diff)
	}
}

// Every kind has its turn in each deck, as often as its share says.
func TestScheduleDealsWholeDecks(t *testing.T) {
	t.Parallel()
	deck, want := 0, map[string]int{}
	for _, f := range faults.All() {
		if f.Where != faults.Anywhere {
			continue
		}
		if deck += f.Share; f.Share > 0 {
			want[f.Name] = 3 * f.Share
		}
	}
	got := map[string]int{}
	for n, s := range draw(1, 3*deck) {
		got[s.Kind]++
		if s.N != n+1 {
			t.Errorf("step %d: got N %d, want %d", n, s.N, n+1)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds of three decks (-want +got):\n%s", diff)
	}
	for _, s := range draw(1, 20, faults.SIGKILL, faults.Throttle429) {
		if s.Kind != faults.SIGKILL && s.Kind != faults.Throttle429 {
			t.Errorf("drawn from two kinds: got %s", s.Kind)
		}
	}
}

// What a fault is for follows from its parameters: a leader that is frozen for less
// than the server's timeout would stay the leader.
func TestScheduleParameters(t *testing.T) {
	t.Parallel()
	const idleSession = 5 * time.Second // weft's default
	standbys := 0
	for _, s := range draw(3, 2000) {
		switch s.Kind {
		case faults.SIGSTOP, "partition-postgres", faults.PartitionBoth:
			if s.Hold <= idleSession {
				t.Errorf("%v: holds %v, want longer than %v", s, s.Hold, idleSession)
			}
		case "latency-postgres", "latency-elastic":
			if s.Latency < 50*time.Millisecond || s.Latency > 3*time.Second {
				t.Errorf("%v: latency %v, want 50 ms to 3 s", s, s.Latency)
			}
		case faults.Throttle429, "garbled-bulk", "truncated-bulk":
			if s.Every < 1 {
				t.Errorf("%v: hits one request of %d, want at least 1", s, s.Every)
			}
		default:
		}
		if s.Pause <= 0 {
			t.Errorf("%v: pause %v, want some", s, s.Pause)
		}
		if s.Standby {
			standbys++
			if !faults.Named(s.Kind).Aimed {
				t.Errorf("%v: is aimed at a standby, and concerns the leader only", s)
			}
		}
	}
	if standbys == 0 {
		t.Error("no step of 2,000 is aimed at a standby")
	}
}

func TestStepReadsAsALine(t *testing.T) {
	t.Parallel()
	s := Step{N: 3, Kind: "latency-elastic", Standby: true, Pause: time.Second, Params: faults.Params{Hold: 4 * time.Second, Latency: 90 * time.Millisecond}}
	if got, want := s.String(), "3 latency-elastic standby pause=1s hold=4s latency=90ms"; got != want {
		t.Errorf("step: got %q, want %q", got, want)
	}
}

// A binary with a wrong clock is built only where the schedule needs it.
func TestScheduleContains(t *testing.T) {
	t.Parallel()
	steps := draw(9, 10)
	last := steps[9].Kind
	if !newSchedule(9, nil).contains(last, 10) || !newSchedule(9, nil).contains(faults.SkewedClock, 0) {
		t.Error("a fault of the first steps, or of an endless schedule, is missing")
	}
	if newSchedule(9, []string{faults.SIGKILL}).contains(faults.SkewedClock, 0) {
		t.Error("a schedule of kills contains a skewed clock")
	}
}

// Faults of single nodes and members come where there are several, and nowhere else: the schedules
// of a pair of servers stay as they were.
func TestScheduleOfClusters(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{
		"a pair of servers": {ElasticNodes: 1},
		"nodes":             {ElasticNodes: 3},
		"members":           {ElasticNodes: 1, Patroni: true},
		"both":              {ElasticNodes: 3, Patroni: true},
		"shards":            {ElasticNodes: 1, Shards: 4},
	} {
		s := opts.schedule()
		for _, shared := range []string{faults.InstanceAway, faults.InstanceMore} {
			if s.contains(shared, 0) != (opts.Shards > 1) {
				t.Errorf("%s: got the faults %v", name, s.kinds)
			}
		}
		for _, node := range []string{faults.NodeSIGKILL, faults.NodeCutOff} {
			if s.contains(node, 0) != (opts.ElasticNodes > 1) {
				t.Errorf("%s: got the faults %v", name, s.kinds)
			}
		}
		for _, member := range faults.MemberFaults() {
			if s.contains(member, 0) != opts.Patroni {
				t.Errorf("%s: got the faults %v", name, s.kinds)
			}
		}
	}
}

// Faults of shards are aimed at each of them in turns; without shards nothing is drawn for it.
func TestScheduleOfShards(t *testing.T) {
	t.Parallel()
	aimed := map[int]int{}
	sharded := (&Options{Seed: 1, Shards: 4}).schedule()
	for range 200 {
		aimed[sharded.next().Shard]++
	}
	for shard := range 4 {
		if aimed[shard] < 20 {
			t.Errorf("shard %d: got %d of 200 faults, want some 50", shard, aimed[shard])
		}
	}
	if len(aimed) != 4 {
		t.Errorf("got the shards %v, want 0 to 3", aimed)
	}
}
