package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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

// Names of faults of Elasticsearch's answers.
const (
	Throttle429 = "throttle-429"
	TooLarge413 = "too-large-413"
)

const (
	answerWait   = 10 * time.Second // for a request that a fault meets, beyond its time
	answerPeriod = 50 * time.Millisecond
)

func answers() []Fault {
	often := func(d *Dice, p *Params) {
		p.Every = 1 + d.IntN(3)
		p.Variant = d.IntN(3)
		p.Hold = d.Between(500*time.Millisecond, 3*second)
	}
	return []Fault{
		corrupt(Throttle429, "Elasticsearch refuses requests and documents with 429", often,
			proxy.Fault{Kind: proxy.TooMany}, proxy.Fault{Kind: proxy.TooMany, RetryAfter: second}, proxy.Fault{Kind: proxy.TooManyItems, Items: 4}),
		corrupt(TooLarge413, "requests of several documents, above 1 KB at most, are refused with 413", func(d *Dice, p *Params) {
			p.Bytes = 200 + d.Int64N(800) // two documents are often more, also where events come slowly
			p.Hold = d.Between(second, 3*second)
		}, proxy.Fault{Kind: proxy.TooLarge}),
		corrupt("truncated-bulk", "answers to bulk requests end in their middle", often, proxy.Fault{Kind: proxy.Truncated}),
		corrupt("garbled-bulk", "answers to bulk requests are no JSON, lack items or name others", often,
			proxy.Fault{Kind: proxy.Garbled}, proxy.Fault{Kind: proxy.MissingItems}, proxy.Fault{Kind: proxy.SwappedIDs}),
	}
}

func full() []Fault {
	return []Fault{corrupt("disk-full", "Elasticsearch refuses writes because its disk is full", func(d *Dice, p *Params) {
		p.Variant = d.IntN(2)
		p.Hold = d.Between(second, 3*second)
	}, proxy.Fault{Kind: proxy.DiskFull}, proxy.Fault{Kind: proxy.DiskFullItems})}
}

// corrupt makes the taps of all members answer falsely, in the form of the variant. A fault
// lasts until it has met a request, or is skipped.
func corrupt(name, about string, draw func(*Dice, *Params), forms ...proxy.Fault) Fault {
	form := func(i *Injection) proxy.Fault {
		f := forms[i.Variant%len(forms)]
		f.Every, f.Seed, f.Bytes = i.Every, i.Seed, i.Bytes
		return f
	}
	return Fault{
		Name: name, About: about, Share: 1, Draw: draw,
		Inject: func(i *Injection) {
			f := form(i)
			i.hits = i.corrupted(f.Kind)
			for _, m := range i.Members() {
				m.Tap.Inject(f)
			}
		},
		Observe: func(i *Injection) {
			kind, none := form(i).Kind, Skip("no request came that it could have met")
			err := rig.Await(i.Ctx, answerWait, answerPeriod, "request", func(context.Context) error {
				hits := i.corrupted(kind) - i.hits
				i.Note = fmt.Sprintf(", %s × %d", kind, hits)
				if hits == 0 {
					return none
				}
				return nil
			})
			if errors.Is(err, none) {
				err = none
			}
			i.Must(err)
		},
		Heal: func(i *Injection) { i.Must(i.Group.Heal()) },
	}
}

// corrupted counts the answers that were corrupted in this way.
func (i *Injection) corrupted(k proxy.Kind) (n int) {
	for _, m := range i.Members() {
		n += m.Tap.Injected()[k]
	}
	return n
}

// Names of faults of the index.
const (
	WriteBlock   = "write-block"
	AliasRemoved = "alias-removed"
)

func indices() []Fault {
	return []Fault{
		// What weft sends meanwhile ends in failed, until its breaker opens: it must be visible.
		onIndex(WriteBlock, "the index is blocked for writes", func(i *Injection, broken bool) {
			var value any
			if broken {
				value = true
			}
			i.set("index.blocks.write", value)
		}),
		onIndex(AliasRemoved, "the alias of the index is removed and put back", func(i *Injection, broken bool) {
			action := "add"
			if broken {
				action = "remove"
			}
			i.Must(i.Ask(i.Ctx, action+" the alias of "+i.index, http.MethodPost, "/_aliases", map[string]any{"actions": []any{
				map[string]any{action: map[string]any{"index": i.index, "alias": i.Index}},
			}}, nil))
		}),
	}
}

// onIndex changes the index behind the alias, and changes it back.
func onIndex(name, about string, set func(i *Injection, broken bool)) Fault {
	return Fault{
		Name: name, About: about, Share: 1, Draw: lasts(500*time.Millisecond, 2500*time.Millisecond),
		Inject: func(i *Injection) {
			i.lookUpIndex()
			set(i, true)
		},
		Heal: func(i *Injection) {
			if i.index != "" {
				set(i, false)
			}
		},
	}
}

func (i *Injection) lookUpIndex() {
	i.index = rig.Try(i.InUse(i.Ctx)).Must(i)
}

// set changes a setting of the index; nil takes it away.
func (i *Injection) set(name string, value any) {
	i.Must(i.Ask(i.Ctx, "set "+name+" of "+i.index, http.MethodPut, "/"+url.PathEscape(i.index)+"/_settings", map[string]any{name: value}, nil))
}
