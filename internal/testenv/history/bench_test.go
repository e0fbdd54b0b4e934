package history

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// million generates the run of a pair that takes turns in leading: some of everything
// that a sound run has, until the log has a million changes. Every hundredth answer of
// Elasticsearch is lost, some of them a thousand at a time.
func million(entities int) Run {
	const changes = 1_000_000
	var (
		random = rand.New(rand.NewPCG(1, 1))
		run    = Run{Log: &Log{Exact: true}, End: &End{Documents: map[string]int64{}, Compared: &reconcile.Report{}}}
		log    = run.Log
		now    = start
		tx     uint64
		epoch  int64
		owner  string
		names  = [2]string{"a", "b"}
		keys   = make([]outbox.Key, entities)
		docs   = make([]string, entities)
		before = make([]int64, entities)
	)
	for i := range keys {
		keys[i] = outbox.Key{Type: "block", ID: numbered(0xc0, uint64(i))}
		docs[i] = keys[i].String()
	}
	var (
		seq   int64
		marks []mark
	)
	add := func(c Change) {
		seq++
		c.Seq, c.Tx, c.At = seq, tx, now
		log.Changes = append(log.Changes, c)
	}
	for request := int64(0); len(log.Changes) < changes; request++ {
		if request%2000 == 0 { // a takeover
			epoch++
			owner = names[epoch%2]
			seq++
			log.Terms = append(log.Terms, Term{Seq: seq, At: now, Epoch: epoch, Instance: owner})
			now = now.Add(time.Second)
		}
		lost := random.IntN(100) == 0 || request%2000 > 1970
		batch := map[int][]Change{}
		for range 30 {
			e := random.IntN(entities)
			if random.IntN(2) == 0 {
				e = random.IntN(entities/10 + 1)
			}
			version := int64(len(log.Changes)) + 1
			c := Change{Event: numbered(0, uint64(version)), Key: keys[e], Version: version, Op: outbox.Upsert, To: Pending}
			tx++
			now = now.Add(100 * time.Microsecond)
			add(c)
			log.Source = append(log.Source, SourceChange{Seq: seq, Tx: tx, At: now, Key: c.Key, Version: version})
			log.Rows = append(log.Rows, Row{Event: c.Event, Status: Done})
			run.Acknowledged = append(run.Acknowledged, Enqueued{Event: c.Event, Key: c.Key, Version: version})
			c.By = owner
			batch[e] = append(batch[e], c)
		}
		round := func(to Status, attempts int) {
			tx++
			seq++
			now = now.Add(time.Millisecond)
			lease := mark{seq: seq, tx: tx, at: now, owner: owner, by: owner, epoch: epoch}
			binary.BigEndian.PutUint64(lease.batch[:], uint64(seq))
			for _, group := range batch {
				for _, c := range group {
					lease.events = append(lease.events, c.Event)
				}
			}
			marks = append(marks, lease)
			for e, group := range batch {
				a := Applied{
					Request: request, Instance: owner, Sent: now, Answered: now.Add(3 * time.Millisecond), Op: Index, ID: docs[e],
					Version: group[len(group)-1].Version, Forwarded: true,
				}
				if to == Done || random.IntN(2) == 0 { // the lost ones had an effect or not
					seq++
					before[e] = a.Version
					a.SeqNo = seq
				}
				if to == Done {
					a.Known, a.Status, a.Result, a.PrimaryTerm, a.ResultVersion = true, 200, "updated", 1, a.Version
				} else {
					a.Answered, a.SeqNo = time.Time{}, 0
				}
				run.Applied = append(run.Applied, a)
			}
			tx++
			seq++
			now = now.Add(4 * time.Millisecond)
			lease.seq, lease.tx, lease.at, lease.end, lease.events = seq, tx, now, true, nil
			marks = append(marks, lease)
			for _, group := range batch {
				for _, c := range group {
					c.From, c.To, c.Attempts = Pending, to, attempts
					if to == Pending {
						c.Attempts++
					}
					add(c)
				}
			}
		}
		if lost {
			round(Pending, 0)
			round(Done, 1)
		} else {
			round(Done, 0)
		}
	}
	for e, v := range before {
		if v > 0 {
			run.End.Documents[docs[e]] = v
		}
	}
	log.attribute(marks)
	return run
}

func numbered(first byte, n uint64) outbox.ID {
	u := uuid.UUID{0: first}
	binary.BigEndian.PutUint64(u[8:], n)
	return outbox.UUID(u)
}

// BenchmarkCheck judges a million changes. Memory is that of the log and of the checks.
func BenchmarkCheck(b *testing.B) {
	for name, entities := range map[string]int{"600Entities": 600, "100000Entities": 100_000, "10Entities": 10} {
		b.Run(name, func(b *testing.B) {
			run := million(entities)
			b.ReportAllocs()
			b.ReportMetric(float64(len(run.Applied)), "items")
			for b.Loop() {
				if bad := Check(run).Breaches(); len(bad) > 0 {
					b.Fatal(bad)
				}
				Takeovers(run.Log, []FaultMark{{Name: "x", At: start, Epoch: 1}})
			}
		})
	}
}
