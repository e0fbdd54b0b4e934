package faults

import (
	"context"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Names of the faults by which instances come and go.
const (
	InstanceAway = "instance-away"
	InstanceMore = "instance-more"
)

const (
	// evenTimeout bounds the hand-overs that make shares even, one after the other.
	evenTimeout = time.Minute
	evenPoll    = 100 * time.Millisecond
)

func instances() []Fault {
	return []Fault{
		{
			Name: InstanceAway, About: "an instance stops and stays away until the others have shared its shards out",
			Measure: Handover, Share: 2, Aimed: true, Where: Shards, Draw: lasts(6*second, 10*second),
			Available: shared, Inject: terminate, Observe: evenWithoutIt, Heal: startAgain,
		},
		{
			Name: InstanceMore, About: "another instance comes, leads its share of the shards, and stops again",
			Share: 2, Where: Shards, Draw: lasts(6*second, 10*second),
			Available: shared, Inject: join, Observe: evenWithAll, Heal: leave,
		},
	}
}

func shared(_ context.Context, i *Injection) error {
	if len(i.Shards) == 0 || len(i.Members()) < 2 {
		return Never("instances share no shards")
	}
	return nil
}

// join starts an instance with the next name.
func join(ctx context.Context, i *Injection) (err error) {
	name := string(rune('a' + len(i.Members())))
	if i.joined, err = i.Launch(ctx, name); err != nil {
		return err
	}
	i.Note = ", " + name
	return i.joined.Instance().Ready(ctx)
}

// leave stops the instance that has joined.
func leave(ctx context.Context, i *Injection) error {
	if i.joined == nil {
		return nil
	}
	if err := end(ctx, i.joined); err != nil {
		return err
	}
	i.endedWell(i.joined.Instance())
	return i.Leave(i.joined)
}

func evenWithoutIt(ctx context.Context, i *Injection) error { return i.even(ctx, i.Member) }

func evenWithAll(ctx context.Context, i *Injection) error { return i.even(ctx, nil) }

// even waits until all members but one lead all shards, each its share.
func (i *Injection) even(ctx context.Context, but *rig.Member) error {
	var names []string
	for _, m := range i.Members() {
		if m != but {
			names = append(names, m.Name)
		}
	}
	return rig.Await(ctx, evenTimeout, evenPoll, "even shares", func(ctx context.Context) error { return i.Shards.Even(ctx, names...) })
}
