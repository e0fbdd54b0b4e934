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
				s.batch("a", 1, done(2))
			},
			[]string{"earlier events were unsettled: 1, the oldest version 1"},
		},
		"EarlierInFlight": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				l := s.lease("a", 1, 1)
				s.batch("a", 1, done(2))
				s.end(l, "a", done(1))
			},
			[]string{"the oldest version 1"},
		},
		"EarlierClaimedByAnOlderBuild": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.commit(claimed(1, "a", 1))
				s.batch("b", 2, done(2))
			},
			[]string{"the oldest version 1 (event 00000000-0000-0000-0000-000000000001, processing)"},
		},
		// A list that goes on where the last one ended does not see what was committed
		// before that place meanwhile, and shows what came after it.
		"ListContinuedByALaterSnapshot": {
			func(s *script) {
				s.commit(enqueued(5)) // and many more: the first list ends here
				s.commit(enqueued(3))
				s.commit(enqueued(6))
				s.batch("a", 1, done(5))
				s.batch("a", 1, done(6)) // the second begins after 5
				s.batch("a", 1, done(3))
			},
			[]string{"version 6 (event 00000000-0000-0000-0000-000000000006): done while earlier events were unsettled: 1, the oldest version 3"},
		},
		// Nothing says in which order one statement writes its rows.
		"EarlierInTheSameInsertWrittenLast": {
			func(s *script) {
				s.commit(enqueued(2), enqueued(1))
				s.batch("a", 1, done(2))
			},
			[]string{"the oldest version 1"},
		},
		"EarlierWaitsForRetry": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.batch("a", 1, retried(1))
				s.batch("a", 1, done(2))
			},
			[]string{"the oldest version 1"},
		},
		"RetriedInTheSameSettle": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.batch("a", 1, retried(1), done(2))
			},
			[]string{"the oldest version 1"},
		},
		"PassedByOneThatIsArchived": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.batch("a", 1, removed(2, Pending), copied(2))
			},
			[]string{"version 2 (event 00000000-0000-0000-0000-000000000002): done while earlier events"},
		},
		"OldestOfSeveral": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2), enqueued(3))
				s.batch("a", 1, done(3))
			},
			[]string{"earlier events were unsettled: 2, the oldest version 1"},
		},
		"ThereBeforeTheRecord": {
			func(s *script) {
				s.commit(enqueued(2))
				s.batch("a", 1, retried(1))
				s.batch("a", 1, done(2))
			},
			[]string{"the oldest version 1"},
		},
		"PutOffEventPassedBySupersedingOthers": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2), enqueued(3))
				s.batch("a", 1, retried(1))
				s.batch("a", 1, done(3), done(2))
			},
			[]string{"version 3 (event 00000000-0000-0000-0000-000000000003): done while earlier events were unsettled: 1, the oldest version 1"},
		},
		"SupersededOneSettledLater": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.end(s.lease("a", 1, 1, 2), "a", done(2))
				s.batch("b", 2, done(1))
			},
			[]string{"the oldest version 1"},
		},
		"ReplayedEventIsPassedByALaterOne": {
			func(s *script) {
				s.commit(enqueued(1))
				s.batch("a", 1, became(1, Failed))
				s.commit(replayed(1))
				s.commit(enqueued(2))
				s.batch("a", 1, done(2))
			},
			[]string{"the oldest version 1"},
		},
		"DeadLetterMayBePassed": {
			func(s *script) {
				s.commit(enqueued(1), enqueued(2))
				s.batch("a", 1, became(1, Failed))
				s.batch("a", 1, done(2))
			},
			nil,
		},
	}
	for name, tc := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{}
			tc.history(s)
			expect(t, "out of order", OutOfOrder(s.read()), tc.want...)
		})
	}
}
