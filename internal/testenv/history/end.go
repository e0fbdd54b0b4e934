package history

import (
	"context"
	"fmt"
	"slices"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// End is Elasticsearch and the source table as they are when a run has ended.
type End struct {
	Compared    *reconcile.Report
	Documents   map[string]int64 // version of each document by its id, and by what else [Applied] calls it
	Differences []reconcile.Difference
}

// ReadEnd compares index with search_index. It is about one moment when the outbox is
// drained and nobody writes.
func ReadEnd(ctx context.Context, db reconcile.DB, es *reconcile.Client, index string) (*End, error) {
	return ReadEndOf(ctx, db, es, index, reconcile.SearchIndex)
}

// ReadEndOf is ReadEnd for another source, a query as [reconcile.Visitor] has it.
func ReadEndOf(ctx context.Context, db reconcile.DB, es *reconcile.Client, index, source string) (*End, error) {
	end := &End{Documents: map[string]int64{}}
	var err error
	end.Compared, err = reconcile.Visit(ctx, db, es, index, reconcile.Visitor{
		Source:     source,
		Document:   func(id string, version int64) { end.Documents[id] = version },
		Difference: func(d reconcile.Difference) { end.Differences = append(end.Differences, d) },
	})
	if err != nil {
		return nil, fmt.Errorf("compare %s with its source: %w", index, err)
	}
	return end, nil
}

// Diverged returns the documents that are not what the rows of search_index say, and,
// when the log has the record of that table, not what its last change says. Those whose
// entity's newest event ended failed are returned apart, as unsettled: nobody has
// promised them.
func Diverged(log *Log, end *End) (diverged, unsettled []Finding) {
	var (
		dead   = deadEnds(log)
		source = lastSource(log)
		seen   = map[string]bool{}
	)
	add := func(d reconcile.Difference) {
		if seen[d.ID] {
			return
		}
		seen[d.ID] = true
		f := Finding{Key: KeyOf(d.ID), Version: end.Documents[d.ID], What: d.String()}
		if c := source[f.Key]; c != nil {
			f.Version = c.Version
			f.What += fmt.Sprintf(" (last %s in transaction %d)", c, c.Tx)
		}
		if c := dead[f.Key]; c != nil {
			f.Event, f.Version = c.Event, c.Version
			unsettled = append(unsettled, f)
		} else {
			f.Event = newestEvent(log, f.Key)
			diverged = append(diverged, f)
		}
	}
	for _, d := range end.Differences {
		add(d)
	}
	var keys []outbox.Key
	for k := range source {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	for _, k := range keys {
		c, id := source[k], k.String()
		version, there := end.Documents[id]
		switch {
		case c.Deleted && there:
			add(reconcile.Difference{Kind: reconcile.Extra, ID: id})
		case !c.Deleted && !there:
			add(reconcile.Difference{Kind: reconcile.Missing, ID: id})
		case !c.Deleted && version != c.Version:
			add(reconcile.Difference{Kind: reconcile.Stale, ID: id, Fields: []string{fmt.Sprintf("_version is %d, want %d", version, c.Version)}})
		}
	}
	return diverged, unsettled
}

// String returns the change as it is told.
func (c *SourceChange) String() string {
	if c.Deleted {
		return "deleted after version " + fmt.Sprint(c.Version)
	}
	return "written as version " + fmt.Sprint(c.Version)
}

func lastSource(log *Log) map[outbox.Key]*SourceChange {
	last := map[outbox.Key]*SourceChange{}
	for i := range log.Source {
		last[log.Source[i].Key] = &log.Source[i]
	}
	return last
}

// newestEvent is for the few entities that are found.
func newestEvent(log *Log, key outbox.Key) outbox.ID {
	var newest *Change
	for i := range log.Changes {
		if c := &log.Changes[i]; c.Key == key && (newest == nil || c.Version > newest.Version) {
			newest = c
		}
	}
	if newest == nil {
		return outbox.ID{}
	}
	return newest.Event
}
