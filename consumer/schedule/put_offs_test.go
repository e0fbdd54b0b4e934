package schedule_test

import (
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
)

// A list may show that tens of thousands of entities are blocked. To compare each with each would
// stop the loop for seconds.
func TestManyBlockedEntitiesAreQueuedAtOnce(t *testing.T) {
	t.Parallel()
	began := time.Now()
	if n := schedule.QueuePutOffs(40_000); n != 1000 {
		t.Errorf("%d entities are queued, want 1,000", n)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("to queue 40,000 entities took %v, want 5 s at most", took)
	}
}

// While put-offs are queued, lists begin where nothing is ready but the newest rows: an entity whose
// barrier is gone must not stay there for as long as it is busy.
func TestPutOffGoesWithItsBarrier(t *testing.T) {
	t.Parallel()
	if n := schedule.PutOffsInVain(3); n != 0 {
		t.Errorf("%d put-offs are queued without a barrier, want none", n)
	}
}
