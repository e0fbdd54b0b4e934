package faults

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Names of faults that programs ask for.
const (
	SIGKILL = "sigkill"
	SIGTERM = "sigterm"
	SIGSTOP = "sigstop"
	Resign  = "resign"
)

// heldTimeout bounds the wait for a request that is held back.
const heldTimeout = 2 * time.Second

func processes() []Fault {
	return []Fault{
		{
			Name: SIGKILL, About: "an instance is killed, and started again by its supervisor",
			Measure: Takeover, Share: 3, Aimed: true,
			Inject: sends(syscall.SIGKILL), Heal: startAgain,
		},
		{
			Name: SIGTERM, About: "an instance is asked to stop, and started again",
			Measure: Handover, Share: 2, Aimed: true,
			Inject: terminate, Heal: startAgain,
		},
		{
			Name: Resign, About: "the leader is asked to hand over (weft resign)",
			Measure: Handover, Share: 2, OneShard: true, Available: knowsResign,
			Inject: func(ctx context.Context, i *Injection) error {
				args := []string{"resign", "--by", "weftlab chaos", "--why", Resign}
				if i.Shard != "" {
					args = append(args, "--shard", i.Shard)
				}
				return i.Fleet.Run(ctx, args...)
			},
		},
		{
			Name: SIGSTOP, About: "the leader is frozen for longer than the server waits for a silent session",
			Measure: Takeover, Share: 1,
			Draw: func(d *Dice, p *Params) { // longer than idle_session_timeout, and than the successor needs
				p.Hold = d.Between(6500*time.Millisecond, 9*second)
				p.Variant = d.IntN(2) // 1: with a bulk request that arrives afterwards
			},
			Inject: freeze, Heal: thaw,
		},
	}
}

func sends(sig syscall.Signal) func(context.Context, *Injection) error {
	return func(_ context.Context, i *Injection) (err error) {
		i.At, err = i.Process.Signal(sig)
		return err
	}
}

// terminate sends SIGTERM, which must end in exit code 0.
func terminate(ctx context.Context, i *Injection) error {
	if err := sends(syscall.SIGTERM)(ctx, i); err != nil || i.Member == nil {
		return err
	}
	instance := i.Member.Instance()
	if err := instance.AwaitEnd(ctx); err != nil {
		return err
	}
	i.endedWell(instance)
	return nil
}

// endedWell notes an exit status other than 0 after SIGTERM.
func (i *Injection) endedWell(instance *rig.Instance) {
	if instance.Err() != nil {
		i.Findings = append(i.Findings, "after SIGTERM: "+instance.Ending().Error())
	}
}

// startAgain is the supervisor. A program that measures the standby heals when that one leads.
func startAgain(ctx context.Context, i *Injection) error {
	if err := i.Member.Instance().AwaitEnd(ctx); err != nil {
		return err
	}
	return i.Supervise(ctx)
}

func knowsResign(ctx context.Context, i *Injection) error {
	if _, err := i.Fleet.Output(ctx, "resign", "--help"); err != nil {
		return Never("this weft has no command resign")
	}
	return nil
}

// freeze sends SIGSTOP. In variant 1 a bulk request of the leader is on its way all the time
// and arrives when the successor has written.
func freeze(ctx context.Context, i *Injection) error {
	if i.Variant == 1 {
		i.Member.Tap.Hold()
		_ = i.Member.AwaitHeld(ctx, heldTimeout)
		i.Note = fmt.Sprintf(", %d requests late", i.Member.Tap.Held())
	}
	return sends(syscall.SIGSTOP)(ctx, i)
}

func thaw(_ context.Context, i *Injection) error {
	if i.Variant == 1 {
		defer i.Member.Tap.Release()
	}
	if i.Member.Instance().HasEnded() {
		return nil
	}
	_, err := i.Process.Signal(syscall.SIGCONT)
	return err
}

// TerminateLock names the fault that ends the leader's lock session.
const TerminateLock = "terminate-lock"

func sessions() []Fault {
	return []Fault{
		{
			Name: TerminateLock, About: "the server ends the leader's lock session",
			Measure: Takeover, Share: 2, OneShard: true, Inject: endSessions("lock"),
		},
		{
			Name: "terminate-pool", About: "the server ends all of an instance's sessions but the lock session",
			Share: 1, Aimed: true, Inject: endSessions("work"),
		},
		{
			Name: "terminate-all", About: "the server ends all sessions of the leader",
			Measure: Takeover, Share: 1, OneShard: true, Inject: endSessions("%"),
		},
	}
}

// endSessions is pg_terminate_backend of a member's sessions of this kind.
func endSessions(kind string) func(context.Context, *Injection) error {
	return func(ctx context.Context, i *Injection) error {
		pattern := "weft/" + i.Group.Group + "/" + i.Member.Name + "/" + kind
		var n int
		err := i.Row(ctx, "end sessions", `
select count(*) from (select pg_terminate_backend(pid) from pg_stat_activity where application_name like $1 and datname = current_database()) t`,
			pattern).Scan(&n)
		if err == nil && n == 0 {
			err = Skip("no session is named " + pattern)
		}
		return err
	}
}

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
