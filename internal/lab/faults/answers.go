package faults

import (
	"context"
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// Throttle429 names the fault of an Elasticsearch that is too busy.
const Throttle429 = "throttle-429"

func answers() []Fault {
	often := func(d *Dice, p *Params) {
		p.Every = 1 + d.IntN(3)
		p.Variant = d.IntN(3)
		p.Hold = d.Between(500*time.Millisecond, 3*second)
	}
	return []Fault{
		corrupt(Throttle429, "Elasticsearch refuses requests and documents with 429", often,
			proxy.Fault{Kind: proxy.TooMany}, proxy.Fault{Kind: proxy.TooMany, RetryAfter: second}, proxy.Fault{Kind: proxy.TooManyItems, Items: 4}),
		corrupt("too-large-413", "requests above a few KB are refused with 413", func(d *Dice, p *Params) {
			p.Bytes = 2000 + d.Int64N(6000)
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
// that has met no request is skipped.
func corrupt(name, about string, draw func(*Dice, *Params), forms ...proxy.Fault) Fault {
	form := func(i *Injection) proxy.Fault {
		f := forms[i.Variant%len(forms)]
		f.Every, f.Seed, f.Bytes = i.Every, i.Seed, i.Bytes
		return f
	}
	return Fault{
		Name: name, About: about, Share: 1, Draw: draw,
		Inject: func(_ context.Context, i *Injection) error {
			f := form(i)
			i.hits = i.corrupted(f.Kind)
			for _, m := range i.Members() {
				if err := m.Tap.Inject(f); err != nil {
					return err
				}
			}
			return nil
		},
		Observe: func(_ context.Context, i *Injection) error {
			kind := form(i).Kind
			hits := i.corrupted(kind) - i.hits
			i.Note = fmt.Sprintf(", %s × %d", kind, hits)
			if hits == 0 {
				return Skip("no request came that it could have met")
			}
			return nil
		},
		Heal: func(_ context.Context, i *Injection) error { return i.Group.Heal() },
	}
}

// corrupted counts the answers that were corrupted in this way.
func (i *Injection) corrupted(k proxy.Kind) (n int) {
	for _, m := range i.Members() {
		n += m.Tap.Injected()[k]
	}
	return n
}
