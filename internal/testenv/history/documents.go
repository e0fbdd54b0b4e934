package history

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// deletesKept is how long Elasticsearch remembers the version of a deleted document
// (index.gc_deletes of the indices that weft creates). It may forget all of them when
// the primary term changes: after a restart, or when a shard moves.
const deletesKept = time.Hour

// forgotten reports whether Elasticsearch may have forgotten the delete d when it
// decided about a.
func forgotten(d, a *Applied) bool {
	return a.PrimaryTerm > d.PrimaryTerm || a.Answered.Sub(d.Sent) > deletesKept
}

// document is what was asked for one document.
type document struct {
	id    string
	items []*Applied // all that reached Elasticsearch, in the order of sending
	wrote []*Applied // those that it confirmed, in its own order
}

// documents groups applied, in the order in which the documents first appear.
func documents(applied []Applied) []*document {
	var out []*document
	byID := map[string]*document{}
	for _, a := range byTime(applied) {
		if !a.Forwarded {
			continue
		}
		id := cmp.Or(a.Document, a.ID)
		d := byID[id]
		if d == nil {
			d = &document{id: id}
			byID[id] = d
			out = append(out, d)
		}
		d.items = append(d.items, a)
		if a.wrote() {
			d.wrote = append(d.wrote, a)
		}
	}
	for _, d := range out {
		slices.SortStableFunc(d.wrote, func(a, b *Applied) int {
			return cmp.Or(cmp.Compare(a.PrimaryTerm, b.PrimaryTerm), cmp.Compare(a.SeqNo, b.SeqNo))
		})
	}
	return out
}

// judge compares each confirmed write with the one before it.
func (d *document) judge(eras eras) (regressions, resurrected []Finding) {
	for i, a := range d.wrote {
		if i == 0 {
			if a.ResultVersion != a.Version {
				regressions = append(regressions, eras.finding(a, "%s written as version %d, asked for was %d", a.Op, a.ResultVersion, a.Version))
			}
			continue
		}
		p := d.wrote[i-1]
		switch {
		case a.Version < p.Version && p.Op == Delete && a.Op == Index:
			resurrected = append(resurrected, eras.finding(a, "index %s", eras.after(p, a)))
		case a.Version < p.Version && p.Op == Delete && forgotten(p, a):
			// A late delete of what was deleted, and is forgotten, changes nothing.
		case a.Version < p.Version:
			regressions = append(regressions, eras.finding(a, "%s %s", a.Op, eras.after(p, a)))
		case a.ResultVersion != a.Version:
			regressions = append(regressions, eras.finding(a, "%s written as version %d, asked for was %d", a.Op, a.ResultVersion, a.Version))
		}
	}
	return regressions, resurrected
}

// regressions returns the writes by which a document went back: that Elasticsearch
// applied after one of a newer version, or under another version than was asked for. In
// its own order, of primary terms and sequence numbers, each offending write is named.
// What is left is put to a model of a register that takes no older version, with the
// times of requests and answers, lost answers and what the documents are at the end: if
// no order of the writes explains all answers, a write was lost or went back unseen.
func regressions(log *Log, docs []*document, end *End) []Finding {
	var found []Finding
	eras := erasOf(log)
	for _, d := range docs {
		back, again := d.judge(eras)
		found = append(found, back...)
		if len(back)+len(again) == 0 {
			found = append(found, d.explain(end)...)
		}
	}
	return found
}

// resurrected returns the writes of older versions that brought a deleted document
// back, and the documents that are there at the end although their row is gone and
// Elasticsearch had confirmed a delete as new as they are.
func resurrected(log *Log, docs []*document, end *End) []Finding {
	var (
		found []Finding
		eras  = erasOf(log)
		extra = map[string]bool{}
		dead  = deadEnds(log)
	)
	if end != nil {
		for _, d := range end.Differences {
			extra[d.ID] = d.Kind == reconcile.Extra
		}
	}
	for _, d := range docs {
		_, again := d.judge(eras)
		found = append(found, again...)
		if len(again) > 0 || !slices.ContainsFunc(d.items, func(a *Applied) bool { return extra[a.ID] && dead[a.key()] == nil }) {
			continue
		}
		version := end.Documents[d.id]
		for _, a := range slices.Backward(d.wrote) {
			if a.Op == Delete && a.Version >= version {
				found = append(found, eras.finding(a, "deleted, and there at the end as version %d, without a row", version))
				break
			}
		}
	}
	return found
}

// eras are the terms of each instance.
type eras map[string][]Term

func erasOf(log *Log) eras {
	e := eras{}
	for _, t := range log.Terms {
		e[t.Instance] = append(e[t.Instance], t)
	}
	return e
}

// epoch returns the newest term that a's instance had begun when a was sent, 0 when
// none is known.
func (e eras) epoch(a *Applied) int64 {
	for _, t := range slices.Backward(e[a.Instance]) {
		if !t.At.After(a.Sent) {
			return t.Epoch
		}
	}
	return 0
}

// after says that a was applied although p was newer.
func (e eras) after(p, a *Applied) string {
	text := fmt.Sprintf("applied after %s of version %d by %q", p.Op, p.Version, p.Instance)
	if now, before := e.epoch(a), e.epoch(p); now > 0 && now < before {
		text += fmt.Sprintf(": epoch %d has written after epoch %d", now, before)
	}
	return text
}

func (e eras) finding(a *Applied, format string, args ...any) Finding {
	where := fmt.Sprintf(" (request %d of %q, term %d, seq_no %d)", a.Request, a.Instance, a.PrimaryTerm, a.SeqNo)
	return Finding{Key: a.key(), Version: a.Version, What: fmt.Sprintf(format, args...) + where}
}

// deadEnds returns the entities whose newest event ended failed.
func deadEnds(log *Log) map[outbox.Key]*Change {
	last, order := lasts(log)
	newest := map[outbox.Key]*Change{}
	for _, id := range order {
		if c := last[id]; newest[c.Key] == nil || c.Version >= newest[c.Key].Version {
			newest[c.Key] = c
		}
	}
	for k, c := range newest {
		if c.To != Failed {
			delete(newest, k)
		}
	}
	return newest
}

func compareKeys(a, b outbox.Key) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), a.ID.Compare(b.ID))
}

// Operations of a bulk item.
const (
	Index  = "index"
	Delete = "delete"
)

// Applied is one item of a bulk request, recorded by a proxy before Elasticsearch: the
// request, and the answer of Elasticsearch itself, even where the client got another one.
type Applied struct {
	Request  int64 // the bulk request that it was part of
	Instance string
	// Between these Elasticsearch decided about it. Both are of one process and carry
	// its monotonic clock. Answered is zero when no answer came.
	Sent, Answered time.Time
	Op             string // [Index] or [Delete]
	ID             string // of the document; after the routing and a colon, where there is one
	// Document is what it writes to, where that is not known by ID alone: ids that differ in the
	// routing are one document when they meet on one shard.
	Document string
	Target   string // name that the request was sent to: an alias, or an index
	Version  int64  // asked for
	// The answer; zero where there was none.
	Index         string // that has taken it
	Status        int
	Result        string // created, updated, deleted, not_found; empty for an error
	SeqNo         int64
	PrimaryTerm   int64
	ResultVersion int64
	Forwarded     bool // false: Elasticsearch never got it
	Known         bool // false: the answer never came, so it may have been applied or not
}

// wrote reports whether Elasticsearch confirmed a's effect; a delete of a document that
// is not there is one, it leaves its version behind.
func (a *Applied) wrote() bool { return a.Forwarded && a.Known && a.Status < 500 && a.Result != "" }

// refused reports whether Elasticsearch has something newer.
func (a *Applied) refused() bool { return a.Forwarded && a.Known && a.Status == 409 }

// doubtful reports whether nobody knows if a had an effect: no answer, or one by which
// the server says that something broke in it.
func (a *Applied) doubtful() bool { return a.Forwarded && (!a.Known || a.Status >= 500) }

func (a *Applied) key() outbox.Key { return KeyOf(a.ID) }

// KeyOf undoes outbox.Key.String. A document of another name gets it as its type.
func KeyOf(document string) outbox.Key {
	typ, text, _ := strings.Cut(document, ":")
	var id outbox.ID
	if err := id.UnmarshalText([]byte(text)); err != nil || id.IsZero() {
		return outbox.Key{Type: document}
	}
	return outbox.Key{Type: typ, ID: id}
}

// End is Elasticsearch and the source table as they are when a run has ended.
type End struct {
	Compared    *reconcile.Report
	Documents   map[string]int64 // version of each document by its id, and by what else [Applied] calls it
	Differences []reconcile.Difference
}

// ReadEnd compares index with its source, a query as [reconcile.Run] has it. It is about one
// moment when the outbox is drained and nobody writes.
func ReadEnd(ctx context.Context, db outbox.DB, es *reconcile.Client, index, source string) (*End, error) {
	compared, err := reconcile.Run(ctx, db, es, index, source)
	if err != nil {
		return nil, fmt.Errorf("compare %s with its source: %w", index, err)
	}
	return &End{Compared: compared, Documents: compared.Versions, Differences: compared.Differences}, nil
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
	for _, k := range slices.SortedFunc(maps.Keys(source), compareKeys) {
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
