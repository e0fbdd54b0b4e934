package schedule

// Memory returns how many things the scheduler remembers.
func (s *Scheduler) Memory() int {
	c := &s.c
	return len(c.entities) + len(c.ready) + len(c.due) + len(c.again) + len(c.barriers) + len(c.lookups) +
		len(c.putOffs) + len(c.putOff) + len(s.apart) + len(s.waiting) + len(s.suspects) + len(s.gate.faulted) + len(s.gate.finals)
}
