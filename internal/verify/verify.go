package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// DefaultSettle is how long a suspect may take to settle where [Options] say nothing else.
const DefaultSettle = time.Minute

// Events is what the outbox knows of entities; *outbox.Mender is the one in production. Each slice
// that it returns has one answer for each key, in their order. It must be safe for concurrent use.
type Events interface {
	// Standing reports which entities have open events, and which have dead letters.
	Standing(ctx context.Context, keys []outbox.Key) ([]outbox.Standing, error)
	// OwnsVersions reports whether weft draws the versions, so that a repair can pass a document
	// that is ahead of its row.
	OwnsVersions() bool
	// Unnumbered reports which entities have no version yet although weft draws the versions.
	Unnumbered(ctx context.Context, keys []outbox.Key) ([]bool, error)
	// Owns reports which entities this outbox may have events of; other shards have the rest.
	Owns(ctx context.Context, keys []outbox.Key) ([]bool, error)
	// Mend writes an event for each order, and one entry of actor in the audit.
	Mend(ctx context.Context, orders []outbox.Order, actor, why string, detail any) error
}

// Options say what to compare and how. Sides and Events are needed.
type Options struct {
	Sides  projections.Sides
	Events Events

	From   outbox.Key    // Last of the run that this one continues; zero begins with the first entity
	Before Report        // what that run has found, and how far among the documents; the report of this one adds to it
	Rate   int           // most rows and documents a second; 0 for no limit
	Settle time.Duration // how long a suspect may take to settle, and a repair again; 0 for DefaultSettle
	// Wait is how long each read is repeated while the destination does not answer, or answers 429 or 5xx. 0 ends the
	// run at the first such error.
	Wait time.Duration
	// Waiting, if any, is called with the error of each try that is repeated, from several goroutines.
	Waiting func(error)
	Fields  bool    // name the fields that differ in corrupt documents
	Repair  *Repair // nil to change nothing

	// Rest, if any, is called before each page, and returns when it may be read. Its error ends the run.
	Rest func(context.Context) error
	// Progress, if any, is called after each page and each look at suspects, from one goroutine at a
	// time, with the report of the pages that are told. The run waits for it.
	Progress func(Report)
}

// Resume sets From and Before to what is kept of an earlier run.
func (o *Options) Resume(events *outbox.Mender, kept *outbox.Verified) (err error) {
	if kept.EntityID != "" {
		if o.From, err = events.Entity(kept.EntityType, kept.EntityID); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(kept.Report, &o.Before); err != nil {
		return fmt.Errorf("kept comparison: %w", err)
	}
	return nil
}

// Repair says who has documents written anew, and why, for the audit.
type Repair struct{ Actor, Why string }

// Report is what a comparison has found. The counts from Missing to Misplaced are entities by [Kind],
// repaired ones included. A page counts once all its suspects are told, and all pages before it.
type Report struct {
	Projection string `json:"projection"`
	Rows       int64  `json:"rows"`      // looked at
	Documents  int64  `json:"documents"` // of the rows looked at, and those without a row
	Equal      int64  `json:"equal"`     // rows that do not differ, failed, unsettled and repaired ones left out
	Missing    int64  `json:"missing"`
	Extra      int64  `json:"extra"`
	Stale      int64  `json:"stale"`
	Ahead      int64  `json:"ahead"`
	Corrupt    int64  `json:"corrupt"`
	Misplaced  int64  `json:"misplaced"`
	Repaired   int64  `json:"repaired"`          // of those that differ: looked at again, and right
	ByHand     int64  `json:"by_hand,omitempty"` // of those that differ: no repair helps, and the remedy of its example may
	Failed     int64  `json:"failed"`            // entities with a dead letter, or a row that makes no document
	Unsettled  int64  `json:"unsettled"`         // entities whose events did not settle in time
	DurationMS int64  `json:"duration_ms"`       // of the runs before, too

	At string `json:"at,omitempty"` // all documents before this position are told, and all rows; empty before, and at the end

	VersionsOnly string    `json:"versions_only,omitempty"` // why contents were not compared; empty when they were
	Beside       []Beside  `json:"beside,omitempty"`        // the caller's to fill in: Run does not
	Examples     []Example `json:"examples,omitempty"`      // the first five of each kind

	Total int64      `json:"-"` // about how many rows and documents this run has to look at
	Seen  int64      `json:"-"` // how many of them it has looked at, told or not
	Open  int64      `json:"-"` // once all are looked at: entities to be looked at again, as their events may not have settled
	Last  outbox.Key `json:"-"` // all entities up to it are told; zero before the first, and at the end
}

// Example is one entity that differs, or one document of no entity.
type Example struct {
	Kind            Kind     `json:"kind"`
	Entity          string   `json:"entity"`               // type and id; empty where the document has no entity
	Document        string   `json:"document"`             // its id; empty when it is missing
	RowVersion      int64    `json:"row_version"`          // 0 without one
	Unnumbered      bool     `json:"unnumbered,omitempty"` // there is a row, and no event has given it a version yet
	DocumentVersion int64    `json:"document_version"`     // 0 without a document
	Fields          []string `json:"fields,omitempty"`     // that differ, with Options.Fields
	Remedy          string   `json:"remedy,omitempty"`     // where a repair cannot help
}

// Beside is an index that weft does not write to, while searches find its documents all the same: an
// alias leads to it.
type Beside struct {
	Index  string `json:"index"`
	Alias  string `json:"alias"`  // that leads to it
	Remedy string `json:"remedy"` // what to do about it, in words
}

// examplesOfKind is how many of each kind a report names.
const examplesOfKind = 5

// Differs returns how many documents are wrong, repaired ones included.
func (r *Report) Differs() int64 {
	return r.Missing + r.Extra + r.Stale + r.Ahead + r.Corrupt + r.Misplaced
}

// equal is the result of entities that do not differ.
const equal = "equal"

// Results lists the keys of [Report.Counts]: equal, and the kinds, in the order of a report.
func Results() []string {
	return []string{equal, string(Missing), string(Extra), string(Stale), string(Ahead), string(Corrupt), string(Misplaced)}
}

// Counts returns how many entities are equal, and how many differ in each way, by the names of
// [Results].
func (r *Report) Counts() map[string]int64 {
	counts := map[string]int64{equal: r.Equal}
	for _, name := range Results()[1:] {
		counts[name] = *r.count(Kind(name))
	}
	return counts
}

func (r *Report) count(k Kind) *int64 {
	switch k {
	case Missing:
		return &r.Missing
	case Extra:
		return &r.Extra
	case Stale:
		return &r.Stale
	case Ahead:
		return &r.Ahead
	case Corrupt:
		return &r.Corrupt
	default:
		return &r.Misplaced
	}
}

// add counts one that differs, and names it.
func (r *Report) add(e Example) {
	*r.count(e.Kind)++
	if e.Remedy != "" {
		r.ByHand++
	}
	r.name(e)
}

// name names one that differs, unless enough of its kind are named.
func (r *Report) name(e Example) {
	named := 0
	for i := range r.Examples {
		if r.Examples[i].Kind == e.Kind {
			named++
		}
	}
	if named < examplesOfKind {
		r.Examples = append(r.Examples, e)
	}
}

// include adds what a page has shown.
func (r *Report) include(page *Report) {
	r.Rows += page.Rows
	r.Documents += page.Documents
	r.Equal += page.Equal
	for _, name := range Results()[1:] {
		*r.count(Kind(name)) += *page.count(Kind(name))
	}
	r.Repaired += page.Repaired
	r.ByHand += page.ByHand
	r.Failed += page.Failed
	r.Unsettled += page.Unsettled
	for _, e := range page.Examples {
		r.name(e)
	}
}

// Run compares both sides and waits until every suspect is told. Differences are no error. When it
// returns an error, also at the end of ctx, the report is as far as it came: a later run can continue
// from it with From and Before, and counts nothing twice. Where the destination has become another one, as after a
// rebuild, the comparison begins anew, once.
func Run(ctx context.Context, o Options) (Report, error) {
	if o.Settle == 0 {
		o.Settle = DefaultSettle
	}
	started := time.Now()
	v := &verifier{Options: o, report: o.Before}
	v.report.Projection, v.report.Last = o.Sides.Name(), o.From
	err := v.run(ctx)
	if errors.Is(err, elastic.ErrOtherIndex) {
		v.From, v.Before, v.report = outbox.Key{}, Report{}, Report{Projection: o.Sides.Name()}
		err = v.run(ctx)
	}
	v.report.DurationMS += time.Since(started).Milliseconds()
	if err != nil {
		err = fmt.Errorf("verify %s: %w", o.Sides.Name(), err)
	}
	return v.report, err
}

// verifier is one run.
type verifier struct {
	Options
	report    Report
	byVersion bool
	due       time.Time  // when what was asked of room so far may be looked at
	few       sync.Mutex // held where a few items at a time are looked at
	silent    silence
}

// looked is what one page of rows or of documents has shown.
type looked struct {
	last     outbox.Key // of a page of rows
	at       string     // behind a page of documents
	seen     int64      // rows or documents of the page
	matched  int64      // documents that are equal to their rows
	suspects []outbox.Key
	found    Report // without what the suspects turn out to be
}

func (v *verifier) run(ctx context.Context) error {
	why, err := v.Sides.ByVersionOnly(ctx)
	if err != nil {
		return err
	}
	v.report.VersionsOnly, v.byVersion = why, why != ""
	before, err := v.Sides.State(ctx)
	if err != nil {
		return err
	}
	rows, documents, err := v.Sides.Size(ctx)
	if err != nil {
		return err
	}
	v.report.Total = max(rows-v.Before.Rows, 0) + documents

	if v.report.At == "" {
		matched, err := v.phase(ctx, v.rows)
		if err != nil {
			return err
		}
		// Nothing has written to the index since it was counted, and each document has a row.
		if after, err := v.Sides.State(ctx); err == nil && after == before && matched == documents && v.From.ID.IsZero() {
			v.report.Seen, v.report.Last = v.report.Total, outbox.Key{}
			return nil
		}
	}
	if _, err = v.phase(ctx, v.documents); err == nil {
		v.report.Last, v.report.At = outbox.Key{}, ""
	}
	return err
}

// phase runs look, and looks again at the suspects that it finds, at the same time. It returns how many
// documents are equal to their rows.
func (v *verifier) phase(ctx context.Context, look func(context.Context, chan<- looked) error) (matched int64, err error) {
	g, ctx := errgroup.WithContext(ctx)
	found := make(chan looked, 1)
	g.Go(func() error {
		defer close(found)
		return look(ctx, found)
	})
	g.Go(func() (err error) {
		matched, err = v.settle(ctx, found)
		return err
	})
	err = g.Wait()
	return matched, err
}

// errEnded ends a producer whose consumer has ended.
var errEnded = errors.New("the comparison has ended")

// give sends v, or returns errEnded when ctx ends.
func give[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return errEnded
	}
}

// paceSlack is how much of a stall a run makes up for, beyond its rate.
const paceSlack = time.Second

// room waits until n more rows or documents may be looked at, by Rest and Rate. Each phase calls it from
// one goroutine.
func (v *verifier) room(ctx context.Context, n int) error {
	if v.Rest != nil {
		if err := v.Rest(ctx); err != nil {
			return err
		}
	}
	if v.Rate == 0 {
		return ctx.Err()
	}
	if earliest := time.Now().Add(-paceSlack); v.due.Before(earliest) {
		v.due = earliest
	}
	v.due = v.due.Add(time.Duration(float64(n) / float64(v.Rate) * float64(time.Second)))
	timer := time.NewTimer(time.Until(v.due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
