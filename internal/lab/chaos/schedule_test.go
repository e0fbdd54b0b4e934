package chaos

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func draw(seed uint64, n int, only ...Kind) []Step {
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
	deck, want := 0, map[Kind]int{}
	for _, i := range kindTable() {
		deck += i.share
		want[i.kind] = 3 * i.share
	}
	got := map[Kind]int{}
	for n, s := range draw(1, 3*deck) {
		got[s.Kind]++
		if s.N != n+1 {
			t.Errorf("step %d: got N %d, want %d", n, s.N, n+1)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds of three decks (-want +got):\n%s", diff)
	}
	for _, s := range draw(1, 20, SIGKILL, Throttle429) {
		if s.Kind != SIGKILL && s.Kind != Throttle429 {
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
		case SIGSTOP, PartitionPostgres, PartitionBoth:
			if s.Hold <= idleSession {
				t.Errorf("%v: holds %v, want longer than %v", s, s.Hold, idleSession)
			}
		case LatencyPostgres, LatencyElastic:
			if s.Latency < 50*time.Millisecond || s.Latency > 3*time.Second {
				t.Errorf("%v: latency %v, want 50 ms to 3 s", s, s.Latency)
			}
		case Throttle429, GarbledBulk, TruncatedBulk:
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
			if !infoOf(s.Kind).aimed {
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
	s := Step{N: 3, Kind: LatencyElastic, Standby: true, Pause: time.Second, Hold: 4 * time.Second, Latency: 90 * time.Millisecond}
	if got, want := s.String(), "3 latency-elastic standby pause=1s hold=4s latency=90ms"; got != want {
		t.Errorf("step: got %q, want %q", got, want)
	}
}

func TestOnly(t *testing.T) {
	t.Parallel()
	var l kindList
	if err := l.Set("sigkill, alias-removed"); err != nil || l.String() != "sigkill,alias-removed" {
		t.Errorf("two names: got %q (%v)", &l, err)
	}
	if err := l.Set("sigkill,earthquake"); err == nil || err.Error() != `no fault is named "earthquake"; --list names them` {
		t.Errorf("an unknown name: got %v", err)
	}
}
