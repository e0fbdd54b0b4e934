package faults

import (
	"context"
	"errors"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// PartitionBoth names the fault that cuts the leader off from both servers.
const PartitionBoth = "partition-both"

const (
	resetPeriod = 150 * time.Millisecond
	someLatency = 500 * time.Millisecond
)

func networks() []Fault {
	fault := func(name, about string, measure Measure, draw func(*Dice, *Params), inject func(*Injection)) Fault {
		return Fault{Name: name, About: about, Measure: measure, Share: 1, Draw: draw, Inject: inject, Heal: healLinks}
	}
	aimed := func(f Fault) Fault { f.Aimed = true; return f }
	slow := func(d *Dice, p *Params) {
		p.Latency = d.Between(50*time.Millisecond, 3*second)
		p.Jitter = p.Latency / 4
		p.Hold = d.Between(3*second, 6*second)
	}
	return []Fault{
		fault("partition-postgres", "no byte passes between the leader and PostgreSQL, and no connection ends", Takeover, lasts(6*second, 9*second),
			func(i *Injection) { i.Must(i.Member.Postgres.HalfOpen()) }),
		fault("lost-answer", "PostgreSQL's answers to the leader are lost on their way, and then it is away", Takeover, func(d *Dice, p *Params) {
			p.Latency = d.Between(0, 300*time.Millisecond)
			p.Hold = d.Between(500*time.Millisecond, 4*second)
		}, loseAnswer),
		fault("partition-elastic", "no byte passes between the leader and Elasticsearch, and no connection ends", Nothing, lasts(2*second, 6*second),
			func(i *Injection) { i.Must(i.Member.Elastic.HalfOpen()) }),
		fault(PartitionBoth, "no byte passes between the leader and both servers", Takeover, lasts(6*second, 9*second),
			func(i *Injection) { i.Must(errors.Join(i.Member.Postgres.HalfOpen(), i.Member.Elastic.HalfOpen())) }),
		aimed(fault("latency-postgres", "50 ms to 3 s more between an instance and PostgreSQL", Nothing, slow,
			func(i *Injection) { i.delay(i.Member.Postgres) })),
		aimed(fault("latency-elastic", "50 ms to 3 s more between an instance and Elasticsearch", Nothing, slow,
			func(i *Injection) { i.delay(i.Member.Elastic) })),
		fault("reset-mid-bulk", "connections are reset in the middle of bulk requests", Nothing, func(d *Dice, p *Params) {
			p.Bytes = 1 + d.Int64N(6000)
			p.Hold = d.Between(500*time.Millisecond, 2*second)
		}, resetBulks),
	}
}

// delay delays what passes a link. A program that asks for the fault by its name need not say by how much.
func (i *Injection) delay(link *proxy.Link) {
	if i.Latency == 0 {
		i.Latency, i.Jitter = someLatency, someLatency/4
	}
	i.Must(link.Latency(i.Latency, i.Jitter))
}

func healLinks(i *Injection) {
	var err error
	if i.stop != nil {
		err = i.stop()
	}
	i.Must(errors.Join(err, i.Member.Heal()))
}

// loseAnswer lets requests arrive, a lease or a settle among them, and loses what the server
// answers.
func loseAnswer(i *Injection) {
	i.Must(i.Member.Postgres.HalfOpen())
	i.Pause(i.Latency)
	i.At = time.Now()
	i.Must(i.Member.Postgres.Cut())
}

// resetBulks resets one connection after the other until the fault is healed.
func resetBulks(i *Injection) {
	i.Must(i.Member.Elastic.ResetAfter(i.Bytes))
	var err error
	stop := rig.During(i.Ctx, func(ctx context.Context) {
		for err == nil && rig.Sleep(ctx, resetPeriod) == nil {
			err = i.Member.Elastic.ResetAfter(i.Bytes)
		}
	})
	i.stop = func() error {
		stop()
		return err
	}
}
