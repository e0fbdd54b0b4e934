package history

import (
	"testing"
	"time"
)

func TestUnleased(t *testing.T) {
	t.Parallel()
	histories := map[string]struct {
		doctor func(s *script) // of takeover, after which 4 is pending
		want   []string
	}{
		"Done":                 {func(s *script) { s.commit(done(4)) }, []string{"became done without a lease"}},
		"Failed":               {func(s *script) { s.commit(became(4, Failed)) }, []string{"became failed without a lease"}},
		"Removed":              {func(s *script) { s.commit(removed(4, Pending)) }, []string{"became deleted without a lease"}},
		"Archived":             {func(s *script) { s.commit(removed(4, Pending), copied(4)) }, []string{"became archived without a lease"}},
		"AttemptCounted":       {func(s *script) { s.commit(retried(4)) }, []string{"attempt 1 counted without a lease"}},
		"Reclaimed":            {func(s *script) { s.commit(reclaimed(4)) }, []string{"reclaimed without a lease"}},
		"LeaseIsStillThere":    {func(s *script) { s.lease("b", 2, 4); s.commit(done(4)) }, []string{"became done without a lease"}},
		"LeaseHadEnded":        {func(s *script) { s.end(s.lease("b", 2, 4), "b"); s.commit(done(4)) }, []string{"became done without a lease"}},
		"LeaseOfAnotherEvent":  {func(s *script) { s.commit(enqueued(5)); s.end(s.lease("b", 2, 5), "b", done(4), done(5)) }, []string{"version 4 (event 00000000-0000-0000-0000-000000000004): became done"}},
		"Replay":               {func(s *script) { s.batch("b", 2, became(4, Failed)); s.commit(replayed(4)) }, nil},
		"Pruned":               {func(s *script) { s.commit(removed(1, Done)) }, nil},
		"AttemptsAreTakenBack": {func(s *script) { s.batch("b", 2, retried(4)); s.commit(Change{Version: 4, From: Pending, To: Pending}) }, nil},
		"AnotherWorker":        {func(s *script) { s.commit(claimed(4, "python", 0)); s.commit(settled(4, Done, "python", 0)) }, nil},
		"AnotherWorkersRowIsTakenBack": {
			func(s *script) { s.commit(claimed(4, "python", 0)); s.commit(unclaimed(4, "python", 0)) }, nil,
		},
		"AnotherWorkersRowIsSuperseded": {
			func(s *script) {
				s.commit(enqueued(5))
				s.commit(claimed(5, "python", 0))
				s.commit(settled(5, Done, "python", 0), done(4))
			},
			[]string{"version 4 (event 00000000-0000-0000-0000-000000000004): became done without a lease"},
		},
		"OlderBuildSupersedesALaterOne": {
			func(s *script) {
				s.commit(enqueued(3))
				s.commit(claimed(3, "b", 2))
				s.commit(settled(3, Done, "b", 2), done(4))
			},
			[]string{"version 4 (event 00000000-0000-0000-0000-000000000004): became done without a lease"},
		},
	}
	for name, tc := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := takeover()
			s.commit(enqueued(4))
			tc.doctor(s)
			expect(t, "unleased", Unleased(s.read()), tc.want...)
		})
	}
}

func TestSentEarly(t *testing.T) {
	t.Parallel()
	const missing = "sent without a lease on an event of its entity: index version "
	// 1 is leased from 100 to 200 ms, by a; 2 becomes known at 150 ms, 3 at 300 ms, and is
	// leased from 400 ms by b.
	leased := func() *script {
		s := &script{}
		at := func(ms uint64, do func()) { s.tx = ms - 1; do() }
		at(50, func() { s.commit(enqueued(1)) })
		at(100, func() { s.lease("a", 1, 1) })
		at(150, func() { s.commit(enqueued(2)) })
		at(200, func() { s.end(s.marks[0].batch, "a", done(1)) })
		at(300, func() { s.commit(enqueued(3)) })
		at(400, func() { s.lease("b", 2, 2, 3) })
		return s
	}
	sent := func(ms int, version int64, by string) Applied {
		return Applied{Request: 1, Instance: by, Sent: start.Add(time.Duration(ms) * time.Millisecond), Op: Index, ID: entity.String(), Version: version}
	}
	for name, tc := range map[string]struct {
		item    Applied
		crashes []FaultMark
		want    []string
	}{
		"InFlight":                        {sent(120, 1, "a"), nil, nil},
		"AtTheMomentOfTheCommit":          {sent(100, 1, "a"), nil, nil},
		"BeforeTheCommit":                 {sent(99, 1, "a"), nil, []string{"version 1: " + missing + "1 by a, request 1"}},
		"NewerRowThanTheEvent":            {sent(160, 2, "a"), nil, nil},
		"AfterTheEnd":                     {sent(310, 3, "a"), nil, []string{missing + "3 by a"}},
		"LateAndOfItsLease":               {sent(310, 2, "a"), nil, nil},
		"LateAndAfterTheSuccessor":        {sent(500, 1, "a"), nil, nil},
		"UnderTheSuccessorsLease":         {sent(500, 3, "a"), nil, []string{missing + "3 by a"}},
		"InstanceThatHasNeverLeased":      {sent(500, 3, "c"), nil, nil}, // of another name than its leases
		"LeaseTakenBackByACrash":          {sent(310, 3, "a"), []FaultMark{{At: start.Add(320 * time.Millisecond), Until: start.Add(time.Second)}}, nil},
		"LongBeforeTheCrash":              {sent(310, 3, "a"), []FaultMark{{At: start.Add(2 * time.Second), Until: start.Add(3 * time.Second)}}, []string{missing + "3 by a"}},
		"AnotherEntity":                   {func() Applied { a := sent(120, 1, "a"); a.ID = another.String(); return a }(), nil, []string{another.String() + " version 1: " + missing}},
		"RefusedOnItsWayIsSentAllTheSame": {func() Applied { a := sent(90, 1, "a"); a.Status = 429; return a }(), nil, []string{missing + "1 by a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect(t, "sent early", sentEarly(leased().read(), []Applied{tc.item}, tc.crashes, nil), tc.want...)
		})
	}

	t.Run("ReleasedLease", func(t *testing.T) {
		t.Parallel()
		s := &script{}
		s.commit(enqueued(1))
		s.end(s.lease("a", 1, 1), "a") // from 2 to 3 ms
		expect(t, "sent early", sentEarly(s.read(), []Applied{sent(3, 1, "a"), sent(4, 1, "a")}, nil, nil), missing+"1 by a")
	})

	t.Run("OlderBuild", func(t *testing.T) {
		t.Parallel()
		s := olderTakeover() // 1 is claimed from 3 to 5 ms
		expect(t, "sent early", sentEarly(s.read(), []Applied{sent(3, 1, "a"), sent(2, 1, "a")}, nil, nil), missing+"1 by a")
	})
}
