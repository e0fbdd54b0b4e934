package leader

import (
	"testing"
	"time"
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
	stands := make(chan struct{}) // a try that has begun takes a heartbeat
	time.AfterFunc(3*quick("b").Heartbeat, func() { close(stands) })
	<-stands
	holder := s.state(t).LockPID
	s.resign(t, 1)
	a.wait(t, RoleStandby)
	for until := time.Now().Add(10 * quick("a").Heartbeat); time.Now().Before(until); {
		if st := s.state(t); st.LockHeld && st.ReleasedAt != nil && st.LockPID != holder {
			t.Fatalf("state: got %+v, want a lock that nobody takes", st)
		}
	}
	if st := b.Status(); st.Role != RoleStandby || st.Err != nil || st.ProofAge > 5*time.Second {
		t.Errorf("status of b: got %+v, want a standby whose session is proven", st)
	}
	b.Campaign(true)
	if got := b.nextTerm(t).Epoch(); got != 2 {
		t.Errorf("b's epoch: got %d, want 2", got)
	}
}
