package history

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLost(t *testing.T) {
	t.Parallel()
	histories := map[string]struct {
		doctor       func(s *script)
		acknowledged []Enqueued
		want         []string
	}{
		"StillPending": {
			doctor: func(s *script) { s.commit(enqueued(4)) },
			want:   []string{"ended pending"},
		},
		"StillProcessing": {
			doctor: func(s *script) { s.commit(enqueued(4)); s.commit(claimed(4, "b", 2)) },
			want:   []string{"ended processing"},
		},
		"FailedWithoutAClaim": {
			doctor: func(s *script) {
				s.commit(enqueued(4))
				s.commit(Change{Version: 4, From: Pending, To: Failed})
			},
			want: []string{"became failed without a claim"},
		},
		"DroppedWithoutAClaim": {
			doctor: func(s *script) {
				s.commit(enqueued(4))
				s.commit(Change{Version: 4, From: Pending, To: Done})
			},
			want: []string{"became done without a claim"},
		},
		"ClaimHasNoEnd": {
			doctor: func(s *script) {
				s.commit(enqueued(4))
				s.commit(claimed(4, "b", 2))
				s.commit(claimed(4, "b", 2))
				s.commit(settled(4, Done, "b", 2))
			},
			want: []string{"its change from processing to pending was never recorded"},
		},
		"EnqueuedTwice": {
			doctor: func(s *script) {
				s.commit(enqueued(1))
				s.commit(claimed(1, "b", 2))
				s.commit(settled(1, Done, "b", 2))
			},
			want: []string{"enqueued once more after it was done"},
		},
		"DoneNeverRecorded": {
			doctor: func(s *script) {
				s.log.Changes = slices.DeleteFunc(s.log.Changes, func(c Change) bool { return c.Version == 2 && c.To == Done })
			},
			want: []string{"version 2 (event 00000000-0000-0000-0000-000000000002): done was never recorded"},
		},
		"RowIsGone": {
			doctor: func(s *script) {
				s.log.Rows = slices.DeleteFunc(s.log.Rows, func(r Row) bool { return r.Event == id(1) })
			},
			want: []string{"its row is gone"},
		},
		"RowSaysOtherwise": {
			doctor: func(s *script) { s.log.Rows[0].Status = Failed },
			want:   []string{"recorded as done, and the table says failed"},
		},
		"NeverRecorded": {
			doctor:       func(*script) {},
			acknowledged: []Enqueued{{id(1), entity, 1}, {id(9), entity, 9}},
			want:         []string{"version 9 (event 00000000-0000-0000-0000-000000000009): committed by the producer"},
		},
	}
	for name, tc := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := takeover()
			tc.doctor(s)
			expect(t, "lost", Lost(&s.log, tc.acknowledged), tc.want...)
		})
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := takeover()
	expect(t, "dead letters", DeadLetters(&s.log))
	s.commit(enqueued(4))
	s.commit(claimed(4, "b", 2))
	s.commit(Change{Version: 4, From: Processing, To: Failed, Owner: "b", Epoch: 2, Attempts: 1})
	expect(t, "dead letters", DeadLetters(&s.log), "ended failed after 1 attempts")
}

func TestCountFates(t *testing.T) {
	t.Parallel()
	s := takeover()
	s.commit(enqueued(4), enqueued(5), enqueued(6))
	s.commit(claimed(4, "b", 2), claimed(5, "b", 2), claimed(6, "b", 2))
	retry := settled(4, Pending, "b", 2)
	retry.Attempts = 1
	s.commit(retry, settled(5, Pending, "b", 2), settled(6, Failed, "b", 2))
	s.commit(claimed(5, "b", 2))
	want := Fates{Claimed: 9, Done: 3, Retried: 1, GivenBack: 1, Failed: 1, Reclaimed: 2, Held: 1}
	if diff := cmp.Diff(want, CountFates(&s.log)); diff != "" {
		t.Errorf("fates (-want +got):\n%s", diff)
	}
}
