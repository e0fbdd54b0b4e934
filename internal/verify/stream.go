package verify

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

const (
	// A page has so many rows, and fewer where their documents are large.
	smallestPage = 50
	largestPage  = 4000
	pageBytes    = 8 << 20
)

// page is a page of rows with what the pipeline would write of them.
type page struct {
	keys   []outbox.Key
	wanted []projections.Wanted
}

// rows looks at all rows in their order. One page is read while the one before is looked up.
func (v *verifier) rows(ctx context.Context, out chan<- looked) error {
	g, ctx := errgroup.WithContext(ctx)
	keys, pages := make(chan []outbox.Key, 1), make(chan page)
	size := make(chan int, 1) // of the next page
	g.Go(func() error {
		defer close(keys)
		return v.readKeys(ctx, size, keys)
	})
	g.Go(func() error {
		defer close(pages)
		for k := range keys {
			w, err := v.Sides.Wanted(ctx, k)
			if err != nil {
				return err
			}
			bytes := 1
			for i := range w {
				bytes += len(w[i].Document)
			}
			select {
			case <-size:
			default:
			}
			size <- min(max(int(int64(pageBytes)*int64(len(k))/int64(bytes)), smallestPage), largestPage)
			if err := give(ctx, pages, page{k, w}); err != nil {
				return err
			}
		}
		return nil
	})
	g.Go(func() error {
		for p := range pages {
			held, err := v.Sides.Held(ctx, p.keys, false)
			if err != nil {
				return err
			}
			if err := give(ctx, out, v.compare(p, held)); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

func (v *verifier) readKeys(ctx context.Context, size <-chan int, out chan<- []outbox.Key) error {
	n, after := smallestPage*10, v.From
	for {
		select {
		case n = <-size:
		default:
		}
		if err := v.room(ctx, n); err != nil {
			return err
		}
		keys, err := v.Sides.Entities(ctx, after, n)
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := give(ctx, out, keys); err != nil {
			return err
		}
		after = keys[len(keys)-1]
	}
}

// compare finds the suspects of a page.
func (v *verifier) compare(p page, held []projections.Held) looked {
	l := looked{last: p.keys[len(p.keys)-1], seen: int64(len(p.keys)), rows: int64(len(p.keys))}
	of := group(held)
	for i, w := range p.wanted {
		k := p.keys[i]
		here := of[k]
		if judge(w, here, v.byVersion) != Equal || w.Problem != "" {
			l.suspects = append(l.suspects, k)
		} else if here != nil {
			l.matched++
		}
	}
	return l
}

func group(held []projections.Held) map[outbox.Key]*projections.Held {
	of := make(map[outbox.Key]*projections.Held, len(held))
	for i := range held {
		of[held[i].Key] = &held[i]
	}
	return of
}

// documents looks for documents without a row.
func (v *verifier) documents(ctx context.Context, out chan<- looked) error {
	return v.Sides.Every(ctx, func(held []projections.Held) error {
		if err := v.room(ctx, len(held)); err != nil {
			return err
		}
		l := looked{seen: int64(len(held))}
		keys := make([]outbox.Key, 0, len(held))
		for _, h := range held {
			switch {
			case h.Key.ID.IsZero(), h.Routed != "":
				l.strangers = append(l.strangers, stranger(h))
			default:
				keys = append(keys, h.Key)
			}
		}
		known, err := v.Sides.Known(ctx, keys)
		if err != nil {
			return err
		}
		for i, yes := range known {
			if !yes {
				l.suspects = append(l.suspects, keys[i])
			}
		}
		return give(ctx, out, l)
	})
}
