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
				i.Must(m.Tap.Inject(f))
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
