package schedule

import "github.com/samuelhu324-dev/weft/outbox"

// Memory returns how many things the scheduler remembers.
func (s *Scheduler) Memory() int {
	c := &s.c
	rows := 0
	for _, e := range c.entities {
		rows += len(e.rows) + len(e.leased)
	}
	return rows + len(c.entities) + len(c.ready) + len(c.due) + len(c.again) + len(c.barriers) + len(c.toLookUp) +
		len(c.putOffs) + len(c.putOff) + len(s.apart) + len(s.waiting) + len(s.suspects) + len(s.gate.faulted) + len(s.gate.finals)
}

// QueuePutOffs queues the put-offs of n entities with blocked rows, and returns how many it keeps.
func QueuePutOffs(n int) int {
	c := newCandidates(false)
	for i := range n {
		c.barriers[outbox.Key{Type: "block", ID: outbox.Number(int64(i + 1))}] = &barrier{blocked: 1}
	}
	c.wantPutOffs()
	return len(c.putOffs)
}
