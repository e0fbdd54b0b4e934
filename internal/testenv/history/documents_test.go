package history

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// traffic builds what a proxy in front of a real Elasticsearch would have recorded.
type traffic struct {
	applied []Applied
	now     time.Duration
	seq     int64
	term    int64
	from    string
}

func newTraffic() *traffic { return &traffic{term: 1, from: "a"} }

// send adds an item that was answered ten milliseconds later; change makes it another.
func (w *traffic) send(op string, version int64, change ...func(*Applied)) *traffic {
	w.now += 20 * time.Millisecond
	w.seq++
	a := Applied{
		Request: int64(len(w.applied) + 1), Instance: w.from, Sent: start.Add(w.now), Answered: start.Add(w.now + 10*time.Millisecond),
		Op: op, ID: entity.String(), Version: version, Status: 200, Result: "updated",
		SeqNo: w.seq, PrimaryTerm: w.term, ResultVersion: version, Forwarded: true, Known: true,
	}
	if op == Delete {
		a.Result = "deleted"
	}
	for _, f := range change {
		f(&a)
	}
	w.applied = append(w.applied, a)
	return w
}

func conflict(a *Applied) {
	a.Status, a.Result, a.SeqNo, a.PrimaryTerm, a.ResultVersion = 409, "", 0, 0, 0
}
func unanswered(a *Applied) {
	conflict(a)
	a.Status, a.Known, a.Answered = 0, false, time.Time{}
}
func throttled(a *Applied)         { conflict(a); a.Status = 429 }
func broken(a *Applied)            { conflict(a); a.Status = 503 }
func withheld(a *Applied)          { unanswered(a); a.Forwarded = false }
func missing(a *Applied)           { a.Status, a.Result = 404, "not_found" }
func noIndex(a *Applied)           { conflict(a); a.Status = 404 }
func bare(a *Applied)              { a.Version = 0 } // sent without version and version_type
func anHourOn(a *Applied)          { late(a, 61*time.Minute) }
func by(who string) func(*Applied) { return func(a *Applied) { a.Instance = who } }
func taking(d time.Duration) func(*Applied) {
	return func(a *Applied) { a.Answered = a.Sent.Add(d) }
}

func late(a *Applied, by time.Duration) {
	a.Sent, a.Answered = a.Sent.Add(by), a.Answered.Add(by)
}

// restarted lets Elasticsearch begin another primary term.
func (w *traffic) restarted() *traffic { w.term++; return w }

// ends is the end of a run with the documents given, all as the rows say.
func ends(version int64) *End {
	e := &End{Documents: map[string]int64{}, Compared: &reconcile.Report{}}
	if version > 0 {
		e.Documents[entity.String()] = version
	}
	return e
}

func TestCheckPassesSoundTraffic(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		traffic *traffic
		end     *End
	}{
		"Empty":          {newTraffic(), ends(0)},
		"Updates":        {newTraffic().send(Index, 1).send(Index, 2).send(Index, 2), ends(2)},
		"LateOneRefused": {newTraffic().send(Index, 5).send(Index, 3, conflict).send(Index, 6), ends(6)},
		"DeletedAndRecreated": {
			newTraffic().send(Index, 1).send(Delete, 2).send(Index, 1, conflict).send(Index, 3), ends(3),
		},
		"DeleteOfNothing": {newTraffic().send(Delete, 4, missing).send(Index, 3, conflict), ends(0)},
		"DeleteRepeated":  {newTraffic().send(Index, 1).send(Delete, 2).send(Delete, 2, missing), ends(0)},
		"Throttled":       {newTraffic().send(Index, 5, throttled).send(Index, 4, noIndex).send(Index, 3), ends(3)},
		// An answer that was lost: the write happened, or it did not, or it comes late.
		"LostAnswerApplied":    {newTraffic().send(Index, 5, unanswered).send(Index, 4, conflict), ends(5)},
		"LostAnswerNotApplied": {newTraffic().send(Index, 5, unanswered).send(Index, 4), ends(4)},
		"LostAnswerAppliedLate": {
			newTraffic().send(Index, 5, unanswered).send(Index, 4).send(Index, 4, conflict), ends(5),
		},
		"LostDelete":     {newTraffic().send(Index, 1).send(Delete, 2, unanswered), ends(0)},
		"LostForNothing": {newTraffic().send(Index, 1).send(Delete, 2, unanswered), ends(1)},
		"BrokenServer":   {newTraffic().send(Index, 1).send(Index, 2, broken), ends(2)},
		"NeverSentOn":    {newTraffic().send(Index, 9, withheld).send(Index, 2), ends(2)},
		// The bulk of a zombie was under way all the time; Elasticsearch took it first.
		"StaleBulkFirst": {
			func() *traffic {
				w := newTraffic().send(Index, 1, taking(time.Minute))
				w.from = "b"
				return w.send(Index, 2)
			}(), ends(2),
		},
		// What the design does not promise is no fault of Elasticsearch.
		"LateDeleteAfterDeletesAreForgotten": {
			newTraffic().send(Delete, 5).send(Delete, 3, missing, anHourOn), ends(0),
		},
		"LateDeleteAfterARestart": {newTraffic().send(Delete, 5).restarted().send(Delete, 3, missing), ends(0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect(t, "regressions", regressions(&Log{}, documents(tc.traffic.applied), tc.end))
			expect(t, "resurrected", resurrected(&Log{}, documents(tc.traffic.applied), tc.end))
		})
	}
}

func TestRegressions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		traffic *traffic
		end     *End
		want    []string
	}{
		"OlderAfterNewer": {
			newTraffic().send(Index, 5).send(Index, 3), nil,
			[]string{`book:00000000-0000-0000-0000-0000000000aa version 3: index applied after index of version 5 by "a" (request 2 of "a", term 1, seq_no 2)`},
		},
		"DeleteOlderThanTheDocument": {newTraffic().send(Index, 5).send(Delete, 3), nil, []string{"delete applied after index of version 5"}},
		"WithoutVersionType": {
			newTraffic().send(Index, 5).send(Index, 6, bare), nil, []string{"version 0: index applied after index of version 5"},
		},
		"FirstWriteWithoutVersionType": {newTraffic().send(Index, 1, bare), nil, []string{"index written as version 1, asked for was 0"}},
		"WrittenUnderAnotherVersion": {
			newTraffic().send(Index, 1).send(Index, 5, func(a *Applied) { a.ResultVersion = 2 }), nil,
			[]string{"index written as version 2, asked for was 5"},
		},
		// Elasticsearch's own order decides, not that of the requests.
		"OlderTookLonger": {
			newTraffic().send(Index, 3, taking(time.Second), func(a *Applied) { a.SeqNo = 9 }).send(Index, 5), nil,
			[]string{"version 3: index applied after index of version 5"},
		},
		"LostInACrash": {
			newTraffic().send(Index, 5).restarted().send(Index, 4, func(a *Applied) { a.SeqNo = 1 }), nil,
			[]string{"version 4: index applied after index of version 5"},
		},
		"DeleteBeforeItIsForgotten": {
			newTraffic().send(Delete, 5).send(Delete, 3, missing), nil, []string{"version 3: delete applied after delete of version 5"},
		},
		"EachOffender": {
			newTraffic().send(Index, 5).send(Index, 3).send(Index, 4).send(Index, 2), nil,
			[]string{"version 3: index applied after index of version 5", "version 2: index applied after index of version 4"},
		},
		// What only the model sees.
		"RefusedByNothing": {newTraffic().send(Index, 5).send(Index, 7, conflict), ends(5), []string{"index answered with 409 when the document was version 5"}},
		"GoneAtTheEnd":     {newTraffic().send(Index, 5), ends(0), []string{"not there at the end, when it was last version 5"}},
		"OlderAtTheEnd":    {newTraffic().send(Index, 4).send(Index, 5), ends(4), []string{"version 4: there at the end, when it was last version 5"}},
		"BackAtTheEnd":     {newTraffic().send(Index, 4).send(Delete, 5), ends(4), []string{"there at the end, when it was last deleted as of version 5"}},
		"NeverWritten":     {newTraffic().send(Index, 4, throttled), ends(4), []string{"there at the end, when it was last never written"}},
		"LostAnswerSeenAndUnseen": {
			newTraffic().send(Index, 5, unanswered).send(Index, 4, conflict).send(Index, 4), nil,
			[]string{"answered with"},
		},
		"LostAnswerCannotUndoTheNewer": {
			newTraffic().send(Index, 3, unanswered).send(Index, 5).send(Index, 4, conflict), ends(3),
			[]string{"version 3: there at the end, when it was last version 5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect(t, "regressions", regressions(&Log{}, documents(tc.traffic.applied), tc.end), tc.want...)
			expect(t, "resurrected", resurrected(&Log{}, documents(tc.traffic.applied), tc.end))
		})
	}
}

// Hundreds of lost answers to one write, as in an outage, cost nothing and decide nothing.
func TestManyLostAnswers(t *testing.T) {
	t.Parallel()
	w := newTraffic().send(Index, 1)
	for range 500 {
		w.send(Index, 5, unanswered)
	}
	w.send(Index, 4) // none of them had an effect before
	applied := w.applied
	expect(t, "never applied", regressions(&Log{}, documents(applied), ends(4)))
	expect(t, "applied at the end", regressions(&Log{}, documents(applied), ends(5)))
	expect(t, "neither", regressions(&Log{}, documents(applied), ends(1)), "there at the end, when it was last")
	// A write and a delete of one version are two things.
	mixed := newTraffic().send(Index, 5, unanswered).send(Delete, 5).send(Index, 5, unanswered).applied
	expect(t, "written again", regressions(&Log{}, documents(mixed), ends(5)))
	expect(t, "deleted", regressions(&Log{}, documents(mixed), ends(0)))
}

// An older term must not have the last word about a document.
func TestRegressionNamesTheTerms(t *testing.T) {
	t.Parallel()
	w := newTraffic().send(Index, 3).send(Index, 9, by("b")).send(Index, 5)
	log := &Log{Terms: []Term{
		{Seq: 1, At: start, Epoch: 1, Instance: "a"},
		{Seq: 2, At: start.Add(30 * time.Millisecond), Epoch: 2, Instance: "b"},
	}}
	expect(t, "regressions", regressions(log, documents(w.applied), nil), `index applied after index of version 9 by "b": epoch 1 has written after epoch 2`)

	w = newTraffic().send(Index, 3).send(Index, 9, by("b")).send(Index, 5, conflict)
	expect(t, "regressions when refused", regressions(log, documents(w.applied), nil))
}

// Documents do not disturb each other, and each is judged.
func TestRegressionsByDocument(t *testing.T) {
	t.Parallel()
	other := func(a *Applied) { a.ID = another.String() }
	w := newTraffic().send(Index, 5).send(Index, 3, other).send(Index, 6).send(Index, 2, other)
	expect(t, "regressions", regressions(&Log{}, documents(w.applied), nil), another.String()+" version 2: index applied after index of version 3")
}

func TestResurrected(t *testing.T) {
	t.Parallel()
	extra := func(version int64) *End {
		e := ends(version)
		e.Differences = []reconcile.Difference{{Kind: reconcile.Extra, ID: entity.String()}}
		return e
	}
	deadLetter := &script{}
	deadLetter.commit(enqueued(9))
	deadLetter.batch("a", 1, became(9, Failed))
	for name, tc := range map[string]struct {
		log     *Log
		traffic *traffic
		end     *End
		want    []string
	}{
		"OlderIndexAfterTheDelete": {
			&Log{}, newTraffic().send(Index, 3).send(Delete, 5).send(Index, 3), nil,
			[]string{`version 3: index applied after delete of version 5 by "a"`},
		},
		// Legal for Elasticsearch, and yet the deleted document is back.
		"AfterDeletesAreForgotten": {
			&Log{}, newTraffic().send(Delete, 5).send(Index, 3, anHourOn), nil, []string{"version 3: index applied after delete of version 5"},
		},
		"AfterARestart": {
			&Log{}, newTraffic().send(Delete, 5).restarted().send(Index, 3), nil, []string{"version 3: index applied after delete of version 5"},
		},
		"WithoutVersionType": {
			&Log{}, newTraffic().send(Delete, 5).send(Index, 6, bare), nil, []string{"version 0: index applied after delete of version 5"},
		},
		"ThereAtTheEnd": {
			&Log{}, newTraffic().send(Index, 3).send(Delete, 5).send(Index, 5), extra(5),
			[]string{"version 5: deleted, and there at the end as version 5, without a row"},
		},
		"ThereAtTheEndForADeadLetter": {
			deadLetter.read(), newTraffic().send(Index, 3).send(Delete, 5).send(Index, 5), extra(5), nil,
		},
		"NeverDeletedIsNoResurrection": {&Log{}, newTraffic().send(Delete, 2).send(Index, 3), extra(3), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect(t, "resurrected", resurrected(tc.log, documents(tc.traffic.applied), tc.end), tc.want...)
			expect(t, "regressions", regressions(tc.log, documents(tc.traffic.applied), tc.end))
		})
	}
}

func TestUnprojected(t *testing.T) {
	t.Parallel()
	ended := func(c Change) *script {
		s := &script{}
		s.commit(enqueued(c.Version))
		l := s.lease("a", 1, c.Version)
		s.tx += 100 // milliseconds
		s.end(l, "a", c)
		return s
	}
	projected := func(version int64) *script { return ended(done(version)) }
	for name, tc := range map[string]struct {
		script  *script
		traffic *traffic
		want    []string
	}{
		"Written":          {projected(3), newTraffic().send(Index, 3), nil},
		"RowWasNewer":      {projected(3), newTraffic().send(Index, 7), nil},
		"RefusedAsOlder":   {projected(3), newTraffic().send(Index, 3, conflict), nil},
		"DeletedNothing":   {projected(3), newTraffic().send(Delete, 3, missing), nil},
		"NothingSent":      {projected(3), newTraffic(), []string{"version 3 (event 00000000-0000-0000-0000-000000000003): done before Elasticsearch had confirmed"}},
		"OlderSent":        {projected(3), newTraffic().send(Index, 2), []string{"no newer version of its document than 2"}},
		"Withheld":         {projected(3), newTraffic().send(Index, 3, withheld), []string{"before Elasticsearch had confirmed"}},
		"NoAnswer":         {projected(3), newTraffic().send(Index, 3, unanswered), []string{"before Elasticsearch had confirmed"}},
		"Throttled":        {projected(3), newTraffic().send(Index, 3, throttled), []string{"before Elasticsearch had confirmed"}},
		"NoIndex":          {projected(3), newTraffic().send(Delete, 3, noIndex), []string{"before Elasticsearch had confirmed"}},
		"OnlyAfterwards":   {projected(3), newTraffic().send(Index, 1).send(Index, 3, anHourOn), []string{"no newer version of its document than 1"}},
		"AnsweredTooLate":  {projected(3), newTraffic().send(Index, 3, taking(time.Hour)), []string{"before Elasticsearch had confirmed"}},
		"AnotherDocument":  {projected(3), newTraffic().send(Index, 3, func(a *Applied) { a.ID = another.String() }), []string{"before Elasticsearch had confirmed"}},
		"DeletedAsDone":    {ended(removed(3, Pending)), newTraffic(), []string{"before Elasticsearch had confirmed"}},
		"DeadLetterIsFine": {ended(became(1, Failed)), newTraffic(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect(t, "unprojected", Unprojected(tc.script.read(), tc.traffic.applied), tc.want...)
		})
	}
}

func TestStory(t *testing.T) {
	t.Parallel()
	s := takeover()
	s.log.Source = []SourceChange{
		{Tx: 1, At: start.Add(time.Millisecond), Key: entity, Version: 1},
		{Tx: 20, At: start.Add(time.Second), Key: entity, Version: 3, Deleted: true},
		{Tx: 21, At: start, Key: another, Version: 99},
	}
	w := newTraffic().send(Index, 3).send(Index, 2, conflict).send(Index, 2, unanswered).send(Index, 2, withheld)
	log := s.read()
	got := Story(log, w.applied, entity)
	at := 0
	for _, want := range []string{
		"book:00000000-0000-0000-0000-0000000000aa\n",
		"03:04:05.001000 row      written as version 1, tx 1\n",
		"03:04:05.002000 event    version 1  new→pending attempts 0, tx 2",
		"lease    00000000-0000-0003-0000-000000000000 of a epoch 1 begins: 1 of its 1 events, tx 3\n",
		"event    version 1  pending→done a epoch 1 attempts 0",
		"of a epoch 1 ends: 1 events settled, 0 reclaimed, tx 5\n",
		"term     epoch 2 of b\n",
		"version 2  pending→pending reclaimed from a epoch 1 by a session of b attempts 1",
		"document index version 3 by a, request 1: 200 updated as version 3, term 1 seq_no 1, after 10ms\n",
		"request 2: 409 after 10ms\n",
		"request 3: no answer\n",
		"request 4: not sent on\n",
		"03:04:06.000000 row      deleted after version 3, tx 20\n",
	} {
		i := strings.Index(got[at:], want)
		if i < 0 {
			t.Fatalf("got\n%s\nwant %q behind position %d", got, want, at)
		}
		at += i + len(want)
	}
	if strings.Contains(got, "99") {
		t.Errorf("got\n%s\nwant nothing of another entity", got)
	}
	if got := Story(log, w.applied, outbox.Key{Type: "tag", ID: outbox.UUID(uuid.UUID{1})}); got != "" {
		t.Errorf("story of an unknown entity: got %q, want none", got)
	}
}
