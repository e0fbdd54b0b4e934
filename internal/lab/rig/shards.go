package rig

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/samuelhu324-dev/weft/internal/postgres"
)

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

// At returns the group of a shard: its place, and the members of g.
func (g *Group) At(shard *Place) *Group {
	return &Group{Place: shard, Fleet: g.Fleet, Recorder: g.Recorder, whole: g.own()}
}

// own returns the group that has the members.
func (g *Group) own() *Group {
	if g.whole != nil {
		return g.whole
	}
	return g
}

// Shards are the groups of instances that share the work, one for each shard; a single group
// where there are no shards.
type Shards []*Group

// Leaders reads who leads each shard.
func (s Shards) Leaders(ctx context.Context) ([]Leadership, error) {
	leaders := make([]Leadership, len(s))
	for n, g := range s {
		var err error
		if leaders[n], err = g.Leader(ctx); err != nil {
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
	if most-fewest > 1 {
		return fmt.Errorf("one instance leads %d shards, and another %d", most, fewest)
	}
	return nil
}
