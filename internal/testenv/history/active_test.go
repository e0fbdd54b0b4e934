package history

import "testing"

func TestTwoActive(t *testing.T) {
	t.Parallel()
	histories := map[string]struct {
		doctor func(s *script) // of takeover, after which 4 is pending
		want   []string
	}{
		"OldEpochLeases": {
			func(s *script) { s.lease("a", 1, 4) },
			[]string{`version 4 (event 00000000-0000-0000-0000-000000000004): lease by "a" under epoch 1 after epoch 2`},
		},
		"OldEpochSettles": {
			func(s *script) { l := s.lease("b", 2, 4); s.term(3, "c"); s.end(l, "b", done(4)) },
			[]string{`settle of what "b" leased under epoch 2 after epoch 3 was committed`},
		},
		"OldEpochRetries": {
			func(s *script) { l := s.lease("b", 2, 4); s.term(3, "c"); s.end(l, "b", retried(4)) },
			[]string{`settle of what "b" leased under epoch 2 after epoch 3`},
		},
		"OldEpochReleases": {
			func(s *script) { l := s.lease("b", 2, 4); s.term(3, "c"); s.end(l, "b") },
			[]string{`release by "b" under epoch 2 after epoch 3`},
		},
		"SameOwnerUnderItsOldEpoch": {
			func(s *script) { l := s.lease("b", 2, 4); s.term(3, "b"); s.end(l, "b", done(4)) },
			[]string{`settle of what "b" leased under epoch 2 after epoch 3`},
		},
		"ItsOwnOldLeaseTakenBack": {
			func(s *script) { l := s.lease("b", 2, 4); s.term(3, "b"); s.end(l, "b", reclaimed(4)) },
			nil,
		},
		"BumpAloneIsEnough": {
			func(s *script) { s.term(3, "a"); s.lease("b", 2, 4) },
			[]string{`lease by "b" under epoch 2 after epoch 3`},
		},
		// An epoch that a failover has given out twice: the instance counts, too.
		"TwoOwnersOfOneEpoch": {
			func(s *script) { s.lease("c", 2, 4) },
			[]string{`lease by "c" under epoch 2 of "b"`},
		},
		"SettleByTheOtherOwnerOfAnEpoch": {
			func(s *script) { s.end(s.lease("c", 2, 4), "c", done(4)) },
			[]string{`lease by "c" under epoch 2 of "b"`, `settle of what "c" leased under epoch 2 of "b"`},
		},
		"EpochOfNoTerm": {
			func(s *script) { s.lease("b", 7, 4) },
			[]string{`lease by "b" under epoch 7, which no term has begun`},
		},
		"TermsShareAnEpoch": {
			func(s *script) { s.term(2, "c") },
			[]string{`term of "c" began with epoch 2, which "b" has had`},
		},
		"TermsGoBack": {
			func(s *script) { s.term(4, "b"); s.term(3, "c") },
			[]string{`term of "c" began with epoch 3 after epoch 4`},
		},
		"LeasedWhileATermBeforeHeldIt": {
			func(s *script) { s.lease("b", 2, 4); s.term(3, "c"); s.lease("c", 3, 4) },
			[]string{`lease by "c" under epoch 3 of an event that "b" held under epoch 2`},
		},
		"ClaimedInTheRowWhileLeased": {
			func(s *script) { s.lease("b", 2, 4); s.commit(claimed(4, "b", 2)) },
			[]string{`lease by "b" under epoch 2 of an event that "b" held under epoch 2`},
		},
		"SettleOfAnothersLease": {
			func(s *script) { s.end(s.lease("b", 2, 4), "a", done(4)) },
			[]string{`settle of what "b" leased by a session of "a" under epoch 2`},
		},
		"ReclaimByAnOldTerm": {
			func(s *script) { s.end(s.lease("b", 2, 4), "a", reclaimed(4)) },
			[]string{`reclaim by "a" under epoch 2 of "b"`},
		},
		"LeaseAndSettle": {
			func(s *script) { s.batch("a", 1, done(4)) },
			[]string{"lease", "settle"},
		},
		"ManyEventsAreOneFinding": {
			func(s *script) { s.commit(enqueued(5)); s.lease("a", 1, 4, 5) },
			[]string{"was committed (2 events)"},
		},
		"OlderBuildClaimsAndSettlesUnderItsOldEpoch": {
			func(s *script) { s.commit(claimed(4, "a", 1)); s.commit(settled(4, Done, "a", 1)) },
			[]string{`lease by "a" under epoch 1 after epoch 2`, `settle of what "a" leased under epoch 1`},
		},
		"TakenWhileClaimed": {
			func(s *script) {
				s.commit(claimed(4, "b", 2))
				s.commit(Change{Version: 4, From: Processing, To: Processing, Owner: "b", Epoch: 2, Attempts: 1})
			},
			[]string{`lease by "b" under epoch 2 of an event that "b" held under epoch 2`},
		},
		"ClaimTakenBackByAnOldTerm": {
			func(s *script) { s.commit(claimed(4, "b", 2)); c := unclaimed(4, "b", 2); c.By = "a"; s.commit(c) },
			[]string{`reclaim by "a" under epoch 2 of "b"`},
		},
		"AnotherWorker": {
			func(s *script) { s.commit(claimed(4, "python", 0)) },
			[]string{`lease by "python" under no epoch`},
		},
	}
	for name, tc := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := takeover()
			s.commit(enqueued(4))
			tc.doctor(s)
			expect(t, "two active", TwoActive(s.read()), tc.want...)
		})
	}
}
