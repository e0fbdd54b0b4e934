package leader

import (
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// An instance that must not campaign keeps its session and its eye on the lock, and leaves the lock
// alone, also when nobody has it.
func TestCampaignOff(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.join(t, steady("a"), nil)
	a.nextTerm(t)
	b := s.join(t, steady("b"), nil)
	b.wait(t, RoleStandby)
	b.Campaign(false)
	a.Campaign(false)
	barred := one[time.Time](t, s, "select clock_timestamp()")
	testenv.Eventually(t, func() bool { // it only looks
		return one[bool](t, s, "select query_start > $1 and query like '%from weft_instance%' from pg_stat_activity where datname = current_database() and application_name = $2",
			barred, AppName(testGroup, "b", "lock"))
	}, "the end of a try that had begun")
	holder := s.state(t).LockPID
	s.resign(t, 1)
	a.wait(t, RoleStandby)
	for until := time.Now().Add(10 * quick("a").Heartbeat); time.Now().Before(until); {
		if st := s.state(t); st.LockHeld && st.ReleasedAt != nil && st.LockPID != holder {
			t.Fatalf("state: got %+v, want a lock that nobody takes", st)
		}
	}
	testenv.Eventually(t, func() bool {
		st := b.Status()
		return st.Role == RoleStandby && st.Err == nil && st.ProofAge < 5*time.Second
	}, "b is a standby whose session is proven")
	b.Campaign(true)
	if got := b.nextTerm(t).Epoch(); got != 2 {
		t.Errorf("b's epoch: got %d, want 2", got)
	}
}
