package history

import "testing"

func TestOutOfOrder(t *testing.T) {
	t.Parallel()
	histories := map[string]struct {
		history func(s *script)
		want    []string
	}{
		"EarlierPending": {
			func(s *script) {
				s.commit(enqueued(1))
				s.commit(enqueued(2))
				s.commit(claimed(2, "a", 1))
				s.commit(settled(2, Done, "a", 1))
			},
			[]string{"earlier events were unsettled: 1, the oldest version 1"},
		},
		"EarlierProcessing": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.commit(claimed(1, "a", 1), claimed(2, "a", 1))
				s.commit(settled(2, Done, "a", 1))
				s.commit(settled(1, Done, "a", 1))
			},
			[]string{"the oldest version 1"},
		},
		// Nothing says in which order one statement writes its rows.
		"EarlierInTheSameInsertWrittenLast": {
			func(s *script) {
				s.commit(enqueued(2), enqueued(1))
				s.commit(claimed(2, "a", 1))
				s.commit(settled(2, Done, "a", 1))
			},
			[]string{"the oldest version 1"},
		},
		"EarlierWaitsForRetry": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.commit(claimed(1, "a", 1))
				s.commit(settled(1, Pending, "a", 1))
				s.commit(claimed(2, "a", 1))
				s.commit(settled(2, Done, "a", 1))
			},
			[]string{"the oldest version 1"},
		},
		"RetriedInTheSameSettle": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.commit(claimed(1, "a", 1), claimed(2, "a", 1))
				s.commit(settled(1, Pending, "a", 1), settled(2, Done, "a", 1))
			},
			[]string{"the oldest version 1"},
		},
		"OldestOfSeveral": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2), enqueued(3))
				s.commit(claimed(3, "a", 1))
				s.commit(settled(3, Done, "a", 1))
			},
			[]string{"earlier events were unsettled: 2, the oldest version 1"},
		},
		"ThereBeforeTheRecord": {
			func(s *script) {
				s.commit(enqueued(2))
				s.commit(claimed(1, "a", 1))
				s.commit(claimed(2, "a", 1))
				s.commit(settled(2, Done, "a", 1))
			},
			[]string{"the oldest version 1"},
		},
		"PutOffEventPassedBySupersedingOthers": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2), enqueued(3))
				s.commit(claimed(1, "a", 1))
				s.commit(settled(1, Pending, "a", 1))
				s.commit(claimed(2, "a", 1), claimed(3, "a", 1))
				s.commit(settled(3, Done, "a", 1), settled(2, Done, "a", 1))
			},
			[]string{"version 3 (event 00000000-0000-0000-0000-000000000003): done while earlier events were unsettled: 1, the oldest version 1"},
		},
		"SupersededOneSettledLater": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.commit(claimed(1, "a", 1), claimed(2, "a", 1))
				s.commit(settled(2, Done, "a", 1))
				s.commit(reclaimed(1, "a", 1))
				s.commit(claimed(1, "b", 2))
				s.commit(settled(1, Done, "b", 2))
			},
			[]string{"the oldest version 1"},
		},
		"ReplayedEventIsPassedByALaterOne": {
			func(s *script) {
				s.commit(enqueued(1))
				s.commit(claimed(1, "a", 1))
				s.commit(settled(1, Failed, "a", 1))
				s.commit(Change{Version: 1, From: Failed, To: Pending})
				s.commit(enqueued(2))
				s.commit(claimed(2, "a", 1))
				s.commit(settled(2, Done, "a", 1))
			},
			[]string{"the oldest version 1"},
		},
		"DeadLetterMayBePassed": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.commit(claimed(1, "a", 1), claimed(2, "a", 1))
				s.commit(settled(1, Failed, "a", 1))
				s.commit(settled(2, Done, "a", 1))
			},
			nil,
		},
	}
	for name, tc := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{}
			tc.history(s)
			expect(t, "out of order", OutOfOrder(&s.log), tc.want...)
		})
	}
}
