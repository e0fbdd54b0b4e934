package verify

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	// A page has so many rows, and fewer where their documents are large or take long.
	smallestPage = 50
	largestPage  = 4000
	pageBytes    = 2 << 20
	pageTime     = 2 * time.Second
	fewAtOnce    = 25 // rows at a time of a page that takes longer than a call may, or is too large
	// pagesAhead is how many pages are looked up while the one before them is told. Together they
	// keep both servers busy, and a search of one shard takes one core of Elasticsearch.
	pagesAhead = 2
)

// rows looks at all rows in their order. Several pages are looked up at once, and told in turn.
func (v *verifier) rows(ctx context.Context, out chan<- looked) error {
	g, ctx := errgroup.WithContext(ctx)
	turns := make(chan chan looked, pagesAhead)
	var size atomic.Int64 // of the next page
	size.Store(smallestPage * 10)
	g.Go(func() error {
		for turn := range turns {
			select {
			case l := <-turn:
				if err := give(ctx, out, l); err != nil {
					return err
				}
			case <-ctx.Done():
				return errEnded
			}
		}
		return nil
	})
	g.Go(func() error {
		defer close(turns)
		return v.readKeys(ctx, &size, func(keys []outbox.Key) error {
			turn := make(chan looked, 1)
			if err := give(ctx, turns, turn); err != nil {
				return err
			}
			g.Go(func() error {
				began := time.Now()
				l, bytes, err := v.page(ctx, keys)
				if err == nil {
					share := min(float64(pageBytes)/float64(bytes), float64(pageTime)/float64(time.Since(began)))
					size.Store(min(max(int64(share*float64(len(keys))), smallestPage), largestPage))
					turn <- l
				}
				return err
			})
			return nil
		})
	})
	return g.Wait()
}

func (v *verifier) readKeys(ctx context.Context, size *atomic.Int64, page func([]outbox.Key) error) error {
	for after := v.From; ; {
		keys, err := v.Sides.Entities(ctx, after, int(size.Load()))
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := v.room(ctx, len(keys)); err != nil {
			return err
		}
		if err := page(keys); err != nil {
			return err
		}
		after = keys[len(keys)-1]
	}
}

// page looks up both sides of a page of rows, and returns how many bytes the documents have.
func (v *verifier) page(ctx context.Context, keys []outbox.Key) (l looked, bytes int, err error) {
	bytes = 1
	err = v.inParts(len(keys), func(from, to int) error {
		part, n, err := v.part(ctx, keys[from:to])
		if err != nil {
			return err
		}
		l.last, l.seen, l.matched, bytes = part.last, l.seen+part.seen, l.matched+part.matched, bytes+n
		l.suspects = append(l.suspects, part.suspects...)
		return nil
	})
	l.found.Rows, l.found.Equal, l.found.Documents = l.seen, l.seen-int64(len(l.suspects)), l.matched
	return l, bytes, err
}

// inParts has the items from 0 to n looked at, all at once. Where they take longer than a call may, or are larger than what
// is held at once, they are looked at a few at a time, and those of one page after the other. A server that is frozen costs
// two deadlines.
func (v *verifier) inParts(n int, look func(from, to int) error) error {
	err := look(0, n)
	if !fewer(err, n) {
		return err
	}
	v.few.Lock()
	defer v.few.Unlock()
	for from, size := 0, fewAtOnce; from < n; {
		to := min(from+size, n)
		switch err := look(from, to); {
		case fewer(err, to-from):
			size = (to - from) / 2
		case err != nil:
			return err
		default:
			from = to
		}
	}
	return nil
}

// fewer reports whether a look at n items that has ended with err may go well with fewer of them.
func fewer(err error, n int) bool {
	return n > fewAtOnce && outbox.Slow(err) || n > 1 && errors.Is(err, elastic.ErrOverBudget)
}

// part looks up both sides of rows, all at once.
func (v *verifier) part(ctx context.Context, keys []outbox.Key) (l looked, bytes int, err error) {
	var wanted []projections.Wanted
	var held []projections.Held
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		wanted, err = v.wanted(ctx, keys, func(int) bool { return true })
		return err
	})
	g.Go(func() (err error) {
		held, err = v.held(ctx, keys, false)
		return err
	})
	if err := g.Wait(); err != nil {
		return l, 0, err
	}
	for i := range wanted {
		bytes += len(wanted[i].Document)
	}
	return v.compare(keys, wanted, held), bytes, nil
}

// wanted returns what the pipeline would write of entities. Of those that have a row it says also whether it
// has a version yet.
func (v *verifier) wanted(ctx context.Context, keys []outbox.Key, row func(i int) bool) ([]projections.Wanted, error) {
	out, err := v.Sides.Wanted(ctx, keys)
	if err != nil {
		return nil, err
	}
	var left []outbox.Key // out by the query
	var at []int
	for i, w := range out {
		if row(i) && !w.Found && !w.Elsewhere && w.Version == 0 && w.Problem == "" {
			left, at = append(left, keys[i]), append(at, i)
		}
	}
	unnumbered, err := v.Events.Unnumbered(ctx, left)
	for j, i := range at {
		if err == nil {
			out[i].Unnumbered = unnumbered[j]
		}
	}
	return out, err
}

// compare finds the suspects of a page.
func (v *verifier) compare(keys []outbox.Key, wanted []projections.Wanted, held []projections.Held) looked {
	l := looked{last: keys[len(keys)-1], seen: int64(len(keys))}
	of := group(held)
	for i, w := range wanted {
		k := keys[i]
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

// documents looks for documents without a row. One page is read while the one before is looked up.
func (v *verifier) documents(ctx context.Context, out chan<- looked) error {
	g, ctx := errgroup.WithContext(ctx)
	type page struct {
		held []projections.Held
		next string
	}
	pages := make(chan page, 1)
	g.Go(func() error {
		defer close(pages)
		for at := v.report.At; ; {
			var p page
			err := v.await(ctx, 1, func() (err error) {
				p.held, p.next, err = v.Sides.Documents(ctx, at)
				return err
			})
			if err != nil || p.next == "" {
				return err
			}
			if err := v.room(ctx, len(p.held)); err != nil {
				return err
			}
			if err := give(ctx, pages, p); err != nil {
				return err
			}
			at = p.next
		}
	})
	g.Go(func() error {
		for p := range pages {
			l, err := v.rowless(ctx, p.held)
			if err != nil {
				return err
			}
			l.at = p.next
			if err := give(ctx, out, l); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// rowless finds those of a page of documents that have no row.
func (v *verifier) rowless(ctx context.Context, held []projections.Held) (looked, error) {
	l := looked{seen: int64(len(held))}
	keys := make([]outbox.Key, 0, len(held))
	for _, h := range held {
		switch {
		case h.Key.ID.IsZero(), h.Stray != "":
			l.found.Documents++
			l.found.add(stranger(h))
		default:
			keys = append(keys, h.Key)
		}
	}
	known, err := v.Sides.Known(ctx, keys)
	if err != nil {
		return l, err
	}
	var rowless []outbox.Key
	for i, yes := range known {
		if !yes {
			rowless = append(rowless, keys[i])
		}
	}
	own, err := v.Events.Owns(ctx, rowless)
	if err != nil {
		return l, err
	}
	for i, yes := range own {
		if yes {
			l.suspects = append(l.suspects, rowless[i])
		}
	}
	return l, nil
}
