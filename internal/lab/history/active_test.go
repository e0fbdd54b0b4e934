package history

import "testing"

func TestTwoActive(t *testing.T) {
	t.Parallel()
	histories := map[string]struct {
		doctor func(s *script)
		want   []string
	}{
		"OldEpochClaims": {
			func(s *script) { s.commit(enqueued(4)); s.commit(claimed(4, "a", 1)) },
			[]string{`claim by "a" under epoch 1 after epoch 2`},
		},
		"OldEpochSettles": {
			func(s *script) { s.commit(settled(2, Done, "a", 1)) },
			[]string{`settle by "a" under epoch 1 after epoch 2`},
		},
		"OldEpochRetries": {
			func(s *script) { s.commit(settled(2, Pending, "a", 1)) },
			[]string{`settle by "a" under epoch 1 after epoch 2`},
		},
		"SameOwnerUnderItsOldEpoch": {
			func(s *script) { s.term(3, "a"); s.commit(settled(2, Done, "a", 1)) },
			[]string{`settle by "a" under epoch 1 after epoch 3`},
		},
		"BumpAloneIsEnough": {
			func(s *script) { s.term(3, "a"); s.commit(enqueued(4)); s.commit(claimed(4, "b", 2)) },
			[]string{`claim by "b" under epoch 2 after epoch 3`},
		},
		"TwoOwnersOfOneEpoch": {
			func(s *script) { s.commit(enqueued(4)); s.commit(claimed(4, "c", 2)) },
			[]string{`claim by "c" under epoch 2 of "b"`},
		},
		"EpochOfAnotherInstance": {
			func(s *script) { s.term(3, "b"); s.commit(enqueued(4)); s.commit(claimed(4, "a", 3)) },
			[]string{`claim by "a" under epoch 3 of "b"`},
		},
		"EpochOfNoTerm": {
			func(s *script) { s.commit(enqueued(4)); s.commit(claimed(4, "b", 7)) },
			[]string{`claim by "b" under epoch 7, which no term has begun`},
		},
		"TermsShareAnEpoch": {
			func(s *script) { s.term(2, "c") },
			[]string{`term of "c" began with epoch 2, which "b" has had`},
		},
		"TermsGoBack": {
			func(s *script) { s.term(4, "b"); s.term(3, "c") },
			[]string{`term of "c" began with epoch 3 after epoch 4`},
		},
		"TakenWhileClaimed": {
			func(s *script) {
				s.commit(enqueued(4))
				s.commit(claimed(4, "b", 2))
				s.commit(Change{Version: 4, From: Processing, To: Processing, Owner: "b", Epoch: 2, Attempts: 1})
			},
			[]string{`claim by "b" under epoch 2 of an event that was claimed`},
		},
		"SettleOfAnothersClaim": {
			func(s *script) {
				s.commit(enqueued(4))
				s.commit(claimed(4, "b", 2))
				c := settled(4, Done, "b", 2)
				c.By = "a"
				s.commit(c)
			},
			[]string{`settle by a session of "a" of what "b" holds under epoch 2`},
		},
		"ReclaimByAnOldTerm": {
			func(s *script) {
				s.commit(enqueued(4))
				s.commit(claimed(4, "b", 2))
				c := reclaimed(4, "b", 2)
				c.By = "a"
				s.commit(c)
			},
			[]string{`reclaim by "a" under epoch 2 of "b"`},
		},
		"NoEpoch": {
			func(s *script) { s.commit(enqueued(4)); s.commit(claimed(4, "python", 0)) },
			[]string{`claim by "python" under no epoch`},
		},
		"BothClaimAndSettle": {
			func(s *script) {
				s.commit(enqueued(4))
				s.commit(claimed(4, "a", 1))
				s.commit(settled(4, Done, "a", 1))
			},
			[]string{"claim", "settle"},
		},
	}
	for name, tc := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := takeover()
			tc.doctor(s)
			expect(t, "two active", TwoActive(&s.log), tc.want...)
		})
	}
}
