package telemetry_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
)

func down(l *zap.Logger, dependency string, n int) {
	l.Warn("dependency unusable", zap.String("event", "dependency.down"), zap.String("dependency", dependency),
		zap.Error(fmt.Errorf("no. %d", n)))
}

func TestRepeatedLinesAreThinnedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tel, b := setup(t, telemetry.Options{})
		start := time.Now()
		for n := range 125 { // one per second
			down(tel.Log, "postgres", n)
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		got := lines(t, b)
		// Ten at once, then the newest of each minute.
		if len(got) != 13 {
			t.Fatalf("got %d lines of 125 in two minutes, want 13: %v", len(got), got)
		}
		total := 0
		for i, l := range got {
			total++
			if n, ok := l["left_out"].(float64); ok {
				total += int(n)
			} else if i >= 10 {
				t.Errorf("line %d does not say how many were left out: %v", i, l)
			}
		}
		if total != 125 {
			t.Errorf("the lines account for %d, want 125", total)
		}
		last := got[len(got)-1]
		if last["error"] != "no. 124" {
			t.Errorf("the last line is %v, want the newest", last["error"])
		}
		if ts, err := time.Parse(time.RFC3339Nano, last["ts"].(string)); err != nil || !ts.Equal(start.Add(124*time.Second)) {
			t.Errorf("it is of %v, %v, want the time at which it came", last["ts"], err)
		}

		b.Reset() // a minute without any: as at the start
		for n := range 11 {
			down(tel.Log, "postgres", n)
		}
		if got := lines(t, b); len(got) != 10 {
			t.Errorf("got %d lines after a quiet minute, want 10", len(got))
		}
		_ = tel.Log.Sync()
	})
}

// The newest of a family counts: what is down and comes back must not look down.
func TestLastWordGetsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tel, b := setup(t, telemetry.Options{})
		for n := range 20 {
			down(tel.Log, "elasticsearch", n)
			tel.Log.Info("dependency usable", zap.String("event", "dependency.up"), zap.String("dependency", "elasticsearch"))
		}
		if got := lines(t, b); len(got) != 10 || got[9]["event"] != "dependency.up" {
			t.Fatalf("got %d lines at once, want 10", len(got))
		}
		if err := tel.Log.Sync(); err != nil {
			t.Fatal(err)
		}
		got := lines(t, b)
		if len(got) != 11 || got[10]["event"] != "dependency.up" || got[10]["left_out"] != 29.0 {
			t.Errorf("got %v at the end, want that it is up, and 29 left out", got[10:])
		}
	})
}

// What one shard has to say does not get lost in the storm of another.
func TestEachShardHasTheLastWord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tel, b := setup(t, telemetry.Options{})
		for n := range 20 {
			down(tel.Log.With(zap.Int("shard", 0)), "postgres", n)
		}
		down(tel.Log.With(zap.Int("shard", 1)), "postgres", 0)
		down(tel.Log.With(zap.Int("shard", 0)), "postgres", 20)
		_ = tel.Log.Sync()
		of := map[any]int{}
		for _, l := range lines(t, b) {
			of[l["shard"]]++
		}
		if of[0.0] != 11 || of[1.0] != 1 {
			t.Errorf("got lines of shards %v, want 11 of the first, and the one of the second", of)
		}
	})
}

// A node that is gone, or a history that takes no event, may cost every batch a line, which says the same each time.
func TestStormsAreSummedUp(t *testing.T) {
	t.Parallel()
	for _, event := range []string{"elastic.other_node", "outbox.kept", "rebuild.fault", "load.fault"} {
		synctest.Test(t, func(t *testing.T) {
			tel, b := setup(t, telemetry.Options{})
			for range 300 {
				tel.Log.Warn("the same again", zap.String("event", event), zap.String("projection", "search"))
			}
			_ = tel.Log.Sync()
			if got := lines(t, b); len(got) != 11 || got[10]["left_out"] != 289.0 {
				t.Errorf("%s: got %d lines, want 11, the last of which stands for 289 more: %v", event, len(got), got[len(got)-1])
			}
		})
	}
}

func TestOtherLinesAreAllThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tel, b := setup(t, telemetry.Options{})
		search := tel.Log.With(zap.String("projection", "search"))
		for n := range 50 {
			search.Error("event failed", zap.String("event", "projection.event"), zap.String("reason", "es_4xx"))
			search.Warn("event is retried", zap.String("event", "projection.event"), zap.String("reason", fmt.Sprintf("r%d", n%2)))
			tel.Log.Info("leases taken back", zap.String("event", "reclaim.rows"))
			tel.Log.Warn("no event", zap.Error(errors.New("x")))
			search.Warn("destination unusable", zap.String("event", "projection.outage"))
			tel.Log.Warn("destination unusable", zap.String("event", "projection.outage"), zap.String("projection", "chronicle"))
			down(tel.Log, fmt.Sprint("d", n%3), n)
		}
		// Three kinds that are never left out, events below the burst, two projections, three dependencies.
		if got, want := len(lines(t, b)), 4*50+10*(2+3); got != want {
			t.Errorf("got %d lines, want %d", got, want)
		}
		_ = tel.Log.Sync()
	})
}

// Somebody may lock a whole table, and each of its entities is left.
func TestStormOfEntitiesThatAreLeft(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"info": 101, "debug": 300} {
		synctest.Test(t, func(t *testing.T) {
			tel, b := setup(t, telemetry.Options{Level: level})
			for range 300 {
				tel.Log.Error("an entity could not be settled", zap.String("event", "outbox.settle_left"), zap.String("projection", "search"))
			}
			_ = tel.Log.Sync()
			if got := lines(t, b); len(got) != want || level == "info" && got[100]["left_out"] != 199.0 {
				t.Errorf("%s: got %d lines, want %d that tell of 300: %v", level, len(got), want, got[len(got)-1])
			}
		})
	}
}

// Lines about events and batches are summed up by what became of them and why; none is left out
// while somebody looks at debug.
func TestStormOfEvents(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"info": 2*101 + 100, "debug": 900} {
		synctest.Test(t, func(t *testing.T) {
			tel, b := setup(t, telemetry.Options{Level: level})
			for range 300 {
				tel.Log.Info("event is retried", zap.String("event", "projection.event"), zap.String("result", "retry"), zap.String("reason", "es_429"))
				tel.Log.Info("batch settled", zap.String("event", "projection.batch"), zap.String("result", "retry"), zap.String("reason", "es_429"))
				if level == "debug" {
					tel.Log.Debug("event done", zap.String("event", "projection.event"), zap.String("result", "ok"))
				}
			}
			for range 100 { // another reason has a burst of its own
				if level == "info" {
					tel.Log.Info("event is retried", zap.String("event", "projection.event"), zap.String("result", "retry"), zap.String("reason", "es_timeout"))
				}
			}
			_ = tel.Log.Sync()
			total := map[string]int{}
			got := lines(t, b)
			for _, l := range got {
				left, _ := l["left_out"].(float64)
				total[fmt.Sprint(l["event"], l["result"], l["reason"])] += 1 + int(left)
			}
			if len(got) != want || total["projection.eventretryes_429"] != 300 || total["projection.batchretryes_429"] != 300 {
				t.Errorf("%s: got %d lines that tell of %v, want %d", level, len(got), total, want)
			}
		})
	}
}
