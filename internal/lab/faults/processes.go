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
const heldTimeout = 20 * time.Second

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
			Inject: func(i *Injection) {
				args := []string{"resign", "--by", "weftlab chaos", "--why", Resign}
				if i.Shard != "" {
					args = append(args, "--shard", i.Shard)
				}
				i.Must(i.Fleet.Run(i.Ctx, args...))
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

func sends(sig syscall.Signal) func(*Injection) {
	return func(i *Injection) {
		i.At = rig.Try(i.Signal(sig)).Must(i)
	}
}

// terminate sends SIGTERM, which must end in exit code 0.
func terminate(i *Injection) {
	sends(syscall.SIGTERM)(i)
	if i.Member != nil {
		i.Must(i.Member.Instance().AwaitEnd(i.Ctx))
		i.endedWell(i.Member.Instance())
	}
}

// endedWell notes an exit status other than 0 after SIGTERM.
func (i *Injection) endedWell(instance *rig.Instance) {
	if instance.Err() != nil {
		i.Findings = append(i.Findings, "after SIGTERM: "+instance.EndedError().Error())
	}
}

// startAgain is the supervisor. A program that measures the standby heals when that one leads.
func startAgain(i *Injection) {
	i.Must(i.Member.Instance().AwaitEnd(i.Ctx))
	i.Must(i.Supervise(i.Ctx))
}

func knowsResign(i *Injection) {
	if _, err := i.Fleet.Output(i.Ctx, "resign", "--help"); err != nil {
		i.Must(Never("this weft has no command resign"))
	}
}

// freeze sends SIGSTOP. In variant 1 a bulk request of the leader is on its way all the time
// and arrives when the successor has written.
func freeze(i *Injection) {
	if i.Variant == 1 {
		i.Member.Tap.Hold()
		_ = i.Member.AwaitHeld(i.Ctx, heldTimeout)
		i.Note = fmt.Sprintf(", %d requests late", i.Member.Tap.Held())
	}
	sends(syscall.SIGSTOP)(i)
}

func thaw(i *Injection) {
	if i.Variant == 1 {
		defer i.Member.Tap.Release()
	}
	if !i.Member.Instance().HasEnded() {
		rig.Try(i.Signal(syscall.SIGCONT)).Must(i)
	}
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
func endSessions(kind string) func(*Injection) {
	return func(i *Injection) {
		pattern := "weft/" + i.Place.Group + "/" + i.Member.Name + "/" + kind
		var n int
		i.Must(i.Row(i.Ctx, "end sessions", `
select count(*) from (select pg_terminate_backend(pid) from pg_stat_activity where application_name like $1 and datname = current_database()) t`,
			pattern).Scan(&n))
		if n == 0 {
			i.Must(Skip("no session is named " + pattern))
		}
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
			Available: shared, Inject: terminate, Observe: func(i *Injection) { i.even(i.Member) }, Heal: startAgain,
		},
		{
			Name: InstanceMore, About: "another instance comes, leads its share of the shards, and stops again",
			Share: 2, Where: Shards, Draw: lasts(6*second, 10*second),
			Available: shared, Inject: join, Observe: func(i *Injection) { i.even(nil) }, Heal: leave,
		},
	}
}

func shared(i *Injection) {
	if len(i.Shards) == 0 || len(i.Members()) < 2 {
		i.Must(Never("instances share no shards"))
	}
}

// join starts an instance with the next name.
func join(i *Injection) {
	name := string(rune('a' + len(i.Members())))
	i.joined = rig.Try(i.Launch(i.Ctx, name)).Must(i)
	i.Note = ", " + name
	i.Must(i.joined.Instance().Ready(i.Ctx))
}

func leave(i *Injection) {
	if i.joined != nil {
		i.end(i.joined)
		i.endedWell(i.joined.Instance())
		i.Must(i.Leave(i.joined))
	}
}

// even waits until all members but one lead all shards, each its share.
func (i *Injection) even(but *rig.Member) {
	var names []string
	for _, m := range i.Members() {
		if m != but {
			names = append(names, m.Name)
		}
	}
	i.Must(rig.Await(i.Ctx, evenTimeout, evenPoll, "even shares", func(ctx context.Context) error { return i.Shards.Even(ctx, names...) }))
}
