package schedule_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A throttled projection that has nothing to carry, or waits for answers, does not ask again and again: its allowance is full.
func TestThrottledSchedulerRests(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.1, 1, 5, 10, 11, 20, 1000} {
		s := schedule.New(schedule.Config{BatchSize: 500, Concurrency: 3, Page: 5000, Poll: time.Second, BreakerThreshold: 20, NewID: uuid.New})
		begun := time.Unix(1_000_000, 0)
		now, looks := begun, 0
		s.Throttle(now, rate)
		for ; now.Sub(begun) < 20*time.Second && looks < 1000; looks++ {
			for ok := true; ok; {
				var a schedule.Action
				var until time.Time
				if a, until, ok = s.Next(now); !ok {
					now = until
				} else if a.Kind == schedule.DoList {
					s.Listed(now, a.List, &outbox.List{}, nil)
				}
			}
		}
		if looks >= 1000 {
			t.Errorf("%v events a second: looks %d times within %v", rate, looks, now.Sub(begun))
		}
	}
}
