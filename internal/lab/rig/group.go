package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// Group is the members of one leadership group at a place.
type Group struct {
	*Place
	Fleet *Fleet

	// Recorder, when not nil, gives each member proxies of its own to both servers, and gets
	// what passes to Elasticsearch.
	Recorder *proxy.Recorder
	// Pick, when not nil, is told of each start, with the binary that was asked for, and returns
	// the one to start; empty means the fleet's.
	Pick func(m *Member, binary string) string
	// Unexpected, when not nil, is told by Supervise of an instance that nobody has ended.
	Unexpected func(*Instance)

	mu      sync.Mutex
	members []*Member
}

// Member is one name in a group: the process that bears it now, and its proxies.
type Member struct {
	Name string
	*proxy.Proxies
	Env []string // on top of the fleet's and the proxies'

	group *Group
	mu    sync.Mutex
	now   *Instance
}

// NewFleet builds weft in dir, unless binary names one, and returns a fleet that logs there
// and is pointed at nothing yet.
func NewFleet(ctx context.Context, binary, dir string) (f *Fleet, err error) {
	if binary == "" {
		binary, err = Build(ctx, dir, nil)
	} else {
		binary, err = filepath.Abs(binary)
	}
	return &Fleet{Binary: binary, Dir: dir}, err
}

// Launch adds a member and starts its first process; env comes on top of the fleet's.
func (g *Group) Launch(ctx context.Context, name string, env ...string) (m *Member, err error) {
	m = &Member{Name: name, Env: env, group: g}
	if g.Recorder != nil {
		if m.Proxies, err = proxy.NewProxies(name, g.DatabaseURL, g.ElasticURL, g.Recorder); err != nil {
			return nil, err
		}
		m.Env = append([]string{"DATABASE_URL=" + m.DatabaseURL, "ELASTIC_URL=" + m.ElasticURL}, env...)
	}
	if err := m.Start(ctx, ""); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = append(g.members, m)
	return m, nil
}

// LaunchAll starts members of these names and waits until all are ready.
func (g *Group) LaunchAll(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := g.Launch(ctx, name); err != nil {
			return err
		}
	}
	for _, m := range g.Members() {
		if err := m.Instance().Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Leave takes a member whose process has ended out of the group, and ends its proxies.
func (g *Group) Leave(m *Member) error {
	g.mu.Lock()
	g.members = slices.DeleteFunc(g.members, func(other *Member) bool { return other == m })
	g.mu.Unlock()
	return m.Close()
}

// Start gives the member a new process of this binary; empty means the fleet's.
func (m *Member) Start(ctx context.Context, binary string) error {
	if m.group.Pick != nil {
		binary = m.group.Pick(m, binary)
	}
	i, err := m.group.Fleet.StartBinary(ctx, cmp.Or(binary, m.group.Fleet.Binary), m.Name, m.Env...)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = i
	return nil
}

// AwaitHeld waits until the member's proxy holds a bulk request back.
func (m *Member) AwaitHeld(ctx context.Context, bound time.Duration) error {
	return Await(ctx, bound, pollPeriod, "bulk request of "+m.Name, func(context.Context) error {
		return Want(nil, m.Tap.Held() > 0, "none has come")
	})
}

// Instance returns the member's newest process.
func (m *Member) Instance() *Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Members returns the members so far, in the order of their start.
func (g *Group) Members() []*Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.members)
}

// Member returns the one of that name, or nil.
func (g *Group) Member(name string) *Member {
	for _, m := range g.Members() {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Standby returns the first member that is not m, or nil.
func (g *Group) Standby(m *Member) *Member {
	for _, other := range g.Members() {
		if other != m {
			return other
		}
	}
	return nil
}

// LeadingMember returns who leads at a place, the group's own or a shard, and the member of that name.
func (g *Group) LeadingMember(ctx context.Context, at *Place) (*Member, Leadership, error) {
	l, err := at.Leader(ctx)
	if err != nil {
		return nil, l, err
	}
	m := g.Member(l.Instance)
	if m == nil {
		return nil, l, fmt.Errorf("the leader %q is no instance of this run", l.Instance)
	}
	return m, l, nil
}

// Supervise starts again the members whose process has ended, as a supervisor does.
func (g *Group) Supervise(ctx context.Context) error {
	for _, m := range g.Members() {
		i := m.Instance()
		if !i.HasEnded() {
			continue
		}
		if !i.Expected() && g.Unexpected != nil {
			g.Unexpected(i)
		}
		if err := m.Start(ctx, ""); err != nil {
			return err
		}
	}
	return nil
}

// AllReady returns an error unless every member is ready.
func (g *Group) AllReady(ctx context.Context) error {
	for _, m := range g.Members() {
		if err := m.Instance().ReadyNow(ctx); err != nil {
			return fmt.Errorf("%s is not ready: %w", m.Name, err)
		}
	}
	return nil
}

// Heal takes all faults off all proxies.
func (g *Group) Heal() error {
	return errors.Join(Map(g.Members(), func(m *Member) error { return m.Heal() })...)
}

// Stop ends all processes in order, and then the proxies, so that what is under way comes
// into the record. A second call is harmless.
func (g *Group) Stop() error {
	if g.Fleet == nil {
		return nil
	}
	err := g.Fleet.Stop()
	return errors.Join(err, errors.Join(Map(g.Members(), func(m *Member) error { return m.Close() })...))
}

// OpenShard connects to a shard that `weft shards create` has made. The place that it returns is the
// shard's: its schema, its group and its number. It ends with p.
func (p *Place) OpenShard(ctx context.Context, n, conns int) (*Place, error) {
	s := *p
	s.parent, s.shards = nil, nil
	s.Shard, s.Schema = strconv.Itoa(n), fmt.Sprintf("shard_%d", n)
	s.Group = fmt.Sprintf("%s-shard-%d", p.Group, n)
	var err error
	if s.DatabaseURL, err = postgres.InSchema(p.DatabaseURL, s.Schema); err != nil {
		return nil, fmt.Errorf("address of shard %d: %w", n, err)
	}
	if s.Pool, err = OpenPool(ctx, s.DatabaseURL, conns); err != nil {
		return nil, err
	}
	p.shards = append(p.shards, &s)
	return &s, nil
}

// Shards are the places that the instances of a group share: one for each shard, or the group's own where
// there are no shards.
type Shards []*Place

// Leaders reads who leads each shard.
func (s Shards) Leaders(ctx context.Context) ([]Leadership, error) {
	leaders := make([]Leadership, len(s))
	for n, p := range s {
		var err error
		if leaders[n], err = p.Leader(ctx); err != nil {
			return nil, err
		}
	}
	return leaders, nil
}

// Even returns an error unless these instances lead all shards, and none leads two more than another.
func (s Shards) Even(ctx context.Context, names ...string) error {
	leaders, err := s.Leaders(ctx)
	if err != nil {
		return err
	}
	return even(leaders, names)
}

func even(leaders []Leadership, names []string) error {
	if len(names) == 0 {
		return errors.New("no instance is there")
	}
	led := map[string]int{}
	for _, name := range names {
		led[name] = 0
	}
	for n, l := range leaders {
		if _, known := led[l.Instance]; !known || l.Released {
			return fmt.Errorf("shard %d: %v", n, l)
		}
		led[l.Instance]++
	}
	fewest, most := len(leaders), 0
	for _, n := range led {
		fewest, most = min(fewest, n), max(most, n)
	}
	return Want(nil, most-fewest <= 1, "one instance leads %d shards, and another %d", most, fewest)
}
