package history

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

// script builds a record, one transaction at a time.
type script struct {
	log Log
	seq int64
	tx  uint64
}

var (
	start   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	entity  = outbox.Key{Type: "book", ID: uuid.MustParse("00000000-0000-0000-0000-0000000000aa")}
	another = outbox.Key{Type: "book", ID: uuid.MustParse("00000000-0000-0000-0000-0000000000bb")}
)

func id(version int64) uuid.UUID {
	var u uuid.UUID
	u[15] = byte(version)
	return u
}

func (s *script) at() time.Time { return start.Add(time.Duration(s.tx) * time.Millisecond) }

func (s *script) term(epoch int64, instance string) {
	s.tx++
	s.seq++
	s.log.Terms = append(s.log.Terms, Term{Seq: s.seq, At: s.at(), Epoch: epoch, Instance: instance})
}

// commit adds the changes as one transaction and keeps the table's rows in step.
func (s *script) commit(changes ...Change) {
	s.tx++
	for _, c := range changes {
		s.seq++
		c.Seq, c.Tx, c.At = s.seq, s.tx, s.at()
		if c.Key == (outbox.Key{}) {
			c.Key = entity
		}
		c.Event = id(c.Version)
		s.log.Changes = append(s.log.Changes, c)
		i := slices.IndexFunc(s.log.Rows, func(r Row) bool { return r.Event == c.Event })
		if i < 0 {
			s.log.Rows = append(s.log.Rows, Row{Event: c.Event})
			i = len(s.log.Rows) - 1
		}
		s.log.Rows[i].Status = c.To
	}
}

func enqueued(version int64) Change { return Change{Version: version, To: Pending} }
func claimed(version int64, owner string, epoch int64) Change {
	return Change{Version: version, From: Pending, To: Processing, Owner: owner, Epoch: epoch}
}
func settled(version int64, to Status, owner string, epoch int64) Change {
	return Change{Version: version, From: Processing, To: to, Owner: owner, Epoch: epoch}
}
func reclaimed(version int64, owner string, epoch int64) Change {
	return Change{Version: version, From: Processing, To: Pending, Owner: owner, Epoch: epoch, Attempts: 1, Reclaim: true}
}

// takeover is a sound history: a dies holding 2 and 3, b takes over.
func takeover() *script {
	s := &script{}
	s.term(1, "a")
	s.commit(enqueued(1))
	s.commit(claimed(1, "a", 1))
	s.commit(enqueued(2), enqueued(3))
	s.commit(settled(1, Done, "a", 1))
	s.commit(claimed(2, "a", 1), claimed(3, "a", 1))
	s.term(2, "b")
	s.commit(reclaimed(2, "a", 1), reclaimed(3, "a", 1))
	s.commit(claimed(2, "b", 2), claimed(3, "b", 2))
	s.commit(settled(3, Done, "b", 2), settled(2, Done, "b", 2))
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

func TestSoundHistories(t *testing.T) {
	t.Parallel()
	histories := map[string]func() *script{
		"Empty":    func() *script { return &script{} },
		"Takeover": takeover,
		"RetryThenDone": func() *script {
			s := &script{}
			s.commit(enqueued(1))
			s.commit(claimed(1, "a", 1))
			s.commit(settled(1, Pending, "a", 1))
			s.commit(claimed(1, "a", 1))
			s.commit(settled(1, Done, "a", 1))
			return s
		},
		"LowerVersionCommittedLater": func() *script {
			s := &script{}
			s.commit(enqueued(2))
			s.commit(claimed(2, "a", 1))
			s.commit(enqueued(1))
			s.commit(settled(2, Done, "a", 1))
			s.commit(claimed(1, "a", 1))
			s.commit(settled(1, Done, "a", 1))
			return s
		},
		// The dead letter is a legal end, and may be passed; so may what a replay brings back.
		"DeadLetterAndReplay": func() *script {
			s := &script{}
			s.commit(enqueued(1), enqueued(2))
			s.commit(claimed(1, "a", 1))
			s.commit(settled(1, Failed, "a", 1))
			s.commit(claimed(2, "a", 1))
			s.commit(Change{Version: 1, From: Failed, To: Pending})
			s.commit(settled(2, Done, "a", 1))
			s.commit(claimed(1, "a", 1))
			s.commit(settled(1, Failed, "a", 1))
			return s
		},
		// An event that was put off is superseded by a later one, in one transaction.
		"RetryThenSuperseded": func() *script {
			s := &script{}
			s.commit(enqueued(1))
			s.commit(claimed(1, "a", 1))
			s.commit(settled(1, Pending, "a", 1))
			s.commit(enqueued(2))
			s.commit(claimed(2, "a", 1))
			s.commit(settled(2, Pending, "a", 1)) // waits behind 1
			s.commit(claimed(1, "a", 1), claimed(2, "a", 1))
			s.commit(settled(2, Done, "a", 1), settled(1, Done, "a", 1))
			return s
		},
		"OtherEntityGoesOn": func() *script {
			s := &script{}
			other := func(c Change) Change { c.Key = another; return c }
			s.commit(enqueued(1), other(enqueued(2)))
			s.commit(claimed(1, "a", 1), other(claimed(2, "a", 1)))
			s.commit(other(settled(2, Done, "a", 1)))
			s.commit(settled(1, Done, "a", 1))
			return s
		},
		// The reclaim by the newer term shows the older term's owner and epoch.
		"ReclaimAfterFirstClaimOfTheNewTerm": func() *script {
			s := &script{}
			s.term(1, "a")
			s.commit(enqueued(1), Change{Version: 2, To: Pending, Key: another})
			s.commit(claimed(1, "a", 1))
			s.term(2, "b")
			s.commit(Change{Version: 2, From: Pending, To: Processing, Owner: "b", Epoch: 2, Key: another})
			s.commit(reclaimed(1, "a", 1))
			s.commit(claimed(1, "b", 2))
			s.commit(settled(1, Done, "b", 2), Change{Version: 2, From: Processing, To: Done, Owner: "b", Epoch: 2, Key: another})
			return s
		},
	}
	for name, history := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &history().log
			expect(t, "two active", TwoActive(log))
			expect(t, "out of order", OutOfOrder(log))
			expect(t, "lost", Lost(log, nil))
		})
	}
}
