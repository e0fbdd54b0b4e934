package history_test

import (
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

func TestLongestPauseIsBetweenEventsThatWereDone(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 23, 4, 0, 0, 0, time.UTC)
	log := &history.Log{}
	if longest, _ := log.LongestPause(time.Time{}, time.Time{}); longest != 0 {
		t.Errorf("without an event: got %v, want none", longest)
	}
	for seconds, to := range map[int]history.Status{1: history.Done, 2: history.Done, 6: history.Pending, 9: history.Failed, 12: history.Archived, 13: history.Done} {
		log.Changes = append(log.Changes, history.Change{At: start.Add(time.Duration(seconds) * time.Second), From: history.Pending, To: to, Owner: "a"})
	}
	if longest, began := log.LongestPause(time.Time{}, time.Time{}); longest != 10*time.Second || began != start.Add(2*time.Second) {
		t.Errorf("got %v from %v, want ten seconds: a retry and a failure end no pause", longest, began)
	}
	log.Changes = append(log.Changes, history.Change{At: start.Add(-20 * time.Second), To: history.Pending}, history.Change{At: start, To: history.Pending})
	if longest, began := log.LongestPause(time.Time{}, time.Time{}); longest != 21*time.Second || began != start.Add(-20*time.Second) {
		t.Errorf("got %v from %v, want 21 seconds: the first event waited for the first settle", longest, began)
	}
}
