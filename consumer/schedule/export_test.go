package schedule

import (
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Memory returns how many things the scheduler remembers.
func (s *Scheduler) Memory() int {
	c := &s.c
	rows := 0
	for _, e := range c.entities {
		rows += len(e.rows) + len(e.leased)
	}
	for _, q := range c.queues {
		rows += len(q)
	}
	return rows + len(c.entities) + len(c.barriers) + len(c.lookUps.keys) + len(c.putOffs.keys) + len(c.putOff) + len(s.apart) + len(s.company) +
		len(s.gate.faulted) + len(s.gate.finals)
}

// QueuePutOffs queues the put-offs of n entities with blocked rows, and returns how many it keeps.
func QueuePutOffs(n int) int {
	c := newCandidates(&Config{})
	for i := range n {
		c.barriers[outbox.Key{Type: "block", ID: outbox.Number(int64(i + 1))}] = &barrier{behind: 1}
	}
	c.wantPutOffs()
	return len(c.putOffs.keys)
}

// PutOffsInVain returns how many put-offs of n entities in flight stay queued when nothing is in
// their way any more.
func PutOffsInVain(n int) int {
	c := newCandidates(&Config{})
	for i := range n {
		key := outbox.Key{Type: "block", ID: outbox.Number(int64(i + 1))}
		c.entities[key] = &entity{key: key, flying: true}
		c.putOffs.add(key)
	}
	c.wantsPutOff(time.Time{})
	return len(c.putOffs.keys)
}
