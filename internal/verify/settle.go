package verify

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

const (
	// lookAgain is the pause between two looks at suspects.
	lookAgain = 300 * time.Millisecond
	// atOnce is how many suspects one look takes, and one repair.
	atOnce = 500
	// mostSuspects is how many may wait; the rows wait behind them.
	mostSuspects = 20_000
)

// suspect is an entity that differed at first sight.
type suspect struct {
	key   outbox.Key
	row   bool // it had one
	page  *pageMark
	until time.Time // it is unsettled then, by v.now
	kind  Kind      // for which an event was written
}

// pageMark counts the suspects that a page still has, and what it has shown so far.
type pageMark struct {
	last  outbox.Key // of a page of rows
	at    string     // behind a page of documents
	open  int
	found Report
}

// settle takes pages until there are no more and every suspect is told: it looks at suspects
// until they are right, wrong, or out of time.
func (v *verifier) settle(ctx context.Context, found <-chan looked) (matched int64, err error) {
	var (
		waiting []suspect
		pages   []*pageMark
	)
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for found != nil || len(waiting) > 0 {
		in := found
		if len(waiting) >= mostSuspects {
			in = nil
		}
		select {
		case <-ctx.Done():
			return matched, context.Cause(ctx)
		case l, ok := <-in:
			if !ok {
				found = nil
				continue
			}
			matched += l.matched
			v.report.Seen += l.seen
			mark := &pageMark{last: l.last, at: l.at, open: len(l.suspects), found: l.found}
			pages = append(pages, mark)
			for _, k := range l.suspects {
				waiting = append(waiting, suspect{key: k, row: l.found.Rows > 0, page: mark, until: v.now().Add(v.Settle)})
			}
		case <-tick.C:
			var still []suspect
			for batch := range slices.Chunk(waiting, atOnce) {
				var broken error // of a repair, which is not tried twice
				err := v.inParts(len(batch), func(from, to int) error {
					if broken != nil {
						return nil
					}
					sight, err := v.look(ctx, batch[from:to])
					if err != nil {
						return err
					}
					left, right, err := v.again(ctx, batch[from:to], sight)
					still, matched, broken = append(still, left...), matched+right, err
					return nil
				})
				if err = errors.Join(err, broken); err != nil {
					return matched, err
				}
			}
			waiting = still
		}
		for len(pages) > 0 && pages[0].open == 0 {
			v.report.include(&pages[0].found)
			if v.report.At = pages[0].at; v.report.At == "" {
				v.report.Last = pages[0].last
			}
			pages = pages[1:]
		}
		if found == nil {
			v.report.Open = int64(len(waiting))
		}
		if v.Progress != nil {
			v.Progress(v.report)
		}
	}
	return matched, nil
}

// again tells suspects by what a look has seen of them. It returns those that it could not tell yet, and
// how many documents turned out to be right.
func (v *verifier) again(ctx context.Context, batch []suspect, sight []sight) (still []suspect, right int64, err error) {
	var orders []outbox.Order
	var mending []suspect
	for i, s := range batch {
		found, at := &s.page.found, sight[i]
		switch {
		case at.failed:
			found.Failed++
		case !at.settled && v.now().After(s.until):
			found.Unsettled++
		case !at.settled:
			still = append(still, s)
			continue
		case at.kind == Equal:
			if s.kind != "" {
				found.Repaired++
			} else if s.row {
				found.Equal++
			}
			if at.here != nil {
				right++
			}
		case s.kind != "": // the repair did not help
		default:
			found.add(v.example(s.key, at))
			if v.Repair != nil && v.remedy(at) == "" {
				s.kind, s.until = at.kind, v.now().Add(v.Settle)
				mending, orders = append(mending, s), append(orders, order(s.key, at))
				continue
			}
		}
		s.page.open--
		if at.here != nil {
			found.Documents++
		}
	}
	if len(orders) > 0 {
		if err := v.Events.Mend(ctx, orders, v.Repair.Actor, v.Repair.Why, detailOf(orders)); err != nil {
			return nil, 0, err
		}
	}
	return append(still, mending...), right, nil
}

// sight is what a look has seen of a suspect.
type sight struct {
	settled bool // nothing was open, and the row stayed the same
	failed  bool // it has a dead letter
	kind    Kind
	wanted  projections.Wanted
	here    *projections.Held
}

// look reads each row, then what is open of it, then the newest state of its document, and
// then the row again. With nothing open after the first reading and the same row at the
// second, the document is the one that the pipeline has left.
func (v *verifier) look(ctx context.Context, batch []suspect) ([]sight, error) {
	keys := make([]outbox.Key, len(batch))
	for i := range batch {
		keys[i] = batch[i].key
	}
	row := func(i int) bool { return batch[i].row }
	silent := v.silent.lasted()
	first, err := v.wanted(ctx, keys, row)
	if err != nil {
		return nil, err
	}
	standing, err := v.Events.Standing(ctx, keys)
	if err != nil {
		return nil, err
	}
	held, err := v.held(ctx, keys, true)
	if err != nil {
		return nil, err
	}
	second, err := v.wanted(ctx, keys, row)
	if err != nil {
		return nil, err
	}
	quiet := v.silent.lasted() == silent // events may have come and gone while the destination was waited for
	of := group(held)
	out := make([]sight, len(batch))
	for i, k := range keys {
		s := &out[i]
		s.failed = standing[i].Failed && !standing[i].Open
		s.settled = quiet && !standing[i].Open && first[i].Found == second[i].Found && first[i].Version == second[i].Version &&
			(first[i].Version > 0 || sameJSON(first[i].Document, second[i].Document))
		s.wanted = second[i]
		s.here = of[k]
		s.kind = judge(s.wanted, s.here, v.byVersion)
		s.failed = s.failed || s.settled && s.wanted.Problem != "" && batch[i].row
	}
	return out, nil
}
