package history

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// script builds a record, one transaction at a time.
type script struct {
	log   Log
	marks []mark
	seq   int64
	tx    uint64
}

var (
	start   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	entity  = outbox.Key{Type: "book", ID: outbox.UUID(uuid.MustParse("00000000-0000-0000-0000-0000000000aa"))}
	another = outbox.Key{Type: "book", ID: outbox.UUID(uuid.MustParse("00000000-0000-0000-0000-0000000000bb"))}
)

func id(version int64) outbox.ID {
	var u uuid.UUID
	u[15] = byte(version)
	return outbox.UUID(u)
}

func (s *script) at() time.Time { return start.Add(time.Duration(s.tx) * time.Millisecond) }

func (s *script) next() int64 { s.seq++; return s.seq }

func (s *script) term(epoch int64, instance string) {
	s.tx++
	s.log.Terms = append(s.log.Terms, Term{Seq: s.next(), At: s.at(), Epoch: epoch, Instance: instance})
}

// commit adds the changes as one transaction and keeps the table's rows and the history
// in step.
func (s *script) commit(changes ...Change) {
	s.tx++
	s.add(changes...)
}

func (s *script) add(changes ...Change) {
	for _, c := range changes {
		c.Seq, c.Tx, c.At = s.next(), s.tx, s.at()
		if c.Key == (outbox.Key{}) {
			c.Key = entity
		}
		c.Event = id(c.Version)
		s.log.Changes = append(s.log.Changes, c)
		if c.To == Archived {
			s.log.History = append(s.log.History, c.Event)
		}
		s.log.Rows = slices.DeleteFunc(s.log.Rows, func(r Row) bool { return r.Event == c.Event && c.From != Archived })
		if c.To != Archived && c.To != Deleted {
			s.log.Rows = append(s.log.Rows, Row{c.Event, c.To})
		}
	}
}

// lease commits a lease and returns its batch.
func (s *script) lease(owner string, epoch int64, versions ...int64) uuid.UUID {
	s.tx++
	m := mark{seq: s.next(), tx: s.tx, at: s.at(), owner: owner, epoch: epoch, by: owner}
	binary.BigEndian.PutUint64(m.batch[:], uint64(m.seq))
	for _, v := range versions {
		m.events = append(m.events, id(v))
	}
	s.marks = append(s.marks, m)
	return m.batch
}

// end commits the end of a lease by a session, with changes.
func (s *script) end(batch uuid.UUID, by string, changes ...Change) {
	s.tx++
	s.marks = append(s.marks, mark{seq: s.next(), tx: s.tx, at: s.at(), batch: batch, by: by, end: true})
	for i := range changes {
		changes[i].By = by
	}
	s.add(changes...)
}

// batch commits a lease of the events that changes are of, and its end with them.
func (s *script) batch(owner string, epoch int64, changes ...Change) {
	var versions []int64
	for _, c := range changes {
		versions = append(versions, c.Version)
	}
	s.end(s.lease(owner, epoch, versions...), owner, changes...)
}

// read returns the record as Read does.
func (s *script) read() *Log {
	log := s.log
	log.Changes = moves(slices.Clone(log.Changes))
	log.attribute(s.marks)
	return &log
}

func enqueued(version int64) Change          { return Change{Version: version, To: Pending} }
func became(version int64, to Status) Change { return Change{Version: version, From: Pending, To: to} }
func done(version int64) Change              { return became(version, Done) }
func ofAnother(c Change) Change              { c.Key = another; return c }
func retried(version int64) Change {
	return Change{Version: version, From: Pending, To: Pending, Attempts: 1}
}
func reclaimed(version int64) Change { c := retried(version); c.Reclaim = true; return c }
func replayed(version int64) Change  { return Change{Version: version, From: Failed, To: Pending} }
func removed(version int64, from Status) Change {
	return Change{Version: version, From: from, To: Deleted}
}
func copied(version int64) Change { return Change{Version: version, From: Archived, To: Archived} }

// What an older build writes, or another worker, whose epoch is 0.
func claimed(version int64, owner string, epoch int64) Change {
	return Change{Version: version, From: Pending, To: Processing, Owner: owner, Epoch: epoch}
}

func settled(version int64, to Status, owner string, epoch int64) Change {
	return Change{Version: version, From: Processing, To: to, Owner: owner, Epoch: epoch}
}

func unclaimed(version int64, owner string, epoch int64) Change {
	return Change{Version: version, From: Processing, To: Pending, Owner: owner, Epoch: epoch, Attempts: 1, Reclaim: true}
}

// takeover is a sound history: a dies holding 2 and 3, b takes over.
func takeover() *script {
	s := &script{}
	s.term(1, "a")
	s.commit(enqueued(1))
	first := s.lease("a", 1, 1)
	s.commit(enqueued(2), enqueued(3))
	s.end(first, "a", done(1))
	held := s.lease("a", 1, 2, 3)
	s.term(2, "b")
	s.end(held, "b", reclaimed(2), reclaimed(3))
	s.batch("b", 2, done(3), done(2))
	return s
}

// olderTakeover is the same of a build that claims in rows.
func olderTakeover() *script {
	s := &script{}
	s.term(1, "a")
	s.commit(enqueued(1))
	s.commit(claimed(1, "a", 1))
	s.commit(enqueued(2), enqueued(3))
	s.commit(settled(1, Done, "a", 1))
	s.commit(claimed(2, "a", 1), claimed(3, "a", 1))
	s.term(2, "b")
	s.commit(unclaimed(2, "a", 1), unclaimed(3, "a", 1))
	s.commit(claimed(3, "b", 2))
	s.commit(settled(3, Done, "b", 2), done(2)) // superseded without a claim
	return s
}

func expect(t *testing.T, check string, got []Finding, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d findings %v, want %d", check, len(got), got, len(want))
	}
	for i := range want {
		if !strings.Contains(got[i].String(), want[i]) {
			t.Errorf("%s, finding %d: got %q, want it to contain %q", check, i, got[i], want[i])
		}
	}
}

func TestCheckPassesSoundHistories(t *testing.T) {
	t.Parallel()
	histories := map[string]func(s *script){
		"Empty": func(*script) {},
		"RetryThenDone": func(s *script) {
			s.commit(enqueued(1))
			s.batch("a", 1, retried(1))
			s.batch("a", 1, done(1))
		},
		"LowerVersionCommittedLater": func(s *script) {
			s.commit(enqueued(2))
			l := s.lease("a", 1, 2)
			s.commit(enqueued(1))
			s.end(l, "a", done(2))
			s.batch("a", 1, done(1))
		},
		// The dead letter is a legal end, and may be passed; so may what a replay brings back.
		"DeadLetterAndReplay": func(s *script) {
			s.commit(enqueued(1), enqueued(2))
			s.batch("a", 1, became(1, Failed))
			l := s.lease("a", 1, 2)
			s.commit(replayed(1))
			s.end(l, "a", done(2))
			s.batch("a", 1, became(1, Failed))
		},
		// An event that was put off is superseded by a later one, in one transaction.
		"RetryThenSuperseded": func(s *script) {
			s.commit(enqueued(1))
			s.batch("a", 1, retried(1))
			s.commit(enqueued(2))
			s.batch("a", 1, done(2), done(1))
		},
		"OtherEntityGoesOn": func(s *script) {
			s.commit(enqueued(1), ofAnother(enqueued(2)))
			l := s.lease("a", 1, 1)
			s.batch("a", 1, ofAnother(done(2)))
			s.end(l, "a", done(1))
		},
		// Of a batch only some events are settled; the others are leased again.
		"PartLeft": func(s *script) {
			s.commit(enqueued(1), ofAnother(enqueued(2)))
			s.end(s.lease("a", 1, 1, 2), "a", done(1))
			s.batch("a", 1, ofAnother(done(2)))
		},
		// Each half of a lease is settled by itself.
		"LeaseIsSplit": func(s *script) {
			s.commit(enqueued(1), ofAnother(enqueued(2)))
			l := s.lease("a", 1, 1, 2)
			s.end(l, "a")
			s.tx--
			one := s.lease("a", 1, 1)
			s.tx--
			two := s.lease("a", 1, 2)
			s.end(one, "a", done(1))
			s.end(two, "a", ofAnother(done(2)))
		},
		// The lease whose answer was lost is removed when its events are in another batch.
		"LeaseWhoseAnswerWasLost": func(s *script) {
			s.term(1, "a")
			s.commit(enqueued(1))
			lost := s.lease("a", 1, 1)
			l := s.lease("a", 1, 1)
			s.end(lost, "a")
			s.end(l, "a", done(1))
		},
		"PrunedAfterItWasDone": func(s *script) {
			s.commit(enqueued(1))
			s.batch("a", 1, done(1))
			s.commit(removed(1, Done))
		},
		// The older build leads between two terms of this one, which leaves a lease behind.
		"BuildsTakeTurns": func(s *script) {
			s.term(1, "a")
			s.commit(enqueued(1))
			left := s.lease("a", 1, 1)
			s.term(2, "b")
			s.commit(claimed(1, "b", 2))
			s.commit(enqueued(2))
			s.commit(settled(1, Pending, "b", 2))
			s.commit(claimed(1, "b", 2))
			s.term(3, "a")
			s.end(left, "a")
			s.commit(unclaimed(1, "b", 2))
			s.batch("a", 3, done(2), done(1))
		},
	}
	sound := map[string]*script{"Takeover": takeover(), "OlderTakeover": olderTakeover()}
	for name, history := range histories {
		sound[name] = &script{}
		history(sound[name])
	}
	for name, s := range sound {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := s.read()
			expect(t, "two active", TwoActive(log))
			expect(t, "unleased", Unleased(log))
			expect(t, "twice", Twice(log))
			expect(t, "out of order", OutOfOrder(log))
			expect(t, "lost", Lost(log, nil))
		})
	}
}

// What is archived or deleted by a settle is done.
func TestCheckPassesSoundArchives(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		finished outbox.Finished
		history  func(s *script)
		kept     int
	}{
		"Archived": {outbox.Archive, func(s *script) { s.batch("b", 2, removed(4, Pending), copied(4)) }, 3},
		// Nothing says which of the two triggers of a statement is the first.
		"ArchivedTheOtherWayRound": {outbox.Archive, func(s *script) { s.batch("b", 2, copied(4), removed(4, Pending)) }, 3},
		"ArchivedLater": {outbox.Archive, func(s *script) {
			s.batch("b", 2, done(4))
			s.commit(removed(4, Done), copied(4))
		}, 3},
		"Deleted":            {outbox.Discard, func(s *script) { s.batch("b", 2, removed(4, Pending)) }, 3},
		"KeptInSpiteOfOrder": {outbox.Discard, func(s *script) { s.batch("b", 2, done(4)) }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := takeover()
			s.commit(enqueued(4))
			tc.history(s)
			log := s.read()
			log.Finished = tc.finished
			expect(t, "two active", TwoActive(log))
			expect(t, "unleased", Unleased(log))
			expect(t, "twice", Twice(log))
			expect(t, "out of order", OutOfOrder(log))
			expect(t, "lost", Lost(log, nil))
			if got := Kept(log); len(got) != tc.kept {
				t.Errorf("kept: got %v, want %d", got, tc.kept)
			}
			if _, ok := log.FirstDoneAfter(log.Changes[0].At); !ok {
				t.Error("no event is done")
			}
		})
	}
}
