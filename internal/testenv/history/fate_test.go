package history

import (
	"slices"
	"testing"

	"github.com/samuelhu324-dev/weft/outbox"
)

func TestLost(t *testing.T) {
	t.Parallel()
	archive := func(s *script) {
		s.log.Finished = outbox.Archive
		s.commit(enqueued(4))
	}
	histories := map[string]struct {
		doctor       func(s *script)
		acknowledged []Enqueued
		want         []string
	}{
		"StillPending": {
			doctor: func(s *script) { s.commit(enqueued(4)) },
			want:   []string{"ended pending"},
		},
		"StillInFlight": {
			doctor: func(s *script) { s.commit(enqueued(4)); s.lease("b", 2, 4) },
			want:   []string{"ended pending"},
		},
		"StillClaimedByAnOlderBuild": {
			doctor: func(s *script) { s.commit(enqueued(4)); s.commit(claimed(4, "b", 2)) },
			want:   []string{"ended processing"},
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
			doctor: func(s *script) { s.commit(enqueued(1)); s.batch("b", 2, done(1)) },
			want:   []string{"enqueued once more after it was done"},
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
		"RemovedBeforeItWasDone": {
			doctor: func(s *script) { s.commit(enqueued(4)); s.batch("b", 2, removed(4, Pending)) },
			want:   []string{"removed from the table, and not moved to its history, when it was pending"},
		},
		"LostArchiveMove": {
			doctor: func(s *script) { archive(s); s.batch("b", 2, removed(4, Pending)) },
			want:   []string{"version 4 (event 00000000-0000-0000-0000-000000000004): removed from the table, and not moved to its history, when it was pending"},
		},
		"ArchivedByNobody": {
			doctor: func(s *script) { archive(s); s.batch("b", 2, done(4)); s.commit(removed(4, Done)) },
			want:   []string{"version 4 (event 00000000-0000-0000-0000-000000000004): removed from the table when it was done"},
		},
		"DeadLetterRemoved": {
			doctor: func(s *script) {
				s.commit(enqueued(4))
				s.batch("b", 2, became(4, Failed))
				s.commit(removed(4, Failed))
			},
			want: []string{"removed from the table when it was failed"},
		},
		"KeptAndPrunedLater": {
			doctor: func(s *script) { s.commit(enqueued(4)); s.batch("b", 2, done(4)); s.commit(removed(4, Done)) },
		},
		"ArchivedByAPrune": {
			doctor: func(s *script) { archive(s); s.batch("b", 2, done(4)); s.commit(removed(4, Done), copied(4)) },
		},
		"GoneFromTheHistory": {
			doctor: func(s *script) { archive(s); s.batch("b", 2, removed(4, Pending), copied(4)); s.log.History = nil },
			want:   []string{"archived, and not in the history"},
		},
		"RemovedAndStillThere": {
			doctor: func(s *script) {
				archive(s)
				s.batch("b", 2, removed(4, Pending), copied(4))
				s.log.Rows = append(s.log.Rows, Row{id(4), Pending})
			},
			want: []string{"recorded as archived, and the table says pending"},
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
			expect(t, "lost", Lost(s.read(), tc.acknowledged), tc.want...)
		})
	}
}

func TestTwice(t *testing.T) {
	t.Parallel()
	histories := map[string]struct {
		doctor func(s *script) // of takeover, after which 4 is pending
		want   []string
	}{
		"DoneAgainInPlace": {
			func(s *script) { s.batch("b", 2, done(4)); s.commit(Change{Version: 4, From: Done, To: Done}) },
			[]string{"version 4 (event 00000000-0000-0000-0000-000000000004): done once more, after transaction"},
		},
		"OpenedAndDoneAgain": {
			func(s *script) {
				s.batch("b", 2, done(4))
				s.commit(Change{Version: 4, From: Done, To: Pending})
				s.batch("b", 2, done(4))
			},
			[]string{"done once more"},
		},
		"DoneAndThenArchivedByASettle": {
			func(s *script) {
				s.batch("b", 2, done(4))
				s.commit(Change{Version: 4, From: Done, To: Pending})
				s.batch("b", 2, removed(4, Pending), copied(4))
			},
			[]string{"archived once more"},
		},
		"ArchivedTwice": {
			func(s *script) { s.batch("b", 2, removed(4, Pending), copied(4)); s.commit(copied(4)) },
			[]string{"archived once more", "2 times in the history"},
		},
		"CopiedIntoTheHistory": {
			func(s *script) { s.batch("b", 2, done(4)); s.log.History = append(s.log.History, id(4)) },
			[]string{"in the history, and in the table"},
		},
		"ArchivedAndNotRemoved": {
			func(s *script) { s.end(s.lease("b", 2, 4), "b", copied(4)) },
			[]string{"archived, and not removed from the table", "in the history, and in the table"},
		},
		"ReplayIsNone": {
			func(s *script) { s.batch("b", 2, became(4, Failed)); s.commit(replayed(4)); s.batch("b", 2, done(4)) },
			nil,
		},
	}
	for name, tc := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := takeover()
			s.commit(enqueued(4))
			tc.doctor(s)
			expect(t, "twice", Twice(s.read()), tc.want...)
		})
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := takeover()
	expect(t, "dead letters", DeadLetters(s.read()))
	s.commit(enqueued(4))
	s.batch("b", 2, Change{Version: 4, From: Pending, To: Failed, Attempts: 1})
	expect(t, "dead letters", DeadLetters(s.read()), "ended failed after 1 attempts")
}
