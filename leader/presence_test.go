package leader

import (
	"testing"
	"time"
)

// process is one that announces itself as instance b.
type process struct {
	t    *testing.T
	site *site
	Instance
	last time.Duration
}

func (s *site) process(t *testing.T, host string, pid int) *process {
	return &process{t: t, site: s, Instance: Instance{Group: testGroup, Name: "b", Role: RoleStandby, Host: host, PID: pid, Uptime: time.Second}}
}

// announce announces the process once, and wants it to see twin: another process, or nil.
func (p *process) announce(twin *process) {
	p.t.Helper()
	p.Uptime += time.Minute + 123456789*time.Nanosecond // more than passes in fact: the machine may stand still
	got, err := Announce(p.t.Context(), p.site.pool, p.Instance, p.last)
	if err != nil {
		p.t.Fatal(err)
	}
	p.last = p.Uptime
	switch {
	case twin == nil && got != nil:
		p.t.Errorf("pid %d on %s sees %v, want nobody", p.PID, p.Host, got)
	case twin != nil && (got == nil || got.Host != twin.Host || got.PID != twin.PID || got.StartedAt.IsZero()):
		p.t.Errorf("pid %d on %s sees %v, want pid %d on %s", p.PID, p.Host, got, twin.PID, twin.Host)
	}
}

// Two processes under one name see each other from the second announcement of either on, also where a container
// gives both the same host name and process id.
func TestProcessesUnderOneNameSeeEachOther(t *testing.T) {
	t.Parallel()
	for name, pid := range map[string]int{"OtherProcess": 12, "SameNumbers": 11} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			old, young := s.process(t, "h", 11), s.process(t, "h", pid)
			old.Uptime = time.Hour
			old.announce(nil)
			young.announce(nil)
			for range 3 {
				old.announce(young)
				young.announce(old)
			}
			young.announce(old) // twice in a row
			list, err := Instances(t.Context(), s.pool, testGroup)
			if err != nil || len(list) != 1 || list[0].Twin == nil || list[0].Twin.PID != old.PID || list[0].PID != young.PID {
				t.Errorf("instances: got %+v, %v, want one with its twin", list, err)
			}
			s.exec(t, `update weft_instance set twin = twin || '{"seen_at": "2000-01-01T00:00:00Z"}'`)
			young.announce(nil) // the other one has been gone for a while
		})
	}
}

// A server that crashes, or is taken over by another one, may have lost the latest announcement: the one before it is no
// twin's.
func TestAnnouncementThatTheServerHasLostIsNoTwin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.process(t, "h", 11)
	p.announce(nil)
	s.exec(t, "create table kept as select * from weft_instance; update kept set started_at = started_at - interval '62.3 s', seen_at = seen_at - interval '62.3 s'")
	p.announce(nil)
	s.exec(t, "update weft_instance i set started_at = k.started_at, seen_at = k.seen_at from kept k")
	p.announce(nil)
	p.announce(nil)
}

// A process that is about to stop leaves the name to the other one, and does not name itself as that.
func TestProcessThatStopsIsNotItsOwnTwin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stays, stops := s.process(t, "h", 11), s.process(t, "h", 12)
	stays.Uptime = time.Hour
	stays.announce(nil)
	stops.announce(nil)
	stays.announce(stops)
	stops.Role = RoleDraining
	stops.announce(nil)
}

func TestInstancesAreReadOnTheSchemaBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.process(t, "h", 11).announce(nil)
	s.exec(t, "alter table weft_instance drop column twin")
	if list, err := Instances(t.Context(), s.pool, testGroup); err != nil || len(list) != 1 || list[0].Twin != nil {
		t.Errorf("got %+v, %v, want one instance without a twin", list, err)
	}
}

// A successor is no twin: not after a crash, whose row is still fresh, and not beside a process that is about to stop.
func TestSuccessorIsNoTwin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	crashed, next, last := s.process(t, "h", 11), s.process(t, "h", 12), s.process(t, "h", 13)
	crashed.announce(nil)
	crashed.announce(nil)
	next.announce(nil)
	next.announce(nil)
	next.Role = RoleDraining
	next.announce(nil)
	last.announce(nil)
	next.announce(nil)
	last.announce(nil)
	next.Role = RoleDisconnected
	next.announce(nil)
	last.announce(nil)
	if err := Withdraw(t.Context(), s.pool, next.Instance); err != nil {
		t.Fatal(err)
	}
	list, err := Instances(t.Context(), s.pool, testGroup)
	if err != nil || len(list) != 1 || list[0].PID != last.PID {
		t.Errorf("instances: got %+v, %v, want the successor alone", list, err)
	}
}

// The database clock may step back: an announcement from before counts no longer than a live instance needs to
// announce itself again.
func TestSeenWithin(t *testing.T) {
	t.Parallel()
	for ago, want := range map[time.Duration]bool{
		0: true, 5 * time.Second: true, 6 * time.Second: false, -AnnounceEvery: true, -AnnounceEvery - 1: false, -time.Hour: false,
	} {
		if got := (Instance{SeenAgo: ago}).SeenWithin(5 * time.Second); got != want {
			t.Errorf("seen %v ago: got %v, want %v", ago, got, want)
		}
	}
}
